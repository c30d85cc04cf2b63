//! The references of L1 and L2 tables, of the snapshot table and of bitmaps, and the faults of their entries.

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{BitmapCluster, BitmapTableEntry, BitmapsExtension};
use crate::formats::qcow2::check::ImageCheck;
use crate::formats::qcow2::check::cluster_counts::Role;
use crate::formats::qcow2::constants::{MAX_FILE_BYTES, SNAPSHOT_V3_EXTRA_BYTES as V3_EXTRA_BYTES};
use crate::formats::qcow2::entry::{
    ClusterKind, CompressedRun, L1Entry, L2Entry, SubclusterBitmap,
};
use crate::formats::qcow2::geometry::{Geometry, Version};
use crate::formats::qcow2::snapshot::SnapshotEntry;
use crate::formats::qcow2::table::{HostTable, TableEntry};
use crate::formats::qcow2::{bitmap, snapshot};

/// Bits 0–8 and 56–62 of an L1 entry.
const L1_RESERVED: u64 = 0x7F00_0000_0000_01FF;
/// Bits 1–8 and 56–61 of an L2 entry that is not compressed.
const L2_RESERVED: u64 = 0x3F00_0000_0000_01FE;

/// Returns the host cluster of an entry that is not compressed. As in QEMU's check, the zero flag has the same meaning
/// in both versions.
pub(super) fn allocation(entry: L2Entry, geometry: &Geometry) -> Option<HostOffset> {
    entry.kind(&Geometry { version: Version::V3, ..*geometry }).ok().and_then(host_cluster)
}

fn host_cluster(kind: ClusterKind) -> Option<HostOffset> {
    match kind {
        ClusterKind::Normal(host)
        | ClusterKind::ZeroAllocated(host)
        | ClusterKind::Subclusters(host) => Some(host),
        _ => None,
    }
}

/// The place of an L2 table in the check.
struct L2Table {
    /// It belongs to the active disk.
    is_active: bool,
    /// The host offset at which the next cluster would be contiguous.
    next: Option<HostOffset>,
}

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Checks an L1 table and its L2 tables.
    ///
    /// # Errors
    /// The table lies past the end of the longest file, a read fails, or the image is too large.
    pub(super) fn l1(&mut self, table: HostTable, is_active: bool) -> Result<(), MapError> {
        self.reference(table.start, table.length_bytes, Role::L1Table);
        let mut l2_piece = vec![0; PIECE_BYTES];
        let storage = self.storage;
        let _ = table.each_entry(storage, &mut vec![0; PIECE_BYTES], |TableEntry { at, word, .. }| {
            if word & L1_RESERVED != 0 {
                self.findings.corruption(format_args!(
                    "L1 entry {word:#x} at host offset {at}: reserved bits are set"
                ));
            }
            // As in QEMU, an entry of reserved bits alone names the first cluster.
            let l2 = L1Entry(word).table().unwrap_or(HostOffset::ZERO);
            self.reference(l2, self.cluster_bytes(), Role::L2Table);
            if self.is_unaligned(l2) {
                self.findings.corruption(format_args!(
                    "L1 entry {word:#x} at host offset {at}: the L2 table is not on a cluster boundary"
                ));
            }
            self.l2(l2, is_active, &mut l2_piece)?;
            self.check_bound()?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    fn l2(&mut self, at: HostOffset, is_active: bool, piece: &mut [u8]) -> Result<(), MapError> {
        let mut table = L2Table { is_active, next: None };
        let (storage, entries) = (self.storage, HostTable::l2(self.geometry(), at));
        let _ = entries.each_entry(storage, piece, |TableEntry { at, word, second, .. }| {
            // Standard entries have no bitmap.
            self.l2_entry(&mut table, at, word, SubclusterBitmap(second.unwrap_or(0)));
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    fn l2_entry(
        &mut self,
        table: &mut L2Table,
        at: HostOffset,
        word: u64,
        bitmap: SubclusterBitmap,
    ) {
        let entry = L2Entry(word);
        let host = match entry.kind(self.geometry()) {
            Ok(ClusterKind::Compressed(run)) => {
                return self.compressed(table, at, word, bitmap, run);
            }
            Ok(kind) => host_cluster(kind),
            Err(what) => {
                self.l2_fault(at, word, what);
                allocation(entry, self.geometry())
            }
        };
        if word & L2_RESERVED != 0 {
            self.l2_fault(at, word, "reserved bits are set");
        }
        if self.geometry().extended_l2
            && let Some(what) = bitmap.contradiction(host.is_some())
        {
            self.l2_fault(at, word, what);
        }
        let Some(host) = host else { return };
        if self.is_unaligned(host) {
            self.l2_fault(at, word, "the cluster is not on a cluster boundary");
        }
        if table.is_active {
            self.guest.allocated += 1;
            self.guest.fragmented += u64::from(table.next.is_some_and(|next| next != host));
            table.next = host.checked_add(self.cluster_bytes());
        }
        if !self.geometry().data_file {
            self.reference(host, self.cluster_bytes(), Role::Data);
        }
    }

    fn compressed(
        &mut self,
        table: &L2Table,
        at: HostOffset,
        word: u64,
        bitmap: SubclusterBitmap,
        run: CompressedRun,
    ) {
        if L2Entry(word).copied() {
            self.l2_fault(at, word, "a compressed cluster is flagged as copied");
        }
        if self.geometry().data_file {
            return self.l2_fault(at, word, "a compressed cluster in an image with a data file");
        }
        if bitmap != SubclusterBitmap::default() {
            return self.l2_fault(at, word, "a compressed cluster has a subcluster bitmap");
        }
        self.reference(run.offset, run.length_bytes(), Role::Compressed);
        if table.is_active {
            self.guest.allocated += 1;
            self.guest.compressed += 1;
            self.guest.fragmented += 1;
        }
    }

    fn l2_fault(&mut self, at: HostOffset, word: u64, what: &str) {
        self.findings.corruption(format_args!("L2 entry {word:#x} at host offset {at}: {what}"));
    }

    /// Checks the snapshot table and the tables of the snapshots.
    ///
    /// # Errors
    /// QEMU cannot read the snapshot table or an L1 table, a read fails, or the image is too large.
    pub(super) fn snapshots(&mut self) -> Result<(), MapError> {
        let (storage, header) = (self.storage, self.header);
        if self.geometry().data_file && header.snapshots > 0 {
            let snapshots = header.snapshots;
            self.findings
                .corruption(format_args!("{snapshots} snapshots in an image with a data file"));
        }
        let length =
            snapshot::each_entry(storage, header, |index, _, entry| self.snapshot(index, entry))?;
        self.reference(header.snapshots_offset, length, Role::SnapshotTable);
        Ok(())
    }

    fn snapshot(&mut self, index: u32, entry: &SnapshotEntry) -> Result<(), MapError> {
        let short = self.geometry().version == Version::V3 && entry.extra_bytes < V3_EXTRA_BYTES;
        if short {
            self.findings
                .corruption(format_args!("snapshot {index}: less than 16 bytes of extra data"));
        }
        if let Some(what) = entry.l1_fault(self.geometry().cluster_size) {
            self.findings.corruption(format_args!("snapshot {index}: {what}"));
            return Ok(());
        }
        let table = HostTable::snapshot_l1(entry);
        if table.length_bytes > 0 && table.range().end.get() > MAX_FILE_BYTES {
            let what = "its L1 table lies past the end of the longest file";
            return Err(MapError::Snapshot { index, what });
        }
        self.l1(table, false)
    }
}

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Adds the references of the directory, of the tables and of the bits. The bitmaps have passed the checks that
    /// QEMU makes when it opens the image.
    ///
    /// # Errors
    /// A table of a bitmap in use is damaged, a read fails, or the image is too large. As in QEMU, the check ends
    /// there.
    pub(super) fn bitmaps(&mut self, extension: &BitmapsExtension) -> Result<(), MapError> {
        let (storage, cluster_size) = (self.storage, self.geometry().cluster_size);
        let BitmapsExtension { directory_bytes, directory_offset, .. } = *extension;
        self.reference(directory_offset, directory_bytes, Role::BitmapDirectory);
        let (mut entries_left, mut piece) = (self.bounds.references, vec![0; PIECE_BYTES]);
        bitmap::each_entry(storage, extension, |index, _, entry| {
            let table = HostTable::bitmap(entry);
            self.reference(table.start, table.length_bytes, Role::BitmapTable);
            // Many bitmaps may name one table.
            let too_large = MapError::TooLarge("too many entries of bitmap tables");
            entries_left = entries_left.checked_sub(entry.table_entries.into()).ok_or(too_large)?;
            let _ = table.each_entry(storage, &mut piece, |entry| {
                let cluster = BitmapTableEntry(entry.word).cluster(cluster_size);
                let cluster = cluster.map_err(|what| MapError::Bitmap { index, what })?;
                if let BitmapCluster::Data(host) = cluster {
                    self.reference(host, cluster_size.bytes(), Role::BitmapData);
                }
                Ok::<_, MapError>(ControlFlow::Continue(()))
            })?;
            self.check_bound()
        })
    }
}
