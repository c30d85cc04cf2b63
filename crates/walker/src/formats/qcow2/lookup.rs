//! The mapping of one guest byte. This file defines the meaning of an L2 entry for look-ups and for the walk.

use crate::disk::extent::Mapping;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, SubclusterBitmap};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::layout::Layout;

use super::open::Qcow2;
use crate::formats::error::MapError;

/// Returns the L2 entry of the cluster that holds `guest`, with its bitmap (0 if there is none); `None` if there is no
/// L2 table. The byte lies before the layer's end.
pub(super) fn l2_entry<S: Storage + ?Sized>(
    layer: &Qcow2<S>,
    guest: GuestOffset,
) -> Result<Option<(L2Entry, SubclusterBitmap)>, MapError> {
    let cluster = layer.geometry().cluster_size.guest_cluster(guest);
    layer.latest.l2.get_or_read(cluster, || read_l2_entry(layer, guest))
}

fn read_l2_entry<S: Storage + ?Sized>(
    layer: &Qcow2<S>,
    guest: GuestOffset,
) -> Result<Option<(L2Entry, SubclusterBitmap)>, MapError> {
    let geometry = layer.geometry();
    let mut word = [0; 8];
    let l1_index = guest.get() >> geometry.l2_span_bits();
    // The table of a snapshot may be too short for the disk; see `use_table_of_snapshot`.
    if l1_index >= layer.header.l1_entries.into() {
        return Ok(None);
    }
    let table = layer.latest.l1.get_or_read(l1_index, || {
        layer.image.read_at(layer.header.l1_offset + l1_index * 8, &mut word)?;
        Ok(L1Entry(u64::from_be_bytes(word)).table())
    })?;
    let Some(table) = table else { return Ok(None) };
    if !geometry.cluster_size.is_aligned(table) {
        return Err(unaligned("L2 table", guest, table));
    }
    let l2_index = geometry.cluster_size.guest_cluster(guest).get() & (geometry.l2_entries() - 1);
    let at = table + l2_index * geometry.l2_entry_bytes();
    let mut entry = [0; 16];
    let length = if geometry.extended_l2 { 16 } else { 8 };
    layer.image.read_at(at, &mut entry[..length])?;
    let [word, bitmap] = *entry.as_chunks::<8>().0 else { return Ok(None) };
    let bitmap = SubclusterBitmap(u64::from_be_bytes(bitmap));
    Ok(Some((L2Entry(u64::from_be_bytes(word)), bitmap)))
}

/// Returns the kind of an entry, with its host offset checked. Errors name the guest offset `guest`.
#[inline]
pub(super) fn checked_kind(
    entry: L2Entry,
    geometry: &Geometry,
    guest: GuestOffset,
) -> Result<ClusterKind, MapError> {
    let kind = entry.kind(geometry).map_err(|what| MapError::InvalidEntry { guest, what })?;
    match kind {
        ClusterKind::ZeroAllocated(host)
        | ClusterKind::Normal(host)
        | ClusterKind::Subclusters(host) => {
            if !geometry.cluster_size.is_aligned(host) {
                return Err(unaligned("cluster", guest, host));
            }
            if geometry.data_file && host.get() != geometry.cluster_size.cluster_start(guest).get()
            {
                let what = "the cluster's place in the data file is not its guest offset";
                return Err(MapError::InvalidEntry { guest, what });
            }
        }
        ClusterKind::Compressed(_) if geometry.data_file => {
            let what = "a compressed cluster in an image with a data file";
            return Err(MapError::InvalidEntry { guest, what });
        }
        _ => {}
    }
    Ok(kind)
}

/// Returns the mapping of the first byte of a cluster without a subcluster bitmap.
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

/// Returns the mapping `delta_bytes` into an extended cluster, which is in its subcluster `subcluster`.
#[inline]
pub(super) fn subcluster_mapping(
    bitmap: SubclusterBitmap,
    host: Option<HostOffset>,
    subcluster: u32,
    delta_bytes: u64,
) -> Mapping {
    let bit = 1 << subcluster;
    let offset = host.map(|host| host + delta_bytes);
    let data = bitmap.allocated() & bit != 0;
    let present = data || bitmap.zero() & bit != 0;
    Mapping { depth: 0, present, zero: !data, data, compressed: false, offset }
}

/// Checks a bitmap for contradictions. Errors name the guest offset `guest`.
#[inline]
pub(super) fn check_bitmap(
    bitmap: SubclusterBitmap,
    host: Option<HostOffset>,
    guest: GuestOffset,
) -> Result<(), MapError> {
    match bitmap.contradiction(host.is_some()) {
        None => Ok(()),
        Some(what) => Err(MapError::InvalidEntry { guest, what }),
    }
}

pub(super) fn unaligned(structure: &'static str, guest: GuestOffset, host: HostOffset) -> MapError {
    MapError::Unaligned { structure, guest, host }
}
