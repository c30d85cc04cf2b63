//! Reads guest data. As in QEMU, the bitmap of a block does not matter.
//!
//! # Arithmetic
//! A read ends on the disk, so that no guest offset saturates. A length that does not fit a `usize` is longer than
//! every buffer.

use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;

use super::open::Vpc;

impl<S: Storage + ?Sized> Vpc<'_, S> {
    /// Fills `into` with the guest's bytes from `guest` on.
    pub(in crate::walkers) fn read(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
    ) -> Result<(), MapError> {
        let (mut guest, mut left) = (guest, into);
        while !left.is_empty() {
            let until_edge = match &self.blocks {
                None => u64::MAX,
                Some(header) => {
                    let block = u64::from(header.block_bytes);
                    block - guest.get() % block
                }
            };
            let length = usize::try_from(until_edge).unwrap_or(usize::MAX).min(left.len());
            let (piece, rest) = left.split_at_mut(length);
            match self.host_of(guest)? {
                Some(host) => self.image.read_at(host, piece)?,
                None => piece.fill(0),
            }
            guest = guest.saturating_add(length as u64);
            left = rest;
        }
        Ok(())
    }
}
