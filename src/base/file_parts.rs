//! The parts of a disk whose data lie in different files.

use crate::disk::offsets::HostOffset;

/// The largest number of files beside an image that a program builds.
pub const MAX_EXTENT_FILES: usize = 4;

/// A part of a disk whose data lie in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// The first guest byte.
    pub start: u64,
    /// The guest byte behind the part; `u64::MAX` for the last one.
    pub end: u64,
    /// The number of the file among those beside the image; 0 if there are none.
    pub file: usize,
    /// The host offset of the first guest byte, if the part has no table.
    pub flat_at: Option<HostOffset>,
}

/// The parts of a disk, in order. They cover all guest bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileParts {
    count: usize,
    parts: [FilePart; MAX_EXTENT_FILES],
}

impl FileParts {
    /// One file with a table.
    pub const TABLED: Self = Self::one(None);
    /// One file whose host offsets are the guest offsets.
    pub const FLAT: Self = Self::one(Some(HostOffset::ZERO));

    const fn one(flat_at: Option<HostOffset>) -> Self {
        let part = FilePart { start: 0, end: u64::MAX, file: 0, flat_at };
        Self { count: 1, parts: [part; MAX_EXTENT_FILES] }
    }

    /// Returns the parts of files, each with its length in bytes, and with the host offset of its first byte if it has
    /// no table. The last one has all bytes behind the others. Without a file, there is one part with a table.
    ///
    /// # Arithmetic
    /// A part that passes 2^64 ends behind every disk.
    pub fn of_files(files: impl Iterator<Item = (u64, Option<HostOffset>)>) -> Self {
        let mut all = Self { count: 0, ..Self::TABLED };
        let mut start = 0u64;
        for (file, (part, (length_bytes, flat_at))) in all.parts.iter_mut().zip(files).enumerate() {
            let end = start.saturating_add(length_bytes);
            *part = FilePart { start, end, file, flat_at };
            (start, all.count) = (end, file + 1);
        }
        match all.parts[..all.count].last_mut() {
            Some(last) => last.end = u64::MAX,
            None => all.count = 1,
        }
        all
    }

    /// Returns the parts.
    pub fn all(&self) -> &[FilePart] {
        &self.parts[..self.count]
    }

    /// Returns the part that holds a guest byte.
    #[inline]
    pub fn at(&self, guest: u64) -> &FilePart {
        let all = self.all();
        // There is at least one part, and the last one ends behind all bytes but the very last.
        all.iter().find(|part| guest < part.end).unwrap_or(&all[all.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_byte() {
        let flat = Some(HostOffset::new(512));
        let parts = FileParts::of_files([(100, None), (50, flat), (7, None)].into_iter());
        let at = |guest| (parts.at(guest).file, parts.at(guest).flat_at);
        assert_eq!([0, 99, 100, 149, 150].map(at).map(|it| it.0), [0, 0, 1, 1, 2]);
        assert_eq!((at(149).1, at(u64::MAX).0), (flat, 2));
        assert_eq!(FileParts::of_files([].into_iter()), FileParts::TABLED);
    }
}
