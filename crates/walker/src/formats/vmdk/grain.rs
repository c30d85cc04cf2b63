//! Grains, and the places of structures in a file.
//!
//! # Arithmetic
//! Host offsets have the lower 64 bits, as in QEMU.

use super::constants::{MAX_LENGTH_BYTES, SECTOR_BYTES};
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;

/// The meaning of an entry of a grain table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// The extent does not have the grain.
    Unallocated,
    /// The grain consists of zeros.
    Zero,
    /// The grain is stored at this host offset.
    At(HostOffset),
}

/// Returns the host offset of a sector. As in QEMU, it has the lower 64 bits.
pub fn offset_of(sector: u64) -> HostOffset {
    HostOffset::new(sector.wrapping_mul(SECTOR_BYTES))
}

/// Returns the host offset of a structure that QEMU reads when it opens the image.
///
/// # Errors
/// The structure does not end before [`MAX_LENGTH_BYTES`], so that QEMU cannot read it.
pub(super) fn table_at(sector: u64, length_bytes: u64) -> Result<HostOffset, MapError> {
    let offset = offset_of(sector);
    let end = offset.checked_add(length_bytes);
    match end.is_some_and(|end| end.get() <= MAX_LENGTH_BYTES) {
        true => Ok(offset),
        false => Err(MapError::Header {
            field: "sector of a structure",
            found: sector,
            expected: "one from which the structure ends before 2^63",
        }),
    }
}
