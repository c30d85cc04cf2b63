//! Reads guest data. As in QEMU, the bitmap of a block does not matter.

use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::walkers::pieces::each_piece;

use super::open::Vpc;

impl<S: Storage + ?Sized> Vpc<'_, S> {
    /// Fills `into` with the guest's bytes from `guest` on.
    pub(in crate::walkers) fn read(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
    ) -> Result<(), MapError> {
        let until_edge = |guest: GuestOffset| match &self.blocks {
            None => u64::MAX,
            Some(header) => {
                let block = u64::from(header.block_bytes);
                block - guest.get() % block
            }
        };
        each_piece(guest, into, until_edge, |guest, piece| {
            match self.host_of(guest)? {
                Some(host) => self.image.read_at(host, piece)?,
                None => piece.fill(0),
            }
            Ok(())
        })
    }
}
