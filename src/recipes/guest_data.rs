//! The bytes of one disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::RecipeError;
use crate::base::ranges::{KnownBytes, RangeMap};
use crate::disk::offsets::GuestOffset;

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

/// The bytes that are compared at once.
pub(crate) const GUEST_PIECE_BYTES: usize = 64 << 10;

/// The expected bytes of a disk, with the content of the files that [`GuestContent::File`] names.
pub(crate) struct Expected<'d> {
    pub(crate) data: &'d GuestData,
    files: BTreeMap<String, Vec<u8>>,
}

impl<'d> Expected<'d> {
    /// Reads the files of guest data that a disk has from `folder`.
    pub(crate) fn new(data: &'d GuestData, folder: &Path) -> Result<Self, RecipeError> {
        Ok(Self { data, files: files_of(data, folder)? })
    }

    /// Returns the content at an offset, and the offset at which another content begins. Zeros have none.
    pub(crate) fn at(&self, at: u64) -> (u64, Option<GuestContent>) {
        let (content, next) = self.data.pieces.at(at);
        (next, content.cloned())
    }

    /// Writes the expected bytes from an offset on. The content is known.
    pub(crate) fn fill(&self, content: Option<&GuestContent>, at: u64, wanted: &mut [u8]) {
        let file = match content {
            None | Some(GuestContent::Unknown) => return wanted.fill(0),
            Some(GuestContent::Byte(byte)) => return wanted.fill(*byte),
            Some(GuestContent::File { name, origin }) => self.files.get(name).zip(Some(origin)),
        };
        let Some((bytes, origin)) = file else { return };
        let mut start = at.saturating_sub(*origin).checked_rem(bytes.len() as u64).unwrap_or(0);
        let mut left = wanted;
        while !left.is_empty() {
            let Some(rest) = bytes.get(start as usize..).filter(|rest| !rest.is_empty()) else {
                return;
            };
            let (piece, next) = left.split_at_mut(rest.len().min(left.len()));
            piece.copy_from_slice(&rest[..piece.len()]);
            (left, start) = (next, 0);
        }
    }
}

/// Reads the files of guest data that a disk has.
fn files_of(data: &GuestData, folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, RecipeError> {
    let names = data.pieces.iter().filter_map(|(_, content)| match content {
        GuestContent::File { name, .. } => Some(name),
        GuestContent::Byte(_) | GuestContent::Unknown => None,
    });
    let mut files = BTreeMap::new();
    for name in names {
        if !files.contains_key(name) {
            let path = folder.join(name);
            let bytes = fs::read(&path).map_err(|error| RecipeError::file(&path, error))?;
            files.insert(name.clone(), bytes);
        }
    }
    Ok(files)
}

/// The bytes at each place.
const SAMPLE_BYTES: u64 = 4096;
/// The highest number of places.
const MAX_SAMPLES: usize = 256;

/// Returns the bytes at the beginning and at the end of each range whose bytes are known.
pub(in crate::recipes) fn samples(expected: &Expected<'_>) -> Vec<KnownBytes> {
    let mut samples = Vec::new();
    let (mut at, size) = (0, expected.data.size);
    while at < size && samples.len() < MAX_SAMPLES {
        let (next, content) = expected.at(at);
        let end = next.min(size);
        if content != Some(GuestContent::Unknown) {
            let length = end.saturating_sub(at).min(SAMPLE_BYTES);
            let mut take = |from| {
                let mut bytes = vec![0; length as usize];
                expected.fill(content.as_ref(), from, &mut bytes);
                samples.push(KnownBytes { guest: GuestOffset::new(from), bytes });
            };
            take(at);
            let last = end.saturating_sub(length);
            if last > at {
                take(last);
            }
        }
        at = end;
    }
    samples
}
