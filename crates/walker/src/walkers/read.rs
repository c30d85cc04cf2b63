//! `lookup` and `read`: the mapping of one guest byte, by a direct path through the tables, and guest data, through the
//! mapping.
//!
//! # Arithmetic
//! A chain has 64 layers at most, so that every depth fits. A length that does not fit a `usize` is longer than every
//! buffer. A layer below that is missing, or that ends before the read, has no bytes there. A read ends on the disk, so
//! that no guest offset saturates.

use crate::disk::extent::Mapping;
use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::at_depth;
use crate::formats::error::MapError;
use crate::walkers::disk::{Disk, WalkScratch};

/// Returns the mapping of the byte at `guest`; its `offset` is that of the byte itself.
///
/// # Errors
/// The byte lies past the end of the disk, an entry on the way is malformed, or a read failed.
pub fn lookup<S: Storage + ?Sized, O: Observer>(
    disk: &Disk<S, O>,
    guest: GuestOffset,
) -> Result<Mapping, MapError> {
    let virtual_size = disk.virtual_size_bytes();
    if guest.get() >= virtual_size {
        return Err(MapError::PastEnd { guest, virtual_size });
    }
    let mut answer = Mapping::HOLE;
    for depth in 0..disk.layers() {
        let Some(layer) = disk.layer(depth) else { break };
        let located = |error: MapError| error.below_by(u32::try_from(depth).unwrap_or(u32::MAX));
        answer = at_depth(layer.lookup(guest).map_err(located)?, depth);
        if answer.present || disk.size_below(depth).is_none_or(|size| guest.get() >= size) {
            break;
        }
    }
    Ok(match disk.host_holes {
        false => answer,
        true => disk.with_zero_flag(guest, answer),
    })
}

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
    let Some(layer) = disk.layer(depth) else {
        into.fill(0);
        return Ok(());
    };
    each_piece(
        guest,
        into,
        |guest| layer.piece_bytes(guest),
        |guest, piece| {
            if layer.read_piece(guest, piece, &mut scratch.buffers)? {
                return Ok(());
            }
            if let Some(parent) = disk.layer(depth + 1) {
                layer.check_parent(parent)?;
            }
            read_below(disk, depth, guest, piece, scratch)
        },
    )
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

/// Calls `read` with each piece of `into`, which is to be filled with the guest's bytes from `guest` on. `piece_bytes`
/// returns the number of bytes from an offset on that can be read at once, at least 1.
///
/// # Errors
/// `read` fails.
#[inline]
fn each_piece(
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
