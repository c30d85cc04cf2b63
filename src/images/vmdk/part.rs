//! The part of a disk that an extent holds.

use crate::images::qcow2::{Builder, MappedCluster};

use super::encoding::SECTOR_BYTES;

/// The part of a disk that an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskPart {
    /// The index of the first cluster.
    pub first: u64,
    /// The number of clusters, the last of which may be cut.
    pub clusters: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// The number of tables that the disk does not need.
    pub spare_tables: u64,
}

impl DiskPart {
    /// Returns the whole disk.
    pub(super) fn whole(builder: &Builder) -> Self {
        Self {
            first: 0,
            clusters: builder.guest_clusters(),
            sectors: builder.plan().size_bytes / SECTOR_BYTES,
            spare_tables: builder.spare_l1_entries(),
        }
    }

    /// Returns the part from cluster `first` on, of `clusters` clusters at most; `None` for all others.
    pub(super) fn of(builder: &Builder, first: u64, clusters: Option<u64>) -> Self {
        let whole = Self::whole(builder);
        let left = whole.clusters.saturating_sub(first);
        let cluster_sectors = builder.plan().geometry.cluster_size.bytes() / SECTOR_BYTES;
        let before = first.saturating_mul(cluster_sectors);
        let sectors_left = whole.sectors.saturating_sub(before);
        match clusters.filter(|clusters| *clusters < left) {
            Some(clusters) => {
                let sectors = clusters.saturating_mul(cluster_sectors).min(sectors_left);
                Self { first, clusters, sectors, spare_tables: 0 }
            }
            None => Self { first, clusters: left, sectors: sectors_left, ..whole },
        }
    }

    /// Returns the number of clusters that tables must cover: those of the part, and those of `mapped` behind it.
    /// `mapped` has the order of the disk, and no cluster before the part.
    pub(super) fn covered(&self, mapped: &[MappedCluster]) -> u64 {
        let stored = mapped.last().map_or(0, |last| last.cluster.get() + 1 - self.first);
        self.clusters.max(stored)
    }
}
