//! References from L1 and L2 tables, their entries, and the snapshot table.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::constants::MAX_FILE_BYTES;
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot;
use crate::formats::qcow2::table::HostTable;

use super::{Recount, RefcountFault, RefcountReport, Role};

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
