//! `lookup`: the mapping of one guest byte, by a direct path through the tables. What one L2 entry
//! means is said here, for it and for the walk.

use crate::extent::Mapping;
use crate::qcow2::entry::{ClusterKind, L1Entry, L2Entry, SubclusterBitmap};
use crate::qcow2::header::Geometry;
use crate::qcow2::units::{GuestOffset, HostOffset};
use crate::storage::Storage;

use super::{Disk, MapError};

/// The mapping of the byte at `guest`; its `offset` is that of the byte itself.
///
/// # Errors
/// A byte past the end of the disk, a malformed entry on the way, or a failing read.
pub fn lookup<S: Storage + ?Sized>(
    disk: &Disk<S>,
    guest: GuestOffset,
) -> Result<Mapping, MapError> {
    let Some((entry, bitmap)) = l2_entry(disk, guest)? else { return Ok(Mapping::HOLE) };
    let geometry = disk.geometry();
    let inside = guest.get() & geometry.cluster_size.mask();
    let host = match checked_kind(entry, geometry, guest.get())? {
        ClusterKind::Subclusters(host) => Some(host),
        ClusterKind::UnallocatedSubclusters => None,
        kind => {
            let mapping = mapping_of(kind);
            return Ok(mapping.advanced(inside).unwrap_or(mapping));
        }
    };
    check_bitmap(bitmap, host, guest.get())?;
    let subcluster = (inside >> geometry.cell_bits()) as u32;
    Ok(subcluster_mapping(bitmap, host, subcluster, inside))
}

/// The L2 entry of the cluster that holds `guest`, with its bitmap (0 where there is none); `None`
/// where there is no L2 table.
pub(super) fn l2_entry<S: Storage + ?Sized>(
    disk: &Disk<S>,
    guest: GuestOffset,
) -> Result<Option<(L2Entry, SubclusterBitmap)>, MapError> {
    let virtual_size = disk.virtual_size_bytes();
    if guest.get() >= virtual_size {
        return Err(MapError::PastEnd { guest: guest.get(), virtual_size });
    }
    let geometry = disk.geometry();
    let mut word = [0; 8];
    let l1_index = guest.get() >> geometry.l2_span_bits();
    disk.storage.read_at(disk.header().l1_offset.saturating_add(l1_index * 8), &mut word)?;
    let Some(table) = L1Entry(u64::from_be_bytes(word)).table() else { return Ok(None) };
    if table.get() & geometry.cluster_size.mask() != 0 {
        return Err(unaligned("L2 table", guest.get(), table));
    }
    let l2_index = geometry.cluster_size.guest_cluster(guest).get() & (geometry.l2_entries() - 1);
    let at = table.saturating_add(l2_index * geometry.l2_entry_bytes());
    let mut entry = [0; 16];
    let length = if geometry.extended_l2 { 16 } else { 8 };
    disk.storage.read_at(at, &mut entry[..length])?;
    let [word, bitmap] = *entry.as_chunks::<8>().0 else { return Ok(None) };
    let bitmap = SubclusterBitmap(u64::from_be_bytes(bitmap));
    Ok(Some((L2Entry(u64::from_be_bytes(word)), bitmap)))
}

/// What an entry says, with its host offset checked. `guest` is who asked.
#[inline]
pub(super) fn checked_kind(
    entry: L2Entry,
    geometry: &Geometry,
    guest: u64,
) -> Result<ClusterKind, MapError> {
    let kind = entry.kind(geometry).map_err(|what| MapError::InvalidEntry { guest, what })?;
    match kind {
        ClusterKind::ZeroAllocated(host)
        | ClusterKind::Normal(host)
        | ClusterKind::Subclusters(host)
            if host.get() & geometry.cluster_size.mask() != 0 =>
        {
            Err(unaligned("cluster", guest, host))
        }
        kind => Ok(kind),
    }
}

/// The mapping of the first byte of a cluster for which no bitmap tells.
#[inline]
pub(super) fn mapping_of(kind: ClusterKind) -> Mapping {
    let allocated = Mapping { present: true, ..Mapping::HOLE };
    match kind {
        ClusterKind::Unallocated
        | ClusterKind::Subclusters(_)
        | ClusterKind::UnallocatedSubclusters => Mapping::HOLE,
        ClusterKind::ZeroPlain => allocated,
        // The canary, a planted bug that the fuzzer must find (README, "Find a bug in five minutes").
        ClusterKind::ZeroAllocated(_) if cfg!(qcowfuzz_canary) => allocated,
        ClusterKind::ZeroAllocated(host) => Mapping { offset: Some(host), ..allocated },
        ClusterKind::Normal(host) => {
            Mapping { zero: false, data: true, offset: Some(host), ..allocated }
        }
        ClusterKind::Compressed(_) => {
            Mapping { zero: false, data: true, compressed: true, ..allocated }
        }
    }
}

/// The mapping `delta_bytes` into an extended cluster, which lie in its subcluster `subcluster`.
#[inline]
pub(super) fn subcluster_mapping(
    bitmap: SubclusterBitmap,
    host: Option<HostOffset>,
    subcluster: u32,
    delta_bytes: u64,
) -> Mapping {
    let bit = 1 << subcluster;
    let offset = host.map(|host| host.saturating_add(delta_bytes));
    let data = bitmap.allocated() & bit != 0;
    let present = data || bitmap.zero() & bit != 0;
    Mapping { depth: 0, present, zero: !data, data, compressed: false, offset }
}

/// Checks a bitmap against itself; `guest` is who asked.
#[inline]
pub(super) fn check_bitmap(
    bitmap: SubclusterBitmap,
    host: Option<HostOffset>,
    guest: u64,
) -> Result<(), MapError> {
    match bitmap.contradiction(host.is_some()) {
        None => Ok(()),
        Some(what) => Err(MapError::InvalidEntry { guest, what }),
    }
}

pub(super) fn unaligned(structure: &'static str, guest: u64, host: HostOffset) -> MapError {
    MapError::Unaligned { structure, guest, host: host.get() }
}
