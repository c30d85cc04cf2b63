//! The checksums of structures.

use crate::disk::offsets::HostOffset;

/// A checksum over a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The first byte of the structure.
    pub start: HostOffset,
    /// The length of the structure.
    pub length_bytes: usize,
    /// The offset of the checksum in it.
    pub inside: usize,
    /// How it is computed.
    pub kind: SealKind,
}

impl Seal {
    /// Returns the host offset of the checksum.
    pub fn place(&self) -> HostOffset {
        self.start + self.inside as u64
    }
}

/// How a checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealKind {
    /// The one's complement of the sum of all other bytes, big-endian.
    ComplementOfSum,
    /// CRC-32C, little-endian. The checksum itself counts as zeros.
    Crc32c,
}

impl SealKind {
    /// Returns the bytes of the checksum of `structure`, which lies at `inside`.
    pub fn of(self, structure: &[u8], inside: usize) -> [u8; 4] {
        match self {
            Self::ComplementOfSum => complement_of_sum(structure, inside).0.to_be_bytes(),
            Self::Crc32c => crc32c_without(structure, inside).to_le_bytes(),
        }
    }
}

/// Returns the checksum of a structure as computed and as stored, big-endian, at `at`: the one's complement of the sum
/// of all other bytes.
pub fn complement_of_sum(structure: &[u8], at: usize) -> (u32, u32) {
    let sum =
        |bytes: &[u8]| bytes.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    let stored = structure.get(at..).and_then(|rest| rest.first_chunk::<4>());
    let stored = stored.copied().unwrap_or_default();
    (!sum(structure).wrapping_sub(sum(&stored)), u32::from_be_bytes(stored))
}

/// Returns the CRC-32C of a structure, whose four bytes at `at` count as zeros.
pub(crate) fn crc32c_without(structure: &[u8], at: usize) -> u32 {
    let (before, rest) = structure.split_at_checked(at).unwrap_or((structure, &[]));
    let checksum = crc32c::crc32c(before);
    match rest.split_first_chunk::<4>() {
        Some((_, after)) => crc32c::crc32c_append(crc32c::crc32c_append(checksum, &[0; 4]), after),
        None => checksum,
    }
}
