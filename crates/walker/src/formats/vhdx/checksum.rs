//! CRC-32C, the checksum of headers, of the region table and of log entries.

use std::ops::{ControlFlow, Range};

use super::constants::CHECKSUM_AT;
use crate::disk::crc32c_zeros::append_zeros;
use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, each_data};

/// A checksum of the bytes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    /// Returns the checksum of a structure, whose own checksum counts as zeros.
    pub fn of_structure(bytes: &[u8]) -> Self {
        let mut checksum = Self::default();
        let (before, rest) = bytes.split_at_checked(CHECKSUM_AT).unwrap_or((bytes, &[]));
        checksum.append(before);
        if let Some((_, after)) = rest.split_first_chunk::<4>() {
            checksum.append(&[0; 4]);
            checksum.append(after);
        }
        checksum
    }

    /// Reports whether this is the checksum that a structure contains.
    pub fn is_in(self, structure: &[u8]) -> bool {
        let stored = structure.get(CHECKSUM_AT..).and_then(|rest| rest.first_chunk());
        stored.is_some_and(|stored| u32::from_le_bytes(*stored) == self.0)
    }

    /// Reports whether a structure contains its own checksum.
    pub fn is_valid(structure: &[u8]) -> bool {
        Self::of_structure(structure).is_in(structure)
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// Appends zeros, in time that grows with the logarithm of their number.
    pub fn append_zeros(&mut self, count: u64) {
        self.0 = append_zeros(self.0, count);
    }

    /// Appends the bytes of a file in `range`. Holes of the file are not read. `scratch` has room
    /// for a piece.
    ///
    /// # Errors
    /// A read fails.
    pub fn append_stored<S: Storage + ?Sized>(
        &mut self,
        file: &S,
        range: Range<HostOffset>,
        scratch: &mut [u8],
    ) -> Result<(), StorageError> {
        let mut position = range.start;
        let _ = each_data(file, range.clone(), scratch, |data| {
            self.append_zeros(data.offset.saturating_distance_from(position));
            self.append(data.bytes);
            position = data.offset + data.bytes.len() as u64;
            Ok::<_, StorageError>(ControlFlow::Continue(()))
        })?;
        self.append_zeros(range.end.saturating_distance_from(position));
        Ok(())
    }

    /// Returns the checksum.
    pub fn get(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_checksum_counts_as_zeros() {
        let mut bytes = *b"head\0\0\0\0rest";
        let checksum = Checksum::of_structure(&bytes);
        assert_eq!(checksum.get(), crc32c::crc32c(&bytes));
        bytes[4..8].copy_from_slice(&checksum.get().to_le_bytes());
        assert!(Checksum::is_valid(&bytes));
        bytes[11] ^= 1;
        assert!(!Checksum::is_valid(&bytes) && !Checksum::is_valid(b"short"));
    }
}
