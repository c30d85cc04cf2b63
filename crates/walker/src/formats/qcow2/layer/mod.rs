//! An open qcow2 image, its snapshots, whether its data are looked for in holes of its file, and the L2 entry of one
//! guest byte with its meaning, which look-ups and the walk share. The image keeps the last table entries that were
//! read, because a guest mostly reads on from there.

pub(super) mod inflate;
mod kept;
pub(super) mod walk;

use std::cell::Cell;
use std::ops::ControlFlow;

use crate::disk::clusters::GuestCluster;
use crate::disk::extent::Mapping;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::whole_sectors;
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, Layout, SubclusterBitmap};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot::SnapshotEntry;
use crate::formats::qcow2::{entry, snapshot};

/// A layer that is a qcow2 image.
#[derive(Debug)]
pub(crate) struct Qcow2<'s, S: Storage + ?Sized> {
    pub(super) image: &'s S,
    /// The storage of guest data: the image itself, or its external data file. `None` if the data file is not
    /// available.
    pub(super) data: Option<&'s S>,
    pub(crate) header: Header,
    /// See [`Qcow2::look_for_host_holes`].
    pub(super) has_host_holes: bool,
    /// The last table entries that were read through `header`. They must be reset when `header` changes.
    pub(super) latest: LatestEntries,
}

impl<'s, S: Storage + ?Sized> Qcow2<'s, S> {
    /// Changes to the header that `of` returns for the host offset and the fixed part of the snapshot at `index`.
    pub(super) fn change_header(
        &mut self,
        index: u32,
        of: impl Fn(&Self, HostOffset, &SnapshotEntry) -> Result<Header, MapError>,
    ) -> Result<(), MapError> {
        let mut found = Err(MapError::Snapshot { index, what: "there is no such snapshot" });
        snapshot::each_entry(self.image, &self.header, |at_index, at, entry| {
            if at_index == index {
                found = of(self, at, entry);
            }
            Ok(())
        })?;
        self.header = found?;
        self.latest = LatestEntries::default();
        Ok(())
    }

    /// Returns the header that the image would have if the snapshot were its disk.
    pub(super) fn snapshot_header(
        &self,
        index: u32,
        at: HostOffset,
        entry: &SnapshotEntry,
    ) -> Result<Header, MapError> {
        let geometry = self.geometry();
        let extra = snapshot::extra_of(self.image, at, entry)?;
        let size_bytes = extra.disk_bytes.unwrap_or(self.header.virtual_size_bytes());
        let fault = if size_bytes >= 1 << 63 {
            Some("the size of its disk is 2^63 or more")
        } else if u64::from(entry.l1_entries) < geometry.l1_entries_for(size_bytes) {
            Some("the L1 table is too short for the size of its disk")
        } else {
            entry.l1_fault(geometry.cluster_size)
        };
        match fault {
            Some(what) => Err(MapError::Snapshot { index, what }),
            None => {
                let (l1_offset, l1_entries) = (entry.l1_offset, entry.l1_entries);
                Ok(Header { size_bytes, l1_offset, l1_entries, ..self.header.clone() })
            }
        }
    }

    /// Returns the geometry, which decides the meaning of the tables.
    #[inline]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.header.geometry
    }
}

/// An L2 entry and its bitmap (0 if there is none); `None` if there is no L2 table.
type LatestL2Entry = Option<(L2Entry, SubclusterBitmap)>;

/// The last L1 entry and the last L2 entry that were read from an open image.
#[derive(Debug, Default)]
pub(super) struct LatestEntries {
    /// An index into the L1 table, and the L2 table that its entry names.
    l1: Latest<u64, Option<HostOffset>>,
    l2: Latest<GuestCluster, LatestL2Entry>,
}

/// The last value that was read, with its position.
#[derive(Debug)]
struct Latest<K: Copy, V: Copy>(Cell<Option<(K, V)>>);

impl<K: Copy, V: Copy> Default for Latest<K, V> {
    fn default() -> Self {
        Self(Cell::new(None))
    }
}

impl<K: Copy + PartialEq, V: Copy> Latest<K, V> {
    /// Returns the value at `key`. If it is not the latest, `read` reads it; a failed read changes nothing.
    #[inline]
    fn get_or_read(
        &self,
        key: K,
        read: impl FnOnce() -> Result<V, MapError>,
    ) -> Result<V, MapError> {
        match self.0.get() {
            Some((at, value)) if at == key => Ok(value),
            _ => {
                let value = read()?;
                self.0.set(Some((key, value)));
                Ok(value)
            }
        }
    }
}

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
        // The canary, a planted bug that the fuzzer must find (docs/crash.md, "No crash yet?").
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

/// Returns the mapping of the byte that lies `delta_bytes` into a cluster with an extended L2 entry. `subcluster` is
/// the subcluster that holds the byte.
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

/// Returns the mapping of the guest byte at `guest`, by the kind and the bitmap of its cluster.
#[inline]
pub(super) fn mapping_at(
    kind: ClusterKind,
    bitmap: SubclusterBitmap,
    geometry: &Geometry,
    guest: GuestOffset,
) -> Result<Mapping, MapError> {
    let inside = geometry.cluster_size.inside(guest);
    let host = match kind {
        ClusterKind::Subclusters(host) => Some(host),
        ClusterKind::UnallocatedSubclusters => None,
        kind => {
            let mapping = mapping_of(kind);
            return Ok(mapping.advanced(inside).unwrap_or(mapping));
        }
    };
    check_bitmap(bitmap, host, guest)?;
    let subcluster = (inside >> geometry.cell_bits()) as u32;
    Ok(subcluster_mapping(bitmap, host, subcluster, inside))
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

impl<S: Storage + ?Sized> Qcow2<'_, S> {
    /// Decides whether data are looked for in holes of the file. QEMU asks the file system only if the file takes far
    /// less space than the refcounts say, because most images have no such holes, and asking takes time (QEMU
    /// `block/qcow2-refcount.c`, `qcow2_detect_metadata_preallocation`). As in QEMU, an error means no.
    pub(super) fn look_for_host_holes(&mut self) {
        let cluster_bytes = self.geometry().cluster_size.bytes();
        self.has_host_holes = self.image.allocated_bytes().is_some_and(|allocated_bytes| {
            let allocated = allocated_bytes / cluster_bytes;
            // More clusters in use than are allocated, by a ninth or by two.
            let enough = (allocated.saturating_mul(10) / 9).max(allocated.saturating_add(2));
            let clusters = whole_sectors(self.image.length_bytes()).div_ceil(cluster_bytes);
            self.uses_clusters(enough, clusters).unwrap_or(false)
        });
    }

    /// Reports whether `enough` of the first clusters of the file, `clusters` of them, have a refcount above 0.
    fn uses_clusters(&self, enough: u64, clusters: u64) -> Result<bool, MapError> {
        let cluster_size = self.geometry().cluster_size;
        let per_block = cluster_size.saturating_bytes(8) >> self.geometry().refcount_order;
        let table_bytes = cluster_size.saturating_bytes(self.header.refcount_table_clusters.into());
        let blocks = clusters.div_ceil(per_block).min(table_bytes / 8);
        let (mut scratch, mut block_scratch) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        let (image, table) = (self.image, self.header.refcount_table_offset);
        let mut used = 0;
        let flow = each_entries(image, table, 0..blocks, &mut scratch, |entries| -> Flow {
            let Entries::Read(first, entries) = entries else {
                return Ok(ControlFlow::Continue(()));
            };
            for (index, entry) in (first..).zip(entries) {
                let Some(block) = entry::refcount_block_offset(u64::from_be_bytes(*entry)) else {
                    continue;
                };
                if !cluster_size.is_aligned(block) {
                    let what = "is not on a cluster boundary";
                    return Err(MapError::RefcountBlock { index, host: block, what });
                }
                let counts = clusters.saturating_sub(index.saturating_mul(per_block));
                let counts = counts.min(per_block);
                used = self.used_in_block(block, counts, enough - used, &mut block_scratch)? + used;
                if used >= enough {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(flow.is_break())
    }

    /// Returns how many of the first `counts` of a refcount block are above 0. Stops at `enough`.
    fn used_in_block(
        &self,
        block: HostOffset,
        counts: u64,
        enough: u64,
        scratch: &mut [u8],
    ) -> Result<u64, MapError> {
        let order = self.geometry().refcount_order;
        let words = (counts << order).div_ceil(64);
        let per_word = 64 >> order;
        let mut used: u64 = 0;
        let _ = each_entries(
            self.image,
            block,
            0..words,
            scratch,
            |entries: Entries<'_, 8>| -> Flow {
                let Entries::Read(first_word, words) = entries else {
                    return Ok(ControlFlow::Continue(()));
                };
                let left = counts.saturating_sub(first_word.saturating_mul(per_word));
                entry::each_refcount_run(words.as_flattened(), order, |first, length, _| {
                    used = used.saturating_add(left.saturating_sub(first).min(length));
                });
                Ok(match used >= enough {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            },
        )?;
        Ok(used)
    }
}
