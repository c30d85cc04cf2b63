//! Checks a qcow2 image as `qemu-img check` does (QEMU 10.0.2, `block/qcow2-refcount.c`, `qcow2_check_refcounts`): it
//! collects all references to clusters, adds them up, and compares the sums with the counts on disk and with the
//! COPIED flags. A damaged entry is a finding, and the check goes on behind it.
//!
//! It counts the findings of QEMU, each as often as QEMU does. It reports two further faults: a cluster that holds two
//! structures although its count is right, and a zero flag in version 2.
//!
//! The recount of the harness stops at the first damaged table instead. Both add references up with
//! [`ClusterCounts`](crate::formats::qcow2::references::ClusterCounts), and read tables with [`HostTable`]. Walks use
//! neither.

mod bitmaps;
mod compare;
mod copied;
mod counts;
mod findings;
mod image_check;
mod references;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap_list::bitmap_list;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::references::Role;
use crate::formats::qcow2::table::HostTable;

pub use findings::{CheckFinding, FindingCounts};
pub use image_check::GuestClusters;
use image_check::ImageCheck;

/// The result of a check of a qcow2 image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedQcow2 {
    /// The numbers of findings.
    pub findings: FindingCounts,
    /// The host offset behind the last cluster that has a reference or a count.
    pub end_offset_bytes: u64,
    /// The clusters of the active disk that have an allocation.
    pub guest: GuestClusters,
    /// The number of clusters of the active disk.
    pub total_clusters: u64,
}

/// Checks the image in `storage`, and passes each finding to `report`: none before it has read the header and the
/// bitmaps, as QEMU does at open. `bound` is the largest number of references, of runs of counts and of findings that
/// it keeps or reports.
///
/// # Errors
/// QEMU refuses the image, the check needs more than `bound`, or a read failed.
pub fn check_qcow2<S: Storage + ?Sized>(
    storage: &S,
    bound: usize,
    report: &mut dyn FnMut(&CheckFinding<'_>),
) -> Result<CheckedQcow2, MapError> {
    let head = Head::read_for_check(storage)?;
    let header = &head.header;
    if header.geometry.data_file && head.data_file.is_none() {
        return Err(MapError::Missing("name of the external data file"));
    }
    bitmap_list(storage, &head)?;
    let mut check = ImageCheck::new(storage, header, bound, report);
    check.reference(HostOffset::ZERO, check.cluster_bytes(), Role::Header);
    check.l1(HostTable::active_l1(header), true)?;
    check.snapshots()?;
    if let Some(extension) = &head.bitmaps {
        check.bitmaps(extension)?;
    }
    let blocks = check.refcount_table()?;
    let end_cluster = check.compare(&blocks)?;
    check.copied()?;
    let cluster_size = header.geometry.cluster_size;
    Ok(CheckedQcow2 {
        findings: check.findings.counts(),
        end_offset_bytes: cluster_size.saturating_bytes(end_cluster),
        guest: check.guest,
        total_clusters: cluster_size.clusters_for(header.virtual_size_bytes()),
    })
}
