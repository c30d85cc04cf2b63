//! The state of the check of an image.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::references::{ClusterCounts, Role};

use super::findings::{CheckFinding, FindingCounts, Findings, name};

/// QEMU rounds the length of a file up to a multiple of this.
const FILE_SECTOR_BYTES: u64 = 512;

/// The number of clusters that the active tables map, including clusters past the end of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestClusters {
    /// Clusters with an allocation in the file, for data or for zeros.
    pub allocated: u64,
    /// Compressed clusters.
    pub compressed: u64,
    /// Compressed clusters, and clusters that do not directly follow the allocation before them in their table.
    pub fragmented: u64,
}

/// The check of an image.
pub(super) struct ImageCheck<'s, S: Storage + ?Sized> {
    pub(super) storage: &'s S,
    pub(super) header: &'s Header,
    pub(super) findings: Findings<'s>,
    pub(super) clusters: ClusterCounts,
    pub(super) guest: GuestClusters,
    /// The end of the file in clusters. The file may end inside its last structure, which then adds a cluster.
    pub(super) end_cluster: u64,
    /// The clusters whose counts on disk cannot be read, in order.
    pub(super) unreadable: Vec<Range<u64>>,
}

impl<'s, S: Storage + ?Sized> ImageCheck<'s, S> {
    pub(super) fn new(
        storage: &'s S,
        header: &'s Header,
        bound: usize,
        report: &'s mut dyn FnMut(&CheckFinding<'_>),
    ) -> Self {
        Self {
            storage,
            header,
            findings: Findings::new(report),
            clusters: ClusterCounts::bounded(bound),
            guest: GuestClusters::default(),
            end_cluster: header.geometry.cluster_size.clusters_for(storage.length_bytes()),
            unreadable: Vec::new(),
        }
    }

    pub(super) fn geometry(&self) -> &'s Geometry {
        &self.header.geometry
    }

    pub(super) fn cluster_bytes(&self) -> u64 {
        self.geometry().cluster_size.bytes()
    }

    /// Reports whether an offset is not on a cluster boundary.
    pub(super) fn is_unaligned(&self, host: HostOffset) -> bool {
        !self.geometry().cluster_size.is_aligned(host)
    }

    /// Adds a reference to the clusters of a structure, and reports whether it counts. A structure that ends a cluster
    /// or more past the end of the file is a finding instead.
    ///
    /// # Arithmetic
    /// A structure that ends past 2^64 ends past the end of every file. A file has less than 2^63 bytes.
    pub(super) fn reference(&mut self, at: HostOffset, length_bytes: u64, role: Role) -> bool {
        let Some(last) = length_bytes.checked_sub(1).map(|rest| at + rest) else {
            return true;
        };
        let file_end = self.storage.length_bytes().next_multiple_of(FILE_SECTOR_BYTES);
        let end = file_end.saturating_add(self.cluster_bytes() - 1);
        if last.get() >= end {
            let role = name(role);
            self.findings.corruption(format_args!(
                "{role} of {length_bytes} bytes at host offset {at} lies past the end of the file"
            ));
            return false;
        }
        let cluster_size = self.geometry().cluster_size;
        let first = cluster_size.host_cluster(at).get();
        let end = cluster_size.host_cluster(last).get() + 1;
        self.end_cluster = self.end_cluster.max(end);
        self.clusters.reference(first, end, role, None);
        true
    }

    /// Checks the bounds of references and of findings. Callers check them after each table.
    pub(super) fn check_bound(&self) -> Result<(), MapError> {
        self.check_findings(0)?;
        self.clusters.check_bound()
    }

    /// Checks that the bound allows `more` findings.
    pub(super) fn check_findings(&self, more: u64) -> Result<(), MapError> {
        let FindingCounts { corruptions, leaks, .. } = self.findings.counts();
        let all = corruptions.saturating_add(leaks).saturating_add(more);
        match all > self.clusters.bound() as u64 {
            true => Err(MapError::TooLarge("too many faults")),
            false => Ok(()),
        }
    }
}
