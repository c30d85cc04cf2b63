//! The bytes of one disk.

use crate::base::ranges::RangeMap;

/// The content of a guest range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GuestContent {
    /// Each byte has this value.
    Byte(u8),
    /// The bytes of a file, again and again. The first byte of the file lies at guest offset `origin`.
    File {
        /// The file, in the folder of the disk.
        name: String,
        /// The guest offset.
        origin: u64,
    },
    /// The range is not compared.
    Unknown,
}

/// The bytes of a disk. Ranges without a piece are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GuestData {
    /// The size that a command named, in bytes. Formats round it.
    pub(crate) size: u64,
    /// The ranges with a content of their own.
    pub(crate) pieces: RangeMap<GuestContent>,
}

impl GuestData {
    /// Returns a disk of zeros.
    pub(crate) fn zeros(size: u64) -> Self {
        Self { size, pieces: RangeMap::default() }
    }

    /// Returns a disk without known bytes.
    pub(crate) fn unknown() -> Self {
        let mut data = Self::zeros(u64::MAX);
        data.write(0, u64::MAX, GuestContent::Unknown);
        data
    }

    /// Gives a range another content.
    pub(crate) fn write(&mut self, at: u64, length: u64, content: GuestContent) {
        let range = at..at.saturating_add(length);
        match content {
            GuestContent::Byte(0) => self.pieces.remove(range),
            content => self.pieces.insert(range, content),
        }
    }

    /// Gives the disk another size. QEMU may keep up to a sector behind the new end.
    pub(crate) fn resize(&mut self, size: u64) {
        if size < self.size {
            self.pieces.remove(size..u64::MAX);
            let kept = size.next_multiple_of(512);
            self.write(size, kept.saturating_sub(size), GuestContent::Unknown);
        }
        self.size = size;
    }

    /// Returns the disk that an overlay of this size shows.
    pub(crate) fn below(&self, size: u64) -> Self {
        let mut data = self.clone();
        if size < data.size {
            data.resize(size);
        }
        data.size = size;
        data
    }
}
