//! The builder of an image, and its operations on clusters.

mod bitmaps;
pub mod census;
pub mod compressed;
mod file;
pub mod mapped;
mod snapshots;
mod tables;

use crate::disk::clusters::{ClusterSize, GuestCluster, HostCluster, SUBCLUSTERS};
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};
use crate::images::content::WriteNumber;
use crate::images::content::unstamped::UnstampedData;
use crate::images::limits::Limits;

use super::encoding::{Sizes, Subclusters};
use super::placement::{Placement, Policy};
use super::plan::{ImagePlan, MAX_SIZE_BYTES};
use super::state::{Bitmaps, FileState, Given, L1, PayloadEnd, Snapshots, TablePlace};
use super::tables::{ClusterMapping, Extended, L2Tables, TableId};

/// The largest number of clusters that stay free after a far gap, for later clusters.
const ROOM_AFTER_FAR_GAP: u64 = 1 << 20;

/// A builder of images. All buffers are reused from image to image.
#[derive(Debug)]
pub struct Builder {
    pub(super) plan: ImagePlan,
    pub(super) limits: Limits,
    pub(super) placement: Placement,
    pub(super) tables: L2Tables,
    pub(super) active: L1,
    pub(super) snapshots: Snapshots,
    pub(super) bitmaps: Bitmaps,
    pub(super) payload_end: Option<PayloadEnd>,
    /// Some cluster was written compressed.
    pub(super) has_compressed: bool,
    pub(super) file: FileState,
    /// Strings and payloads from the bytes of the program.
    pub(super) given: Given,
    /// The data without stamps, by the index in their writes.
    pub(super) unstamped: Vec<UnstampedData>,
    /// A buffer for entries that an operation is about to remove.
    pub(super) touched: Vec<(u64, ClusterMapping)>,
}

impl Builder {
    /// Creates a builder without an image; call [`Builder::begin`].
    pub fn new() -> Self {
        let geometry = Geometry {
            version: Version::V3,
            cluster_size: ClusterSize::SMALLEST,
            refcount_order: 4,
            extended_l2: false,
            compression: Compression::Deflate,
            data_file: false,
        };
        let plan = ImagePlan::new(geometry, 0);
        Self {
            plan,
            limits: Limits::WALKED,
            placement: Placement::default(),
            tables: L2Tables::default(),
            active: L1::default(),
            snapshots: Snapshots::default(),
            bitmaps: Bitmaps::default(),
            payload_end: None,
            has_compressed: false,
            file: FileState::default(),
            given: Given::default(),
            unstamped: Vec::new(),
            touched: Vec::new(),
        }
    }

    /// Begins an empty image. A size that `limits` does not allow is cut.
    pub fn begin(&mut self, plan: ImagePlan, limits: Limits) {
        self.plan = plan;
        self.limits = limits;
        self.plan.size_bytes = self.possible_size_bytes(plan.size_bytes);
        let file_clusters = limits.file_clusters(&plan.geometry).min(self.named_clusters());
        self.placement.reset(plan.rng_seed, file_clusters);
        self.tables.clear();
        self.active.clear();
        self.snapshots.clear();
        self.bitmaps.clear();
        (self.payload_end, self.has_compressed) = (None, false);
        self.file = FileState::default();
        self.given.clear();
        self.unstamped.clear();
        self.placement.allocate(1, Policy::Append);
        // The file has room for an L1 table of every size that `limits` allows.
        let entries = plan.geometry.l1_entries_for(self.plan.size_bytes);
        let grown = self.grow_l1(entries);
        debug_assert!(grown);
    }

    /// Returns the size of the largest disk that the geometry and the limits allow: a full L1 table, and less than
    /// 2^63. With a data file, an entry's 56 bits of offset are a bound, too.
    pub fn max_size_bytes(&self) -> u64 {
        let geometry = &self.plan.geometry;
        let entries = self.limits.l1_entries(geometry);
        let largest = u128::from(entries) * u128::from(geometry.l2_span_bytes());
        let bound = if geometry.data_file { 1 << 56 } else { MAX_SIZE_BYTES };
        let bound = bound.min(geometry.cluster_size.saturating_bytes(self.max_guest_clusters()));
        u64::try_from(largest).unwrap_or(u64::MAX).min(bound)
    }

    /// Returns the size that is nearest to `size_bytes` of those that a disk can have.
    pub(super) fn possible_size_bytes(&self, size_bytes: u64) -> u64 {
        size_bytes.min(self.max_size_bytes()).max(self.plan.file.min_size_bytes)
    }

    /// Returns the number of guest clusters for which the tables of the file's format have room.
    pub(super) fn max_guest_clusters(&self) -> u64 {
        self.plan.file.places.map_or(u64::MAX, |places| places.guest_clusters)
    }

    /// Returns the number of clusters that a file with a far gap may have.
    fn far_clusters(&self) -> u64 {
        Limits::far_clusters(&self.plan.geometry).min(self.named_clusters())
    }

    /// Returns the number of host clusters that the tables of the file's format can name.
    fn named_clusters(&self) -> u64 {
        self.plan.file.places.map_or(u64::MAX, |places| places.host_clusters)
    }

    /// Returns the plan of the image. Its size follows resizes.
    pub fn plan(&self) -> &ImagePlan {
        &self.plan
    }

    /// Returns the number of guest clusters of the disk. The last one may be cut.
    pub fn guest_clusters(&self) -> u64 {
        self.plan.geometry.cluster_size.clusters_for(self.plan.size_bytes)
    }

    /// Selects the place of later clusters.
    pub fn set_policy(&mut self, policy: Policy) {
        self.placement.policy = policy;
    }

    /// Leaves `clusters` clusters free at the end of the file.
    pub fn leave_gap(&mut self, clusters: u64) {
        self.placement.leave_gap(clusters);
    }

    /// Leaves `clusters` clusters free at the end of the file, which may then be as long as the format allows. Returns
    /// false if nothing changed.
    pub fn leave_far_gap(&mut self, clusters: u64) -> bool {
        let gap = self.far_gap(clusters);
        if gap > 0 {
            self.placement.leave_far_gap(gap, self.far_clusters());
        }
        gap > 0
    }

    /// Returns the length in clusters of a far gap of `clusters`, which is cut so that the file keeps room.
    pub fn far_gap(&self, clusters: u64) -> u64 {
        let limit = self.far_clusters();
        let kept = ROOM_AFTER_FAR_GAP.min(limit / 4);
        clusters.min((limit - kept).saturating_sub(self.placement.append_at()))
    }

    /// Writes a whole cluster, in place if it is allocated and not shared.
    ///
    /// Returns its host offset, or `None` if the file is full and nothing changed.
    #[inline]
    pub fn write(&mut self, cluster: GuestCluster, write: WriteNumber) -> Option<HostOffset> {
        let (table, index) = self.table_for_change(cluster)?;
        let old = self.tables.get(table, index);
        let host = match self.own_host(old) {
            Some(host) => host,
            None => {
                let host = self.allocate_cluster(cluster)?;
                self.release(old);
                host
            }
        };
        let entry = self.data_entry(host, write);
        self.tables.set(table, index, entry);
        Some(host)
    }

    /// Makes a whole cluster read as zeros. With `keep`, its host cluster stays allocated. A version 2 image has no
    /// zero clusters.
    ///
    /// Returns `None` if nothing changed, and otherwise the host cluster that stays allocated, if there is one.
    pub fn zero(&mut self, cluster: GuestCluster, keep: bool) -> Option<Option<HostOffset>> {
        if self.plan.geometry.version == Version::V2 {
            return None;
        }
        let (table, index) = self.table_for_change(cluster)?;
        let old = self.tables.get(table, index);
        let (kept, writes) = match old {
            // An offset of 0, which a data file has, would mean that there is no host cluster.
            ClusterMapping::Zero(Some(host)) | ClusterMapping::Normal(host, _)
                if keep && host != HostOffset::ZERO =>
            {
                (Some(host), Default::default())
            }
            ClusterMapping::Extended(Extended { host: Some(host), writes, .. }) if keep => {
                (Some(host), writes)
            }
            _ => {
                self.release(old);
                (None, Default::default())
            }
        };
        let entry = if self.plan.geometry.extended_l2 {
            ClusterMapping::Extended(Extended { host: kept, bitmap: Subclusters::ALL_ZERO, writes })
        } else {
            ClusterMapping::Zero(kept)
        };
        self.tables.set(table, index, entry);
        Some(kept)
    }

    /// Makes a whole cluster unallocated. Returns false if nothing changed.
    pub fn discard(&mut self, cluster: GuestCluster) -> bool {
        let Some((table, index)) = self.find(cluster) else {
            return false;
        };
        if self.tables.get(table, index) == ClusterMapping::Unallocated {
            return false;
        }
        let Some((table, index)) = self.table_for_change(cluster) else {
            return false;
        };
        let old = self.tables.get(table, index);
        self.release(old);
        self.tables.set(table, index, ClusterMapping::Unallocated);
        true
    }

    /// Returns the entry of a cluster whose data in `host` all come from one write.
    #[inline]
    pub(super) fn data_entry(&mut self, host: HostOffset, write: WriteNumber) -> ClusterMapping {
        if self.plan.geometry.extended_l2 {
            let writes = self.tables.add_writes();
            *self.tables.writes_mut(writes) = [write; SUBCLUSTERS as usize];
            let bitmap = Subclusters::ALL_ALLOCATED;
            ClusterMapping::Extended(Extended { host: Some(host), bitmap, writes })
        } else {
            ClusterMapping::Normal(host, write)
        }
    }

    /// Returns the host cluster of an entry if data can be written to it in place.
    #[inline]
    pub(super) fn own_host(&self, entry: ClusterMapping) -> Option<HostOffset> {
        let host = match entry {
            ClusterMapping::Zero(host) => host?,
            ClusterMapping::Normal(host, _) => host,
            ClusterMapping::Extended(extended) => extended.host?,
            ClusterMapping::Unallocated | ClusterMapping::Compressed(_) => return None,
        };
        (self.host_references(host) == 1).then_some(host)
    }

    /// Returns a host cluster for the data of `cluster`. In a data file, that is the cluster reserved for it.
    #[inline]
    pub(super) fn allocate_cluster(&mut self, cluster: GuestCluster) -> Option<HostOffset> {
        if self.plan.geometry.data_file {
            let guest = self.plan.geometry.cluster_size.guest_offset(cluster);
            return Some(HostOffset::new(guest.get()));
        }
        let first = self.placement.allocate(1, self.placement.policy)?;
        Some(self.host_offset(first))
    }

    /// Allocates an empty L2 table.
    #[inline]
    pub(super) fn add_table(&mut self) -> Option<TableId> {
        let host = self.placement.allocate(1, self.placement.policy)?;
        Some(self.tables.add(HostCluster::new(host)))
    }

    /// Allocates a place for a table of `length_bytes`, and frees the `old` one. A place is the first cluster and the
    /// number of clusters, which are 0 for an empty table. Returns `None` if the file is full and nothing was freed.
    pub(super) fn replace_place(
        &mut self,
        old: TablePlace,
        length_bytes: u64,
    ) -> Option<TablePlace> {
        let clusters = self.plan.geometry.cluster_size.clusters_for(length_bytes);
        let first = match clusters {
            0 => 0,
            _ => self.placement.allocate(clusters, self.placement.policy)?,
        };
        self.free_place(old);
        Some((first, clusters))
    }

    pub(super) fn free_place(&mut self, (first, clusters): TablePlace) {
        if clusters > 0 {
            self.placement.clusters.free(first, clusters);
        }
    }

    #[inline]
    pub(super) fn host_offset(&self, cluster: u64) -> HostOffset {
        self.plan.geometry.cluster_size.host_offset(HostCluster::new(cluster))
    }

    #[inline]
    pub(super) fn host_references(&self, host: HostOffset) -> u64 {
        // Only snapshots share data clusters, and an image with a data file has none.
        if self.snapshots.is_empty() {
            return 1;
        }
        let cluster = self.plan.geometry.cluster_size.host_cluster(host);
        self.placement.clusters.references(cluster.get())
    }

    /// Returns the clusters of the file that an entry references.
    pub(super) fn referenced(&self, entry: ClusterMapping) -> std::ops::Range<u64> {
        if self.plan.geometry.data_file {
            return 0..0;
        }
        let cluster_size = self.plan.geometry.cluster_size;
        let of = |host: HostOffset| cluster_size.host_cluster(host).get();
        match entry {
            ClusterMapping::Normal(host, _) | ClusterMapping::Zero(Some(host)) => {
                of(host)..of(host) + 1
            }
            ClusterMapping::Extended(Extended { host: Some(host), .. }) => of(host)..of(host) + 1,
            ClusterMapping::Compressed(run) => {
                let last = run.offset + (u64::from(run.length_bytes) - 1);
                of(run.offset)..of(last) + 1
            }
            ClusterMapping::Unallocated
            | ClusterMapping::Zero(None)
            | ClusterMapping::Extended(_) => 0..0,
        }
    }

    pub(super) fn release(&mut self, entry: ClusterMapping) {
        for cluster in self.referenced(entry) {
            self.release_cluster(cluster);
        }
    }

    pub(super) fn release_cluster(&mut self, cluster: u64) {
        let left = self.placement.clusters.drop_reference(cluster);
        if left == 0 && self.payload_end.is_some_and(|end| end.cluster == cluster) {
            // The cluster may be used again for anything.
            self.payload_end = None;
        }
    }

    /// Returns the table that maps `cluster`, and the entry's index in it.
    #[inline]
    pub(super) fn find(&self, cluster: GuestCluster) -> Option<(TableId, u64)> {
        let (l1_index, index) = self.indexes(cluster);
        Some((self.active.get(l1_index)?, index))
    }

    /// Returns a cluster's index in the L1 table, and its index in the L2 table.
    #[inline]
    pub(super) fn indexes(&self, cluster: GuestCluster) -> (u64, u64) {
        let geometry = &self.plan.geometry;
        (cluster.get() >> geometry.l2_bits(), cluster.get() & (geometry.l2_entries() - 1))
    }

    /// Returns the same for a change: this allocates a missing table, and copies a shared one.
    #[inline]
    pub(super) fn table_for_change(&mut self, cluster: GuestCluster) -> Option<(TableId, u64)> {
        let (l1_index, index) = self.indexes(cluster);
        let table = match self.active.get(l1_index) {
            Some(table) if self.table_is_shared(table) => {
                let host = self.placement.allocate(1, self.placement.policy)?;
                let copy = self.tables.copy(table, HostCluster::new(host));
                self.placement.clusters.drop_reference(self.tables.host(table).get());
                self.active.set(l1_index, copy);
                copy
            }
            Some(table) => table,
            None => {
                let table = self.add_table()?;
                self.active.set(l1_index, table);
                table
            }
        };
        Some((table, index))
    }

    pub(super) fn table_is_shared(&self, table: TableId) -> bool {
        !self.snapshots.is_empty()
            && self.placement.clusters.references(self.tables.host(table).get()) > 1
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}
