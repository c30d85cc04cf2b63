//! `read`: reads guest data through the mapping.
//!
//! # Arithmetic
//! A length that does not fit a `usize` is longer than every buffer. A layer below that is missing, or that ends before
//! the read, has no bytes there.

use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;

use super::disk::{Disk, OpenLayer};
use super::pieces::each_piece;
use super::scratch::WalkScratch;
use super::vmdk::Vmdk;

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
    read_layer(disk, 0, guest, into, scratch)
}

/// Fills `into` from the layer at `depth` and those below it. Bytes past the layer's end are zeros.
fn read_layer<S: Storage + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    depth: usize,
    guest: GuestOffset,
    into: &mut [u8],
    scratch: &mut WalkScratch,
) -> Result<(), MapError> {
    let layer = match disk.layer(depth) {
        Some(OpenLayer::Qcow2(layer)) => layer,
        Some(OpenLayer::Raw(layer)) => return layer.read(guest, into),
        Some(OpenLayer::Vpc(layer)) => return layer.read(guest, into),
        Some(OpenLayer::Vhdx(layer)) => return layer.read(guest, into),
        Some(OpenLayer::Vmdk(layer)) => {
            return read_grains(disk, depth, layer, guest, into, scratch);
        }
        None => {
            into.fill(0);
            return Ok(());
        }
    };
    let cell = layer.cell_bytes();
    let until_edge = |guest: GuestOffset| cell - (guest.get() & (cell - 1));
    each_piece(guest, into, until_edge, |guest, piece| {
        match layer.read_piece(guest, piece, &mut scratch.inflater)? {
            true => Ok(()),
            false => read_below(disk, depth, guest, piece, scratch),
        }
    })
}

/// Fills `into` from the layers below the one at `depth`, which has no data there.
fn read_below<S: Storage + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    depth: usize,
    guest: GuestOffset,
    into: &mut [u8],
    scratch: &mut WalkScratch,
) -> Result<(), MapError> {
    let there = disk.size_below(depth).unwrap_or(0).saturating_sub(guest.get());
    let there = usize::try_from(there).unwrap_or(usize::MAX).min(into.len());
    let (below, past) = into.split_at_mut(there);
    past.fill(0);
    match below.is_empty() {
        true => Ok(()),
        false => read_layer(disk, depth + 1, guest, below, scratch).map_err(MapError::below),
    }
}

/// Fills `into` from a VMDK layer and those below it. A parent with another content is an error only where it is read,
/// as in QEMU.
fn read_grains<S: Storage + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    depth: usize,
    layer: &Vmdk<S>,
    guest: GuestOffset,
    into: &mut [u8],
    scratch: &mut WalkScratch,
) -> Result<(), MapError> {
    let piece_bytes = |guest| layer.piece_bytes(guest);
    each_piece(guest, into, piece_bytes, |guest, piece| {
        if layer.read_piece(guest, piece, &mut scratch.zlib)? {
            return Ok(());
        }
        if let Some(OpenLayer::Vmdk(parent)) = disk.layer(depth + 1) {
            layer.check_parent(parent)?;
        }
        read_below(disk, depth, guest, piece, scratch)
    })
}
