//! Bytes of a disk that are known without its image.

use crate::disk::offsets::GuestOffset;

/// Bytes that a guest must read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownBytes {
    /// The guest offset of the first one.
    pub guest: GuestOffset,
    /// The bytes.
    pub bytes: Vec<u8>,
}
