//! How a builder's decisions become a file: its format, its variety, and the places of the guest's clusters in it.
//!
//! The builder of qcow2 images decides which clusters are allocated, and in which order they lie in the file. A file of
//! another format follows these decisions. Its table lies elsewhere, and something may lie between its blocks, so each
//! host cluster has another place.

use crate::base::file_parts::{FileParts, MAX_EXTENT_FILES};
use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;

/// The plan of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePlan {
    /// The format of the image.
    pub format: ImageFormat,
    /// The variety of that format, which the writer of the format interprets. 0 is the plainest; always 0 for qcow2.
    pub form: u16,
    /// The number of clusters for which its tables have room. The formats of qcow2 and raw images need no such bound.
    pub reach: TableReach,
    /// The places of clusters; `None` for qcow2, whose builder chooses the places themselves.
    pub places: Option<BlockPlaces>,
    /// The host offset of the first guest byte, if all guest data follow it in the order of the disk.
    pub flat_at: Option<HostOffset>,
    /// The size of the smallest disk.
    pub min_size_bytes: u64,
    /// The files of the extents beside the image. If there are none, the image has all data in its own file.
    pub extents: ExtentPlans,
}

/// The number of blocks or grains for which the tables of a file have room. The images of programs from before there
/// were large disks keep the places of their structures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableReach {
    /// 16,384 at most.
    #[default]
    Small,
    /// As many as the format allows, or a million or more: a run costs what its program wrote, and the tables that a
    /// reader has to read whole.
    Large,
}

/// The kind of a file beside an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtentForm {
    /// Guest data, from some sector on.
    #[default]
    Flat,
    /// Guest data, from the first byte on.
    Vmfs,
    /// A sparse extent.
    Sparse,
    /// An extent as ESX writes it.
    Cowd,
    /// An extent as ESX writes it since 2016.
    SeSparse,
}

impl ExtentForm {
    /// Reports whether the file holds the guest data without a table.
    pub fn is_flat(self) -> bool {
        matches!(self, Self::Flat | Self::Vmfs)
    }
}

/// The plan of a file beside an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentPlan {
    /// The kind of the file.
    pub form: ExtentForm,
    /// The number of clusters, which the last extent ignores: it takes the rest of the disk.
    pub clusters: u64,
    /// The number of unused bytes before the data; 0 unless `form` is [`ExtentForm::Flat`].
    pub lead_bytes: u64,
}

impl ExtentPlan {
    /// Creates the plan of a file with at least one cluster. Only [`ExtentForm::Flat`] has unused sectors before its
    /// data.
    pub fn new(form: ExtentForm, clusters: u64, lead_sectors: u8) -> Self {
        const SECTOR_BYTES: u64 = 512;
        let lead_bytes = match form {
            ExtentForm::Flat => u64::from(lead_sectors) * SECTOR_BYTES,
            _ => 0,
        };
        Self { form, clusters: clusters.max(1), lead_bytes }
    }
}

/// The plans of the files beside an image, in the order of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentPlans {
    count: usize,
    plans: [ExtentPlan; MAX_EXTENT_FILES],
}

impl ExtentPlans {
    /// Adds a plan behind the others. Returns `None` if there are [`MAX_EXTENT_FILES`].
    pub fn with(mut self, plan: ExtentPlan) -> Option<Self> {
        *self.plans.get_mut(self.count)? = plan;
        self.count += 1;
        Some(self)
    }

    /// Returns the plans.
    pub fn all(&self) -> &[ExtentPlan] {
        &self.plans[..self.count]
    }

    /// Returns the parts of a disk with clusters of this size, one for each plan.
    pub fn parts(&self, cluster_size: ClusterSize) -> FileParts {
        let files = self.all().iter().map(|plan| {
            let flat_at = plan.form.is_flat().then_some(HostOffset::new(plan.lead_bytes));
            (cluster_size.saturating_bytes(plan.clusters), flat_at)
        });
        FileParts::of_files(files)
    }
}

/// The places of host clusters in a file: of the data of blocks, in the formats that call them so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPlaces {
    /// The offset of host cluster 0.
    pub first_bytes: u64,
    /// The distance from a host cluster to the next, at least a cluster.
    pub stride_bytes: u64,
    /// The number of bytes of a host cluster before its data.
    pub lead_bytes: u64,
    /// The number of guest clusters for which the file's table has room.
    pub guest_clusters: u64,
    /// The number of host clusters that an entry of the table can name.
    pub host_clusters: u64,
}

impl FilePlan {
    /// Returns the parts of the disk.
    pub fn parts(&self, cluster_size: ClusterSize) -> FileParts {
        match self.flat_at {
            Some(start) => FileParts::of_files([(u64::MAX, Some(start))].into_iter()),
            None => self.extents.parts(cluster_size),
        }
    }

    /// Reports whether the file begins with guest data.
    pub fn begins_with_data(&self) -> bool {
        self.flat_at == Some(HostOffset::ZERO)
    }

    /// Returns the offset of guest data in the file, from the offset that the builder of qcow2 images chose.
    #[inline]
    pub fn file_offset(&self, cluster_size: ClusterSize, host: HostOffset) -> HostOffset {
        match &self.places {
            None => host,
            Some(places) => {
                let start = places.start_of(cluster_size, host);
                let inside = host.get() & cluster_size.mask();
                HostOffset::new(start.saturating_add(places.lead_bytes).saturating_add(inside))
            }
        }
    }
}

impl BlockPlaces {
    /// Returns the offset of the host cluster that the builder of qcow2 images placed at `host`.
    #[inline]
    pub fn start_of(&self, cluster_size: ClusterSize, host: HostOffset) -> u64 {
        self.start(cluster_size.host_cluster(host).get())
    }

    /// Returns the offset of a host cluster, of its lead if it has one.
    pub fn start(&self, host_cluster: u64) -> u64 {
        self.first_bytes.saturating_add(host_cluster.saturating_mul(self.stride_bytes))
    }
}
