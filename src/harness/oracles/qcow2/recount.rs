//! The recount: refcounts computed from the bytes of an image alone. It reads every structure, records every reference,
//! and compares the counts with those on disk. It serves images in the loop and files of any size, because its memory
//! depends on the number of references and not on the file's size.

use std::ops::ControlFlow;

use crate::base::limits::MAX_RECOUNTED;
use crate::disk::clusters::HostCluster;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{
    BitmapCluster, BitmapEntry, BitmapTableEntry, BitmapsExtension,
};
use crate::formats::qcow2::check::cluster_counts::ClusterCounts;
pub use crate::formats::qcow2::check::cluster_counts::{
    Occupied, RefcountFault, RefcountReport, Role,
};
use crate::formats::qcow2::constants::MAX_FILE_BYTES;
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, Layout};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::HostTable;
use crate::formats::qcow2::{bitmap, entry, snapshot};

/// A recount of images. All buffers are reused.
#[derive(Debug)]
pub struct Recount {
    clusters: ClusterCounts,
    tables: [Vec<u8>; 2],
    head: Option<Head>,
    /// The bytes of the active L1 and L2 tables, without holes.
    active_table_bytes: u64,
    /// The bytes of all snapshots' L1 and L2 tables, without holes.
    snapshot_table_bytes: u64,
    /// The entries of bitmap tables that were read. Most of them reference nothing.
    bitmap_entries: usize,
    /// The file's end in clusters, rounded up.
    file_clusters: u64,
}

impl Recount {
    /// Creates an empty recount.
    pub fn new() -> Self {
        Self::bounded(MAX_RECOUNTED)
    }

    /// Creates a recount that keeps at most `bound` references, counts or reports. An image that needs more is an
    /// error.
    pub fn bounded(bound: usize) -> Self {
        Self {
            clusters: ClusterCounts::bounded(bound),
            tables: [vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]],
            head: None,
            active_table_bytes: 0,
            bitmap_entries: 0,
            snapshot_table_bytes: 0,
            file_clusters: 0,
        }
    }

    /// Recounts the image in `storage`, and returns the findings: overlaps, counts, and flags, each in the
    /// order of their clusters.
    ///
    /// # Errors
    /// The header, the snapshot table, the bitmap directory or an entry is malformed, or a read failed.
    pub fn recount<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
    ) -> Result<&[RefcountReport], MapError> {
        self.clusters.clear();
        (self.active_table_bytes, self.snapshot_table_bytes) = (0, 0);
        (self.bitmap_entries, self.file_clusters) = (0, 0);
        self.head = None;
        let head = Head::read(storage)?;
        let header = &head.header;
        let geometry = header.geometry;
        self.file_clusters = geometry.cluster_size.clusters_for(storage.length_bytes());
        self.reference(&geometry, HostOffset::ZERO, 1, Role::Header);
        self.l1(storage, &geometry, HostTable::active_l1(header), true)?;
        self.snapshots(storage, header)?;
        if let Some(extension) = &head.bitmaps {
            self.bitmaps(storage, header, extension)?;
        }
        self.counts(storage, header)?;
        self.head = Some(head);
        self.clusters.add_up()?;
        self.clusters.compare();
        Ok(self.clusters.reports())
    }

    /// Reads a table piece by piece, without its holes, and passes each piece on with its place in the table. While
    /// `take` works, other tables are read on another `level`.
    fn each_piece<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        table: HostTable,
        level: usize,
        mut take: impl FnMut(&mut Self, u64, &[u8]) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let mut piece = std::mem::take(&mut self.tables[level]);
        let all = table.each_piece(storage, &mut piece, |skipped, bytes| {
            take(self, skipped, bytes).map(|()| ControlFlow::Continue(()))
        });
        self.tables[level] = piece;
        all.map(|_| ())
    }

    /// Returns the findings of the last recount.
    pub fn reports(&self) -> &[RefcountReport] {
        self.clusters.reports()
    }

    /// Returns the number of references to a cluster of the image that was recounted last.
    pub fn references(&self, cluster: HostCluster) -> u64 {
        self.clusters.computed(cluster.get())
    }

    /// Returns the head of the image that was recounted last.
    pub fn take_head(&mut self) -> Option<Head> {
        self.head.take()
    }

    /// Returns the bytes of the active L1 and L2 tables, without holes.
    pub fn active_table_bytes(&self) -> u64 {
        self.active_table_bytes
    }

    /// Returns the bytes of the L1 and L2 tables of all snapshots. A shared table counts for each snapshot.
    pub fn snapshot_table_bytes(&self) -> u64 {
        self.snapshot_table_bytes
    }

    /// Returns all clusters of the image of the last recount that have a reference or a count, in the order of the
    /// file.
    pub fn occupied(&self) -> Vec<Occupied> {
        self.clusters.occupied()
    }

    /// Returns the references to clusters past the end of the file. As in `qemu-img check`, up to one cluster may be
    /// missing; of compressed data, everything after the first cluster.
    pub fn past_end(&self) -> impl Iterator<Item = (Role, std::ops::Range<HostCluster>)> {
        let end = self.file_clusters;
        self.clusters.references().iter().filter_map(move |reference| {
            let past = match reference.role {
                Role::Compressed => reference.first >= end,
                _ => reference.end > end,
            };
            let clusters = HostCluster::new(reference.first)..HostCluster::new(reference.end);
            past.then_some((reference.role, clusters))
        })
    }
}

impl Default for Recount {
    fn default() -> Self {
        Self::new()
    }
}

impl Recount {
    pub(super) fn reference(
        &mut self,
        geometry: &Geometry,
        at: HostOffset,
        length_bytes: u64,
        role: Role,
    ) {
        self.reference_copied(geometry, at, length_bytes, role, None);
    }

    #[inline]
    fn reference_copied(
        &mut self,
        geometry: &Geometry,
        at: HostOffset,
        length_bytes: u64,
        role: Role,
        copied: Option<bool>,
    ) {
        if length_bytes == 0 {
            return;
        }
        let first = geometry.cluster_size.host_cluster(at).get();
        // Headers and entries name offsets below 2^63, and no structure is longer than 2^33 bytes.
        let last = at + (length_bytes - 1);
        let end = geometry.cluster_size.host_cluster(last).get() + 1;
        self.clusters.reference(first, end, role, copied);
    }

    pub(super) fn l1<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        table: HostTable,
        active: bool,
    ) -> Result<(), MapError> {
        let (entries, cluster) = (table.length_bytes / 8, geometry.cluster_size.bytes());
        self.reference(geometry, table.start, table.length_bytes, Role::L1Table);
        self.each_piece(storage, table, 0, |recount, skipped, piece| {
            recount.add_table_bytes(active, piece);
            for (index, bytes) in (skipped / 8..).zip(piece.as_chunks::<8>().0) {
                let entry = L1Entry(u64::from_be_bytes(*bytes));
                if let Some(l2) = entry.table().filter(|_| index < entries) {
                    let copied = active.then_some(entry.copied());
                    recount.reference_copied(geometry, l2, cluster, Role::L2Table, copied);
                    recount.l2(storage, geometry, l2, active)?;
                    recount.check_bound()?;
                }
            }
            Ok(())
        })
    }

    fn add_table_bytes(&mut self, active: bool, bytes: &[u8]) {
        let sum =
            if active { &mut self.active_table_bytes } else { &mut self.snapshot_table_bytes };
        *sum += bytes.len() as u64;
    }

    fn l2<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        table: HostOffset,
        active: bool,
    ) -> Result<(), MapError> {
        let table = HostTable::l2(geometry, table);
        let entry_bytes = table.entry_bytes as usize;
        self.each_piece(storage, table, 1, |recount, _, piece| {
            recount.add_table_bytes(active, piece);
            for bytes in piece.chunks_exact(entry_bytes) {
                let Some(word) = bytes.first_chunk::<8>() else { continue };
                let word = u64::from_be_bytes(*word);
                if word != 0 {
                    recount.entry(geometry, L2Entry(word), active);
                }
            }
            Ok(())
        })
    }

    fn entry(&mut self, geometry: &Geometry, entry: L2Entry, active: bool) {
        // An invalid entry references nothing; the walker reports its fault.
        let (at, length, role) = match entry.kind(geometry) {
            Ok(
                ClusterKind::ZeroAllocated(host)
                | ClusterKind::Normal(host)
                | ClusterKind::Subclusters(host),
            ) => (host, geometry.cluster_size.bytes(), Role::Data),
            Ok(ClusterKind::Compressed(run)) => {
                // Whole sectors, beginning with the one that holds the first byte.
                let first = HostOffset::new(run.offset.get() & !511);
                (first, (run.additional_sectors + 1) * 512, Role::Compressed)
            }
            _ => return,
        };
        if geometry.data_file {
            self.in_data_file(geometry, at, entry, active && role == Role::Data);
            return;
        }
        // A compressed cluster is never COPIED, for any count.
        let copied = (active && role == Role::Data).then_some(entry.copied());
        self.reference_copied(geometry, at, length, role, copied);
    }

    /// Checks an entry whose cluster lies in a data file. Such a cluster takes no space in the image and belongs to
    /// one guest cluster, so its entry must be COPIED.
    fn in_data_file(&mut self, geometry: &Geometry, at: HostOffset, entry: L2Entry, checked: bool) {
        if checked && !entry.copied() {
            self.clusters.report(RefcountReport {
                finding: RefcountFault::Copied,
                cluster: geometry.cluster_size.host_cluster(at),
                clusters: 1,
                references: 0,
                on_disk: 1,
                role: Some(Role::Data),
            });
        }
    }

    pub(super) fn snapshots<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let length = snapshot::each_entry(storage, header, |index, _, entry| {
            if entry.l1_fault(geometry.cluster_size).is_some() {
                // An invalid L1 table references nothing: `entries` reports the fault.
                return Ok(());
            }
            let table = HostTable::snapshot_l1(entry);
            if table.range().end.get() > MAX_FILE_BYTES {
                let what = "its L1 table lies past the end of the longest file";
                return Err(MapError::Snapshot { index, what });
            }
            self.l1(storage, geometry, table, false)
        })?;
        self.reference(geometry, header.snapshots_offset, length, Role::SnapshotTable);
        Ok(())
    }
}

impl Recount {
    /// Reads the directory and the tables that it names, as QEMU does at open (`bitmap_list_load`). Does not check
    /// that names differ.
    pub(super) fn bitmaps<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
        extension: &BitmapsExtension,
    ) -> Result<(), MapError> {
        let BitmapsExtension { directory_bytes, directory_offset, .. } = *extension;
        let geometry = &header.geometry;
        self.reference(geometry, directory_offset, directory_bytes, Role::BitmapDirectory);
        bitmap::each_entry(storage, extension, |index, _, entry| {
            if let Some(what) = entry.fault(geometry, header.virtual_size_bytes()) {
                return Err(MapError::Bitmap { index, what });
            }
            self.bitmap_table(storage, geometry, entry, index)?;
            self.check_bound()
        })
    }

    fn bitmap_table<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        entry: &BitmapEntry,
        index: u32,
    ) -> Result<(), MapError> {
        let table = HostTable::bitmap(entry);
        self.reference(geometry, table.start, table.length_bytes, Role::BitmapTable);
        self.each_piece(storage, table, 0, |recount, skipped, piece| {
            recount.bitmap_entries += piece.len() / 8;
            for (at, bytes) in (skipped / 8..).zip(piece.as_chunks::<8>().0) {
                if at >= u64::from(entry.table_entries) {
                    break;
                }
                let word = BitmapTableEntry(u64::from_be_bytes(*bytes));
                let cluster = word.cluster(geometry.cluster_size);
                if let BitmapCluster::Data(host) =
                    cluster.map_err(|what| MapError::Bitmap { index, what })?
                {
                    let cluster = geometry.cluster_size.bytes();
                    recount.reference(geometry, host, cluster, Role::BitmapData);
                }
            }
            recount.check_bound()
        })
    }
}

impl Recount {
    /// Reads the counts on disk, block by block.
    pub(super) fn counts<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let table = HostTable::refcounts(header);
        self.reference(geometry, table.start, table.length_bytes, Role::RefcountTable);
        self.each_piece(storage, table, 0, |recount, skipped, piece| {
            for (index, bytes) in (skipped / 8..).zip(piece.as_chunks::<8>().0) {
                if let Some(block) = entry::refcount_block_offset(u64::from_be_bytes(*bytes)) {
                    let cluster = geometry.cluster_size.bytes();
                    // A block that is not on a cluster boundary takes part of two clusters.
                    recount.reference(geometry, block, cluster, Role::RefcountBlock);
                    recount.block(storage, geometry, block, index)?;
                    recount.check_bound()?;
                }
            }
            Ok(())
        })
    }

    fn block<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        block: HostOffset,
        index: u64,
    ) -> Result<(), MapError> {
        let order = geometry.refcount_order;
        // The refcount table has 2^20 entries at most, and a block 2^24.
        let first = index * geometry.refcounts_per_block();
        let block = HostTable::refcount_block(geometry, block);
        self.each_piece(storage, block, 1, |recount, skipped, piece| {
            let skipped = first + ((skipped * 8) >> order);
            entry::each_refcount_run(piece, order, |entry, entries, count| {
                recount.clusters.count(skipped + entry, entries, count);
            });
            Ok(())
        })
    }

    /// Checks the bound of the references, counts and entries of bitmap tables.
    fn check_bound(&self) -> Result<(), MapError> {
        if self.bitmap_entries > self.clusters.bound() {
            return Err(MapError::TooLarge("too many entries of bitmap tables"));
        }
        self.clusters.check_bound()
    }
}

#[cfg(test)]
mod tests {
    use crate::harness::{Harness, Walker};

    use super::*;

    #[test]
    fn one_table_that_is_named_again_and_again_is_too_large() {
        let program = "image version=3 cluster_bits=9 refcount_order=4 features=none \
                       size=1<<24+0 rng_seed=0 blocks=append table=append tolerance=0\n\
                       bitmap granularity=9 flags=auto name=8\n\
                       bitmap granularity=9 flags=auto name=8\n\
                       fill_bitmap index=0 entry=0 entries=8 fill=ones\n\
                       fill_bitmap index=1 entry=0 entries=8 fill=ones\n";
        let program = crate::programs::text::assemble(program).unwrap();
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.encode());
        assert!(Recount::bounded(16).recount(image).is_ok());
        let ones = Recount::bounded(15).recount(image).map(drop);
        assert_eq!(ones, Err(MapError::TooLarge("too many entries of bitmap tables")));
    }
}
