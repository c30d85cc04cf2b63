//! How many clusters of the disk are allocated, compressed and fragmented, as `qemu-img check` counts
//! them.

use std::ops::ControlFlow;

use qcowfuzz::extent::{Extent, Window};
use qcowfuzz::map::{Disk, MapError, Scratch, map_extents};
use qcowfuzz::qcow2::header::Geometry;
use qcowfuzz::storage::Storage;

/// The counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestClusters {
    /// All clusters of the disk.
    pub total: u64,
    /// Those with an allocation in the file, be it data or zeros.
    pub allocated: u64,
    /// Those that are compressed.
    pub compressed: u64,
    /// Compressed ones, and those that do not lie right behind the allocation before them.
    pub fragmented: u64,
}

impl GuestClusters {
    /// Counts the clusters of `disk`.
    ///
    /// # Errors
    /// The walk failed.
    pub fn count(disk: &Disk<impl Storage>) -> Result<Self, MapError> {
        let geometry = disk.header().geometry;
        let total = geometry.cluster_size.clusters_for(disk.virtual_size_bytes());
        let mut count = Count { counts: Self { total, ..Self::default() }, last: None };
        let mut visitor = |extent: Extent| {
            count.add(&extent, &geometry);
            ControlFlow::Continue(())
        };
        map_extents(disk, Window::ALL, &mut Scratch::new(), &mut visitor)?;
        Ok(count.counts)
    }
}

struct Count {
    counts: GuestClusters,
    /// The last allocated cluster that is not compressed, and its host cluster.
    last: Option<(u64, u64)>,
}

impl Count {
    fn add(&mut self, extent: &Extent, geometry: &Geometry) {
        let size = geometry.cluster_size;
        let first = size.guest_cluster(extent.start).get();
        let end = size.clusters_for(extent.start.get().saturating_add(extent.length_bytes));
        let clusters = end - first;
        if extent.mapping.compressed {
            self.counts.allocated += clusters;
            self.counts.compressed += clusters;
            self.counts.fragmented += clusters;
            return;
        }
        let Some(host) = extent.mapping.offset else { return };
        let mut host = size.host_cluster(host).get();
        let mut at = first;
        // Subclusters of one cluster are several extents.
        if self.last.is_some_and(|(cluster, _)| cluster == at) {
            (at, host) = (at + 1, host + 1);
        }
        if at >= end {
            return;
        }
        self.counts.allocated += end - at;
        // An extent is contiguous in the file; what comes before it in the same L2 table may not be.
        let table = |cluster: u64| cluster / geometry.l2_entries();
        let torn = self
            .last
            .is_some_and(|(cluster, before)| table(cluster) == table(at) && before + 1 != host);
        self.counts.fragmented += u64::from(torn);
        self.last = Some((end - 1, host + (end - 1 - at)));
    }
}
