//! What there is of a file beyond what its disk holds: how it ends, allocations that nobody has written
//! to, tables that are larger than they must be, clusters past the end of the disk.

use crate::images::qcow2::encoding::sizes::Sizes;
use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::qcow2::units::GuestCluster;
use crate::images::content::WriteNumber;
use crate::images::image::Image;

use super::builder::Builder;
use super::placement::Placement;
use super::state::{FileEnd, FileState};
use super::tables::{Entry, Extended};

/// The garbage at either edge of a tail; between them there is nothing.
const GARBAGE: [u8; 64] = [0x5A; 64];

impl Builder {
    /// Decides how the file ends; the tail lies behind the last cluster where `end` says what it is of.
    pub fn end_file(&mut self, end: FileEnd, tail_bytes: u64) {
        (self.file.end, self.file.tail_bytes) = (end, tail_bytes);
    }

    /// Makes the refcount table `table_clusters` clusters longer than it must be, and the L1 table
    /// `l1_entries` longer than it is; false where neither changed anything.
    pub fn spare(&mut self, table_clusters: u64, l1_entries: u64) -> bool {
        let old = std::mem::replace(&mut self.plan.refcounts.spare, table_clusters);
        let entries = self.active.entries.saturating_add(l1_entries);
        let entries = entries.min(self.limits.l1_entries(&self.plan.geometry));
        let more = entries > self.active.entries && self.grow_l1(entries);
        more || old != table_clusters
    }

    /// Allocates a cluster without writing to it. What has a host cluster or is compressed is left
    /// alone.
    ///
    /// Returns where it lies; `None` where nothing was done.
    pub fn preallocate(&mut self, cluster: GuestCluster) -> Option<HostOffset> {
        let vacant = |entry| {
            let extended = matches!(entry, Entry::Extended(Extended { host: None, .. }));
            extended || matches!(entry, Entry::Unallocated | Entry::Zero(None))
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

    /// Clusters past the end of the disk that its L1 table has room for: those of the last L2 table
    /// that the disk needs where `table` is 0, else those of the `table`-th one behind it. It is folded
    /// over what there is; `None` where there is nothing, and where the data lie in another file, which
    /// ends with the disk.
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
            _ => Some(in_last).filter(|room| !room.is_empty()),
        }
    }

    /// Notes that something was put past the end of the disk: it has to go before the disk grows over
    /// it.
    pub fn note_beyond(&mut self) {
        self.file.beyond = true;
    }

    /// From which cluster on all is to be discarded when the disk gets a size of `new_clusters`.
    ///
    /// QEMU does not look at what lies past the end of a disk that it makes larger: the guest would see
    /// it (tried with 10.0.2). A writer that put it there discards it first.
    pub(super) fn discarded_from(&self, new_clusters: u64) -> Option<u64> {
        let old_clusters = self.guest_clusters();
        let any = self.file.beyond || new_clusters < old_clusters;
        any.then(|| new_clusters.min(old_clusters))
    }

    /// Ends the writing of an image for which `placement` is what is allocated.
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
                // As long as what is written; a byte of the last cluster has to be there.
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
