//! The bytes that a guest must read, as the commands of a recipe tell: a third answer, beside those of QEMU and of the
//! program under test. It knows the writes of qemu-io, and the operations that keep or move data. Whatever it does not
//! know is unknown, and never compared.

mod commands;
mod compare;

use std::collections::BTreeMap;

pub(super) use compare::compare;

/// The content of a guest range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GuestContent {
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

/// A guest range with a content of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GuestPiece {
    /// The first byte behind the range.
    pub(super) end: u64,
    /// The content.
    pub(super) content: GuestContent,
}

/// The bytes of a disk. Ranges without a piece are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GuestData {
    /// The size that a command named, in bytes. Formats round it.
    size: u64,
    /// The pieces by their start. They do not overlap.
    pieces: BTreeMap<u64, GuestPiece>,
}

impl GuestData {
    /// Returns a disk of zeros.
    fn zeros(size: u64) -> Self {
        Self { size, pieces: BTreeMap::new() }
    }

    /// Returns a disk of which nothing is known.
    fn unknown() -> Self {
        let mut data = Self::zeros(u64::MAX);
        data.write(0, u64::MAX, GuestContent::Unknown);
        data
    }

    /// Gives a range another content.
    fn write(&mut self, at: u64, length: u64, content: GuestContent) {
        let end = at.saturating_add(length);
        self.split(at);
        self.split(end);
        self.pieces.retain(|start, _| *start < at || *start >= end);
        if at < end && content != GuestContent::Byte(0) {
            self.pieces.insert(at, GuestPiece { end, content });
        }
    }

    /// Ends a piece that goes on behind this offset, and begins another one there.
    fn split(&mut self, at: u64) {
        let before = self.pieces.range_mut(..at).next_back();
        if let Some((_, piece)) = before.filter(|(_, piece)| piece.end > at) {
            let rest = piece.clone();
            piece.end = at;
            self.pieces.insert(at, rest);
        }
    }

    /// Gives the disk another size. QEMU may keep up to a sector of what was cut.
    fn resize(&mut self, size: u64) {
        if size < self.size {
            self.split(size);
            self.pieces.retain(|start, _| *start < size);
            let kept = size.next_multiple_of(512);
            self.write(size, kept.saturating_sub(size), GuestContent::Unknown);
        }
        self.size = size;
    }

    /// Returns the disk that an overlay of this size shows.
    fn below(&self, size: u64) -> Self {
        let mut data = self.clone();
        if size < data.size {
            data.resize(size);
        }
        data.size = size;
        data
    }
}

/// The disks of an iteration, by the names of their files.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestModel {
    disks: BTreeMap<String, GuestData>,
    /// The image below an image.
    backing: BTreeMap<String, String>,
    /// The internal snapshots, by the image and the name.
    snapshots: BTreeMap<(String, String), GuestData>,
}

impl GuestModel {
    /// Returns the bytes of a disk, if anything is known of them.
    pub(super) fn disk(&self, file: &str) -> Option<&GuestData> {
        self.disks.get(file)
    }

    fn disk_or_unknown(&self, file: &str) -> GuestData {
        self.disks.get(file).cloned().unwrap_or_else(GuestData::unknown)
    }

    /// Forgets a disk, and those above it.
    fn forget(&mut self, file: &str) {
        self.disks.remove(file);
        self.forget_above(file);
    }

    /// Forgets the disks above an image, which has changed.
    fn forget_above(&mut self, file: &str) {
        let above: Vec<String> = self
            .backing
            .iter()
            .filter(|(_, lower)| *lower == file)
            .map(|(upper, _)| upper.clone())
            .collect();
        for upper in above {
            // An image that lies below itself is never above a known one.
            if self.disks.remove(&upper).is_some() {
                self.forget_above(&upper);
            }
        }
    }
}

#[cfg(test)]
mod tests;
