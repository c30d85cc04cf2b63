//! Internal snapshots: L1 tables that share L2 tables and data with the active one.

use crate::qcow2::snapshot::SnapshotEntry;
use crate::qcow2::units::{HostCluster, HostOffset};

use super::Builder;
use super::l1::L1;
use super::tables::Entry;

/// The snapshots of an image, and where their table lies.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    /// The snapshots, and behind them spare ones whose buffers are reused.
    all: Vec<Snapshot>,
    live: usize,
    /// The snapshot table's first cluster and its length; 0 clusters for none.
    pub(super) table_first: u64,
    pub(super) table_clusters: u64,
    /// Snapshots taken so far: ids are not used again.
    taken: u32,
}

#[derive(Debug, Default)]
pub(super) struct Snapshot {
    pub(super) l1: L1,
    /// The disk's size when it was taken.
    pub(super) size_bytes: u64,
    /// Its id, from 1.
    pub(super) number: u32,
}

/// The extra data of version 3: the length of the VM state and the size of the disk.
pub(super) const EXTRA_BYTES: u32 = 16;

impl Snapshot {
    /// The fixed part of its entry. Id and name are the number in decimal.
    pub(super) fn entry(&self, l1_offset: HostOffset) -> SnapshotEntry {
        let digits = self.number.checked_ilog10().unwrap_or(0) as u16 + 1;
        SnapshotEntry {
            l1_offset,
            l1_entries: u32::try_from(self.l1.entries).unwrap_or(u32::MAX),
            id_bytes: digits,
            name_bytes: digits,
            extra_bytes: EXTRA_BYTES,
        }
    }
}

impl Snapshots {
    pub(super) fn clear(&mut self) {
        (self.live, self.table_first, self.table_clusters, self.taken) = (0, 0, 0, 0);
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub(super) fn live(&self) -> &[Snapshot] {
        &self.all[..self.live]
    }

    fn table_bytes(&self) -> u64 {
        self.live().iter().map(|one| one.entry(HostOffset::ZERO).length_bytes()).sum()
    }
}

impl Builder {
    /// How many snapshots there are.
    pub fn snapshot_count(&self) -> usize {
        self.snapshots.live
    }

    /// Takes a snapshot; false where there are too many, a refcount would pass its maximum, the file is full
    /// or the data lie in another one, and nothing was changed.
    pub fn snapshot(&mut self) -> bool {
        if self.snapshots.live >= self.limits.snapshots || self.plan.geometry.data_file {
            return false;
        }
        self.reference_active_tables();
        let max_refcount = self.plan.geometry.max_refcount();
        let runs = self.placement.clusters.runs();
        let countable = runs.iter().all(|run| run.references <= max_refcount);
        if !countable || !self.add_snapshot() {
            self.release_active_tables();
            return false;
        }
        true
    }

    /// Notes the active L1 table as a new snapshot's, and makes room for both it and the longer
    /// snapshot table; false where the file is full.
    fn add_snapshot(&mut self) -> bool {
        let clusters = self.active.clusters;
        let first = match clusters {
            0 => 0,
            _ => match self.placement.allocate(clusters, self.placement.policy) {
                Some(first) => first,
                None => return false,
            },
        };
        if self.snapshots.live == self.snapshots.all.len() {
            self.snapshots.all.push(Snapshot::default());
        }
        let snapshot = &mut self.snapshots.all[self.snapshots.live];
        snapshot.l1.copy_entries(&self.active, first);
        snapshot.size_bytes = self.plan.size_bytes;
        snapshot.number = self.snapshots.taken + 1;
        self.snapshots.live += 1;
        if !self.replace_snapshot_table() {
            self.snapshots.live -= 1;
            if clusters > 0 {
                self.placement.clusters.free(first, clusters);
            }
            return false;
        }
        self.snapshots.taken += 1;
        true
    }

    fn reference_active_tables(&mut self) {
        for at in 0..self.active.tables().len() {
            let (_, table) = self.active.tables()[at];
            self.placement.clusters.add_reference(self.tables.host(table).get());
            self.for_each_entry(table, Self::add_references);
        }
    }

    fn release_active_tables(&mut self) {
        for at in 0..self.active.tables().len() {
            let (_, table) = self.active.tables()[at];
            self.release_table(table);
        }
    }

    /// Deletes the snapshot at `index`; false where there is none or the file is full.
    pub fn delete_snapshot(&mut self, index: usize) -> bool {
        if index >= self.snapshots.live {
            return false;
        }
        self.snapshots.all[index..self.snapshots.live].rotate_left(1);
        self.snapshots.live -= 1;
        if !self.replace_snapshot_table() {
            self.snapshots.live += 1;
            self.snapshots.all[index..self.snapshots.live].rotate_right(1);
            return false;
        }
        let l1 = std::mem::take(&mut self.snapshots.all[self.snapshots.live].l1);
        for (_, table) in l1.tables() {
            self.release_table(*table);
        }
        if l1.clusters > 0 {
            self.placement.clusters.free(l1.first, l1.clusters);
        }
        self.snapshots.all[self.snapshots.live].l1 = l1;
        true
    }

    fn add_references(&mut self, entry: Entry) {
        for cluster in self.referenced(entry) {
            self.placement.clusters.add_reference(cluster);
        }
    }

    /// Allocates a table for the snapshots that there are now, and frees the old one.
    fn replace_snapshot_table(&mut self) -> bool {
        let bytes = self.snapshots.table_bytes();
        let clusters = self.plan.geometry.cluster_size.clusters_for(bytes);
        let first = match clusters {
            0 => 0,
            _ => match self.placement.allocate(clusters, self.placement.policy) {
                Some(first) => first,
                None => return false,
            },
        };
        let old = (self.snapshots.table_first, self.snapshots.table_clusters);
        if old.1 > 0 {
            self.placement.clusters.free(old.0, old.1);
        }
        (self.snapshots.table_first, self.snapshots.table_clusters) = (first, clusters);
        true
    }

    /// Where the snapshot table lies; 0 where there is none.
    pub(super) fn snapshot_table(&self) -> HostOffset {
        match self.snapshots.table_clusters {
            0 => HostOffset::ZERO,
            _ => {
                let first = HostCluster::new(self.snapshots.table_first);
                self.plan.geometry.cluster_size.host_offset(first)
            }
        }
    }
}
