//! `read`: reads guest data through the mapping.
//!
//! # Arithmetic
//! A read ends on the disk, so that no guest offset saturates. A length that does not fit a `usize` is longer than
//! every buffer. A layer below that is missing, or that ends before the read, has no bytes there.

use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;

use super::disk::{Disk, OpenLayer};
use super::qcow2::Inflater;
use super::scratch::WalkScratch;

/// Fills `into` with the guest's bytes from `guest` on. A compressed cluster is inflated only as far as necessary:
/// damage behind that has no effect.
///
/// # Errors
/// The range reaches past the end of the disk, an entry is malformed, data do not inflate, or a read failed; `into` may
/// then hold anything.
pub fn read<S: Storage + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    guest: GuestOffset,
    into: &mut [u8],
    scratch: &mut WalkScratch,
) -> Result<(), MapError> {
    let virtual_size = disk.virtual_size_bytes();
    let end = guest.checked_add(into.len() as u64);
    if end.is_none_or(|end| end.get() > virtual_size) {
        return Err(MapError::PastEnd { guest, virtual_size });
    }
    read_layer(disk, 0, guest, into, &mut scratch.inflater)
}

/// Fills `into` from the layer at `depth` and those below it. Bytes past the layer's end are zeros.
fn read_layer<S: Storage + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    depth: usize,
    guest: GuestOffset,
    into: &mut [u8],
    inflater: &mut Inflater,
) -> Result<(), MapError> {
    let layer = match disk.layer(depth) {
        Some(OpenLayer::Qcow2(layer)) => layer,
        Some(OpenLayer::Raw(layer)) => return layer.read(guest, into),
        Some(OpenLayer::Vpc(layer)) => return layer.read(guest, into),
        None => {
            into.fill(0);
            return Ok(());
        }
    };
    let cell = layer.cell_bytes();
    let mut left = into;
    let mut guest = guest;
    while !left.is_empty() {
        let until_edge = cell - (guest.get() & (cell - 1));
        let length = usize::try_from(until_edge).unwrap_or(usize::MAX).min(left.len());
        let (piece, rest) = left.split_at_mut(length);
        if !layer.read_piece(guest, piece, inflater)? {
            let there = disk.size_below(depth).unwrap_or(0).saturating_sub(guest.get());
            let there = usize::try_from(there).unwrap_or(usize::MAX).min(piece.len());
            let (below, past) = piece.split_at_mut(there);
            past.fill(0);
            if !below.is_empty() {
                read_layer(disk, depth + 1, guest, below, inflater).map_err(MapError::below)?;
            }
        }
        guest = guest.saturating_add(length as u64);
        left = rest;
    }
    Ok(())
}
