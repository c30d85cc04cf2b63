//! `lookup`: the mapping of one guest byte, by a direct path through the tables.
//!
//! # Arithmetic
//! A chain has 64 layers at most, so that every depth fits.

use crate::disk::extent::Mapping;
use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::at_depth;
use crate::formats::error::MapError;

use super::disk::Disk;

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
