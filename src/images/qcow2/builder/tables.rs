//! Changes to the tables of the active disk: the growth of the L1 table, resizes of the disk, the release of tables,
//! and subclusters under extended L2.

use crate::disk::clusters::{GuestCluster, SubclusterRange};
use crate::disk::offsets::HostOffset;
use crate::images::content::SubclusterChange;
use crate::images::qcow2::encoding::{Sizes, Subclusters};
use crate::images::qcow2::tables::{ClusterMapping, Extended, TableId};

use super::Builder;

impl Builder {
    /// Gives the active L1 table room for `entries`. Returns false if the file is full.
    pub fn grow_l1(&mut self, entries: u64) -> bool {
        let clusters = self.plan.geometry.cluster_size.clusters_for(entries * 8);
        if clusters > self.active.place.1 {
            let Some(place) = self.replace_place(self.active.place, entries * 8) else {
                return false;
            };
            self.active.place = place;
        }
        self.active.entries = self.active.entries.max(entries);
        true
    }

    /// Changes the size of the disk, and discards clusters past the end of a smaller disk. The L1 table grows if
    /// necessary, and never shrinks.
    ///
    /// Returns the new size, which the limits may have cut. Returns `None` if the file is full, a snapshot forbids
    /// it, or the limits do not allow a bitmap that long.
    pub fn resize(&mut self, size_bytes: u64) -> Option<u64> {
        let size_bytes = self.possible_size_bytes(size_bytes);
        if !self.may_resize(size_bytes) || !self.bitmaps_allow(size_bytes) {
            return None;
        }
        if !self.grow_l1(self.plan.geometry.l1_entries_for(size_bytes)) {
            return None;
        }
        let new_clusters = self.plan.geometry.cluster_size.clusters_for(size_bytes);
        if let Some(first) = self.discarded_from(new_clusters)
            && !self.discard_from(first)
        {
            return None;
        }
        self.file.beyond = false;
        // VM state after the old disk must not become a part of the new one.
        self.drop_vm_state();
        self.plan.size_bytes = size_bytes;
        self.resize_bitmaps();
        Some(size_bytes)
    }

    /// Discards all guest clusters from `first` on. Returns false if the file is full and nothing changed.
    fn discard_from(&mut self, first: u64) -> bool {
        let entries = self.plan.geometry.l2_entries();
        let keep = first.div_ceil(entries);
        if !first.is_multiple_of(entries)
            && self.active.get(first / entries).is_some()
            && !self.discard_end_of_table(GuestCluster::new(first))
        {
            return false;
        }
        self.release_tables_from(self.active.tables.partition_point(|(index, _)| *index < keep));
        true
    }

    /// Discards the entries of one table from `first` on.
    fn discard_end_of_table(&mut self, first: GuestCluster) -> bool {
        let Some((table, from)) = self.table_for_change(first) else {
            return false;
        };
        let mut touched = std::mem::take(&mut self.touched);
        for (page_first, page) in self.tables.pages(table) {
            let entries = (page_first..).zip(page);
            touched
                .extend(entries.filter(|(index, _)| *index >= from).map(|(n, entry)| (n, *entry)));
        }
        for (index, entry) in touched.drain(..) {
            self.release(entry);
            self.tables.set(table, index, ClusterMapping::Unallocated);
        }
        self.touched = touched;
        true
    }

    /// Releases the active disk's tables, except the first `kept`.
    pub fn release_tables_from(&mut self, kept: usize) {
        for at in kept..self.active.tables.len() {
            self.release_table(self.active.tables[at].1);
        }
        self.active.tables.truncate(kept);
    }

    /// Removes one reference from a table and from everything that it references.
    pub fn release_table(&mut self, table: TableId) {
        self.for_each_entry(table, Self::release);
        self.release_cluster(self.tables.host(table).get());
    }

    /// Calls `change` with each entry of a table.
    pub fn for_each_entry(
        &mut self,
        table: TableId,
        mut change: impl FnMut(&mut Self, ClusterMapping),
    ) {
        // The tables are taken out for this loop: `change` counts references and uses no table.
        let tables = std::mem::take(&mut self.tables);
        for (_, page) in tables.pages(table) {
            for entry in page.iter().filter(|entry| **entry != ClusterMapping::Unallocated) {
                change(self, *entry);
            }
        }
        self.tables = tables;
    }
}

impl Builder {
    /// Changes subclusters of a cluster. A cluster without a host cluster gets one if data are written; a shared host
    /// cluster is copied first. Compressed clusters do not change.
    ///
    /// Returns the host cluster after the change, if any, or `None` if nothing changed.
    pub fn change_subclusters(
        &mut self,
        cluster: GuestCluster,
        range: SubclusterRange,
        change: SubclusterChange,
    ) -> Option<Option<HostOffset>> {
        if !self.plan.geometry.extended_l2 {
            return None;
        }
        let (table, index) = self.table_for_change(cluster)?;
        let old = match self.tables.get(table, index) {
            ClusterMapping::Unallocated => Extended::default(),
            ClusterMapping::Extended(extended) => extended,
            ClusterMapping::Zero(_)
            | ClusterMapping::Normal(..)
            | ClusterMapping::Compressed(_) => return None,
        };
        let (allocated, zero) = (old.bitmap.allocated, old.bitmap.zero);
        let mask = range.mask();
        let new = match change {
            SubclusterChange::Write(write) => {
                let mut owned = self.with_own_host(cluster, old)?;
                let writes = self.tables.writes_mut(owned.writes);
                range.iter().for_each(|subcluster| writes[subcluster as usize] = write);
                owned.bitmap = Subclusters { allocated: allocated | mask, zero: zero & !mask };
                owned
            }
            SubclusterChange::Zero => Extended {
                bitmap: Subclusters { allocated: allocated & !mask, zero: zero | mask },
                ..old
            },
            SubclusterChange::Unallocate => Extended {
                bitmap: Subclusters { allocated: allocated & !mask, zero: zero & !mask },
                ..old
            },
        };
        self.tables.set(table, index, ClusterMapping::Extended(new));
        Some(new.host)
    }

    /// Returns the entry with a host cluster that no other entry references. It has the data of the old one.
    fn with_own_host(&mut self, cluster: GuestCluster, old: Extended) -> Option<Extended> {
        if self.own_host(ClusterMapping::Extended(old)).is_some() {
            return Some(old);
        }
        let host = self.allocate_cluster(cluster)?;
        let writes = self.tables.add_writes();
        if old.host.is_some() {
            *self.tables.writes_mut(writes) = *self.tables.writes(old.writes);
        }
        self.release(ClusterMapping::Extended(old));
        Some(Extended { host: Some(host), writes, ..old })
    }
}
