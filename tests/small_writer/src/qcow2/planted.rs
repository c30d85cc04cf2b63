//! The parts of the faults that are more than a condition.

use qcowfuzz::disk::clusters::HostCluster;
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY,
};
use qcowfuzz::formats::qcow2::entry;
use qcowfuzz::formats::qcow2::table::HostTable;

use super::SmallWriter;
use super::tables::WrittenTables;
use crate::{WriteError, WriterFault};

/// The distance from the edges of a cluster at which the fault [`WriterFault::SharedInside`] begins.
const FAR_FROM_EDGES_BYTES: u64 = 1024;

/// The most clusters of a file that the fault [`WriterFault::LeakFreedTooFar`] counts.
const MOST_COUNTED: u64 = 4096;

impl WrittenTables<'_> {
    /// Frees each cluster that has a count and no reference, and the cluster behind it.
    pub(super) fn free_leaks_too_far(&mut self) -> Result<(), WriteError> {
        let clusters = self.cluster_size().host_cluster(self.end()).get();
        let has_others =
            self.header.snapshots > 0 || self.header.autoclear & AUTOCLEAR_BITMAPS != 0;
        if has_others || clusters > MOST_COUNTED {
            return Ok(());
        }
        let used = self.used_clusters(clusters)?;
        for leaked in 1..clusters {
            let (cluster, behind) = (HostCluster::new(leaked), HostCluster::new(leaked + 1));
            let is_used = |it: u64| used.get(it as usize).copied().unwrap_or(false);
            if !is_used(leaked) && is_used(leaked + 1) && self.count(cluster)? > 0 {
                self.set_count(cluster, 0)?;
                self.set_count(behind, 0)?;
            }
        }
        Ok(())
    }

    /// Returns for each cluster whether something refers to it.
    fn used_clusters(&self, clusters: u64) -> Result<Vec<bool>, WriteError> {
        let l1 = HostTable::active_l1(&self.header);
        let references = self.references(l1)?;
        let mut used: Vec<bool> =
            (0..clusters).map(|it| references.to(HostCluster::new(it)) > 0).collect();
        let cluster_size = self.cluster_size();
        let mut mark = |at: HostOffset, clusters: u64| {
            let first = cluster_size.host_cluster(at).get();
            for it in first..first.saturating_add(clusters) {
                used.get_mut(it as usize).into_iter().for_each(|used| *used = true);
            }
        };
        mark(HostOffset::ZERO, 1);
        mark(l1.start, cluster_size.clusters_for(l1.length_bytes));
        let table = HostTable::refcounts(&self.header);
        mark(table.start, cluster_size.clusters_for(table.length_bytes));
        for slot in self.entries(table)? {
            entry::refcount_block_offset(slot.word).into_iter().for_each(|block| mark(block, 1));
        }
        Ok(used)
    }
}

impl SmallWriter<'_> {
    /// Carries out what some faults do after a write.
    pub(super) fn plant_after_write(
        &mut self,
        guest: GuestOffset,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        let marks = self.planted_marks();
        if marks != 0 {
            self.tables.set_marks(marks)?;
        }
        if self.tables.has(WriterFault::NeighbourStored) {
            self.store_neighbour(guest + bytes.len() as u64)?;
        }
        let middle = bytes.len() / 2;
        match bytes.get(middle) {
            Some(byte) if self.tables.has(WriterFault::MiddleWrong) => {
                let at = guest + middle as u64;
                self.write_piece(at.get(), &[!byte], &mut None)
            }
            _ => Ok(()),
        }
    }

    /// Returns the bits by which some faults mark an image while they write to it.
    fn planted_marks(&self) -> u64 {
        let has = |fault| self.tables.has(fault);
        match has(WriterFault::DirtyStays) || has(WriterFault::DirtyWhileOpen) {
            true => INCOMPATIBLE_DIRTY,
            false if has(WriterFault::CorruptStays) => INCOMPATIBLE_CORRUPT,
            false => 0,
        }
    }

    /// Stores the cluster behind the one of the byte before `end`, as it is.
    fn store_neighbour(&mut self, end: GuestOffset) -> Result<(), WriteError> {
        let cluster = self.tables.cluster_size().bytes();
        let next = end.get().div_ceil(cluster).saturating_mul(cluster);
        if next >= self.virtual_size_bytes() {
            return Ok(());
        }
        let mut byte = [0];
        self.read(GuestOffset::new(next), &mut byte)?;
        self.write_piece(next, &byte, &mut None)
    }

    /// Reports whether bytes of a cluster are so far from its edges that the oracles do not read these for them.
    pub(super) fn is_far_inside(&self, inside: u64, length: usize) -> bool {
        let behind = inside.saturating_add(length as u64).saturating_add(FAR_FROM_EDGES_BYTES);
        // An entry without a cluster may have the offset 0 of a data file.
        let is_in_image = self.tables.data_file().is_none();
        is_in_image
            && inside >= FAR_FROM_EDGES_BYTES
            && behind <= self.tables.cluster_size().bytes()
    }
}
