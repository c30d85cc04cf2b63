//! CRC-32C, the checksum of headers, of the region table and of log entries.

use super::constants::CHECKSUM_AT;

/// A checksum of the bytes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum(u32);

impl Checksum {
    /// Returns the checksum of a structure, whose own checksum counts as zeros.
    pub fn of_structure(bytes: &[u8]) -> Self {
        let mut checksum = Self::default();
        let (before, rest) = bytes.split_at_checked(CHECKSUM_AT).unwrap_or((bytes, &[]));
        checksum.append(before);
        if let Some((own, after)) = rest.split_first_chunk::<4>() {
            checksum.append_zeros(own.len() as u64);
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

    /// Appends zeros, in time that grows with the logarithm of their number. A log, the longest structure, has less
    /// than 2^32 bytes.
    pub fn append_zeros(&mut self, count: u64) {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // A checksum is the complement of the remainder so far, and `crc32c_combine` with 0 appends zeros to that.
        self.0 = !crc32c::crc32c_combine(!self.0, 0, count);
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
    fn zeros_are_appended_without_reading_them() {
        for count in [0, 1, 7, 4096, 100_003] {
            let (mut short, mut long) = (Checksum::default(), Checksum::default());
            short.append(b"123456789");
            assert_eq!(short.get(), 0xe306_9283);
            short.append_zeros(count);
            long.append(b"123456789");
            long.append(&vec![0; count as usize]);
            assert_eq!(short, long, "{count} zeros");
        }
    }

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
