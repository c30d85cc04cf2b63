//! Reads guest data. There is one difference to QEMU 10.0.2: if a block is stored at host offset 0, QEMU reads the
//! beginning of the file for every part of it. No writer stores a block there.

use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::walkers::pieces::each_piece;

use super::open::Vhdx;

impl<S: Storage + ?Sized> Vhdx<'_, S> {
    /// Fills `into` with the guest's bytes from `guest` on.
    pub(in crate::walkers) fn read(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
    ) -> Result<(), MapError> {
        let block = u64::from(self.table.block_bytes);
        let until_edge = |guest: GuestOffset| block - guest.get() % block;
        each_piece(guest, into, until_edge, |guest, piece| {
            match self.host_of(guest)? {
                Some(host) => self.image.read_at(host, piece)?,
                None => piece.fill(0),
            }
            Ok(())
        })
    }
}
