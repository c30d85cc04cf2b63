//! `read`: guest data, through the mapping.

use crate::qcow2::entry::ClusterKind;
use crate::qcow2::units::{GuestOffset, HostOffset};
use crate::storage::Storage;

use super::lookup::{check_bitmap, checked_kind, l2_entry, subcluster_mapping};
use super::{Disk, MapError, Scratch};

/// Fills `into` with the guest's bytes from `guest` on. Of a compressed cluster, as much is inflated
/// as it takes: damage behind that is not noticed.
///
/// # Errors
/// Bytes past the end of the disk, a malformed entry, data that do not inflate, or a failing read;
/// `into` may then hold anything.
pub fn read<S: Storage + ?Sized>(
    disk: &Disk<S>,
    guest: GuestOffset,
    into: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), MapError> {
    let virtual_size = disk.virtual_size_bytes();
    let past_end = MapError::PastEnd { guest: guest.get(), virtual_size };
    let end = guest.checked_add(into.len() as u64).ok_or(past_end.clone())?;
    if end.get() > virtual_size {
        return Err(past_end);
    }
    let cell = disk.geometry().cell_bytes();
    let mut left = into;
    let mut guest = guest;
    while !left.is_empty() {
        let until_edge = cell - (guest.get() & (cell - 1));
        let length = usize::try_from(until_edge).unwrap_or(usize::MAX).min(left.len());
        let (piece, rest) = left.split_at_mut(length);
        read_piece(disk, guest, piece, scratch)?;
        guest = guest.saturating_add(length as u64);
        left = rest;
    }
    Ok(())
}

/// Reads what lies in one cell.
fn read_piece<S: Storage + ?Sized>(
    disk: &Disk<S>,
    guest: GuestOffset,
    into: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), MapError> {
    let Some((entry, bitmap)) = l2_entry(disk, guest)? else {
        into.fill(0);
        return Ok(());
    };
    let geometry = disk.geometry();
    let inside = guest.get() & geometry.cluster_size.mask();
    let host: Option<HostOffset> = match checked_kind(entry, geometry, guest.get())? {
        ClusterKind::Unallocated | ClusterKind::ZeroPlain | ClusterKind::ZeroAllocated(_) => None,
        ClusterKind::Normal(host) => Some(host.saturating_add(inside)),
        ClusterKind::Compressed(run) => {
            let first = guest.get() - inside;
            let end = inside as usize + into.len();
            let content = scratch
                .inflater
                .inflate(disk.storage, geometry, run, end)
                .map_err(|error| error.at(first))?;
            into.copy_from_slice(&content[inside as usize..]);
            return Ok(());
        }
        ClusterKind::UnallocatedSubclusters => {
            check_bitmap(bitmap, None, guest.get())?;
            None
        }
        ClusterKind::Subclusters(host) => {
            check_bitmap(bitmap, Some(host), guest.get())?;
            let subcluster = (inside >> geometry.cell_bits()) as u32;
            let mapping = subcluster_mapping(bitmap, Some(host), subcluster, inside);
            mapping.offset.filter(|_| mapping.data)
        }
    };
    match host {
        Some(host) => disk.storage.read_at(host, into)?,
        None => into.fill(0),
    }
    Ok(())
}
