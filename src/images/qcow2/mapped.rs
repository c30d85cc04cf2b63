//! The decisions of the builder, for writers of other formats.

use crate::disk::clusters::GuestCluster;
use crate::disk::offsets::HostOffset;
use crate::images::content::WriteNumber;
use crate::images::image::Image;
use crate::images::qcow2::encoding::sizes::Sizes;

use super::builder::Builder;
use super::tables::ClusterMapping;

/// A guest cluster that is not unallocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedCluster {
    /// The guest cluster, which may lie past the end of the disk.
    pub cluster: GuestCluster,
    /// Its mapping. A writer of another format has a place of its own for the host offset.
    pub mapping: ClusterMapping,
}

impl MappedCluster {
    /// Returns the host offset and the write of a cluster of data.
    pub fn data(&self) -> Option<(HostOffset, WriteNumber)> {
        match self.mapping {
            ClusterMapping::Normal(host, write) => Some((host, write)),
            _ => None,
        }
    }
}

impl Builder {
    /// Fills `into` with the clusters that are not unallocated, in the order of the disk.
    pub fn mapped_clusters(&self, into: &mut Vec<MappedCluster>) {
        into.clear();
        let entries = self.plan.geometry.l2_entries();
        for (l1_index, table) in self.active.tables() {
            for (first, page) in self.tables.pages(*table) {
                for (index, entry) in (first..).zip(page) {
                    if *entry != ClusterMapping::Unallocated {
                        let cluster = GuestCluster::new(l1_index * entries + index);
                        into.push(MappedCluster { cluster, mapping: *entry });
                    }
                }
            }
        }
        into.sort_unstable_by_key(|mapped| mapped.cluster);
    }

    /// Writes the data of a whole cluster to `at`.
    pub fn write_cluster(
        &self,
        image: &mut Image,
        cluster: GuestCluster,
        at: HostOffset,
        write: WriteNumber,
    ) {
        // An allocated cluster without a write reads as zeros.
        if write != WriteNumber::NONE {
            let cluster_size = self.plan.geometry.cluster_size;
            let guest = cluster_size.guest_offset(cluster);
            self.write_whole(image, (guest, at), write);
        }
    }

    /// Returns the number of clusters that a table must cover: those of the disk, and those of `mapped` past its end.
    /// `mapped` has the order of the disk.
    pub fn covered_clusters(&self, mapped: &[MappedCluster]) -> u64 {
        let stored = mapped.last().map_or(0, |last| last.cluster.get() + 1);
        self.guest_clusters().max(stored)
    }

    /// Returns the number of clusters of the file, whose last ones may be free.
    pub fn file_clusters(&self) -> u64 {
        self.placement.append_at()
    }

    /// Returns the number of L1 entries that the disk does not need.
    pub fn spare_l1_entries(&self) -> u64 {
        let needed = self.plan.geometry.l1_entries_for(self.plan.size_bytes);
        self.active.entries.saturating_sub(needed)
    }
}
