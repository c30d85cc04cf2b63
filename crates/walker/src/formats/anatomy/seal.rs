//! The checksums of structures.

use crate::disk::offsets::HostOffset;
use crate::formats::vhdx::header::Checksum;
use crate::formats::vpc::headers::checksums;

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
    /// VHD: the one's complement of the sum of all other bytes, big-endian.
    ComplementOfSum,
    /// VHDX: CRC-32C, little-endian. The checksum itself counts as zeros.
    Crc32c,
}

impl SealKind {
    /// Returns the bytes of the checksum of `structure`, which lies at `inside`.
    pub fn of(self, structure: &[u8], inside: usize) -> [u8; 4] {
        match self {
            Self::ComplementOfSum => checksums(structure, inside).0.to_be_bytes(),
            Self::Crc32c => Checksum::of_structure(structure).get().to_le_bytes(),
        }
    }
}
