//! Cuts a read into pieces.
//!
//! # Arithmetic
//! A read ends on the disk, so that no guest offset saturates. A length that does not fit a `usize` is longer than
//! every buffer.

use crate::disk::offsets::GuestOffset;
use crate::formats::error::MapError;

/// Calls `read` with each piece of `into`, which is to be filled with the guest's bytes from `guest` on. `piece_bytes`
/// returns the number of bytes from an offset on that can be read at once, at least 1.
///
/// # Errors
/// `read` fails.
#[inline]
pub(super) fn each_piece(
    guest: GuestOffset,
    into: &mut [u8],
    piece_bytes: impl Fn(GuestOffset) -> u64,
    mut read: impl FnMut(GuestOffset, &mut [u8]) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let (mut guest, mut left) = (guest, into);
    while !left.is_empty() {
        let length = usize::try_from(piece_bytes(guest)).unwrap_or(usize::MAX).min(left.len());
        let (piece, rest) = left.split_at_mut(length);
        read(guest, piece)?;
        guest += length as u64;
        left = rest;
    }
    Ok(())
}
