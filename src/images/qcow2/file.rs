//! The parts of a file beyond the disk's content: its end, allocations without a write, tables that are longer than
//! necessary, and clusters past the end of the disk.

use crate::images::qcow2::encoding::sizes::Sizes;
use std::ops::Range;

use crate::disk::clusters::GuestCluster;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::images::content::WriteNumber;
use crate::images::image::Image;

use super::builder::Builder;
use super::placement::Placement;
use super::refcounts::SpareBlocks;
use super::state::{FileEnd, FileState};
use super::tables::{ClusterMapping, Extended};

/// The garbage at both edges of a tail. The middle is a hole.
const GARBAGE: [u8; 64] = [0x5A; 64];

impl Builder {
    /// Selects the end of the file. A tail follows the last cluster if `end` has a content for it.
    pub fn end_file(&mut self, end: FileEnd, tail_bytes: u64) {
        (self.file.end, self.file.tail_bytes) = (end, tail_bytes);
    }

    /// Makes the refcount table `table_clusters` clusters longer than necessary, and the L1 table `l1_entries` longer
    /// than now. Returns false if nothing changed.
    pub fn spare(&mut self, table_clusters: u64, l1_entries: u64) -> bool {
        let old = std::mem::replace(&mut self.plan.refcounts.spare, table_clusters);
        let entries = self.active.entries.saturating_add(l1_entries);
        let entries = entries.min(self.limits.l1_entries(&self.plan.geometry));
        let more = entries > self.active.entries && self.grow_l1(entries);
        more || old != table_clusters
    }

    /// Selects the refcount blocks that count nothing. Returns false if nothing changed.
    pub fn spare_blocks(&mut self, wanted: SpareBlocks) -> bool {
        std::mem::replace(&mut self.plan.refcounts.spare_blocks, wanted) != wanted
    }

    /// Allocates a cluster without writing to it. Skips a cluster that has a host cluster or is compressed.
    ///
    /// Returns the host offset, or `None` if nothing changed.
    pub fn preallocate(&mut self, cluster: GuestCluster) -> Option<HostOffset> {
        let vacant = |entry| {
            let extended = matches!(entry, ClusterMapping::Extended(Extended { host: None, .. }));
            extended || matches!(entry, ClusterMapping::Unallocated | ClusterMapping::Zero(None))
        };
        if let Some((table, index)) = self.find(cluster)
            && !vacant(self.tables.get(table, index))
        {
            return None;
        }
        let (table, index) = self.table_for_change(cluster)?;
        let host = self.allocate_cluster(cluster)?;
        let entry = self.data_entry(host, WriteNumber::NONE);
        self.tables.set(table, index, entry);
        Some(host)
    }

    /// Returns the clusters past the end of the disk that one L2 table can map: the last table that the disk needs if
    /// `table` is 0, otherwise the `table`-th one after it, modulo the tables for which the L1 table has room.
    /// Returns `None` if there is no such cluster, or if the image has a data file, which ends with the disk.
    pub fn beyond(&self, table: u64) -> Option<Range<u64>> {
        if self.plan.geometry.data_file {
            return None;
        }
        let per_table = self.plan.geometry.l2_entries();
        let disk = self.guest_clusters();
        let needed = disk.div_ceil(per_table);
        let further = self.active.entries.saturating_sub(needed);
        let in_last = disk..needed.saturating_mul(per_table);
        let folded = table.checked_sub(1).or(in_last.is_empty().then_some(0));
        match folded {
            Some(index) if further > 0 => {
                let table = needed + index % further;
                Some(table * per_table..(table + 1) * per_table)
            }
            _ => Some(in_last),
        }
        .map(|room| room.start..room.end.min(self.max_guest_clusters()))
        .filter(|room| !room.is_empty())
    }

    /// Records that clusters past the end of the disk exist. They must be discarded before the disk grows over them.
    pub fn note_beyond(&mut self) {
        self.file.beyond = true;
    }

    /// Reports whether tables may map clusters past the end of the disk.
    pub fn has_beyond(&self) -> bool {
        self.file.beyond
    }

    /// Returns the first cluster to discard when the disk gets `new_clusters`.
    ///
    /// QEMU does not discard clusters past the end of a disk that it makes larger, so the guest would see them (tried
    /// with 10.0.2). The writer that put them there discards them first.
    pub(super) fn discarded_from(&self, new_clusters: u64) -> Option<u64> {
        let old_clusters = self.guest_clusters();
        let any = self.file.beyond || new_clusters < old_clusters;
        any.then(|| new_clusters.min(old_clusters))
    }

    /// Ends the writing of an image whose allocations are in `placement`.
    pub(super) fn seal(&self, image: &mut Image, placement: &Placement) {
        let cluster_size = self.plan.geometry.cluster_size;
        let end = cluster_size.saturating_bytes(placement.clusters.end());
        let FileState { end: wanted, tail_bytes, .. } = self.file;
        let length = match wanted {
            FileEnd::Cluster => end,
            FileEnd::Zeros => end.saturating_add(tail_bytes),
            FileEnd::Garbage => {
                let length = end.saturating_add(tail_bytes);
                let edge = (GARBAGE.len() as u64).min(tail_bytes / 2);
                if edge > 0 {
                    image.write(HostOffset::new(end), &GARBAGE[..edge as usize]);
                    image.write(HostOffset::new(length - edge), &GARBAGE[..edge as usize]);
                }
                length
            }
            FileEnd::Sector | FileEnd::Content => {
                let last = self.host_offset(placement.clusters.end().saturating_sub(1)).get();
                // As long as the written bytes. At least one byte of the last cluster must be in the file.
                image.seal(last + 1);
                match wanted {
                    FileEnd::Sector => image.length_bytes().next_multiple_of(512),
                    _ => image.length_bytes(),
                }
            }
        };
        image.seal(length);
    }
}
