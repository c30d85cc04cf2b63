//! Checks a qcow2 image as `qemu-img check` does (QEMU 10.0.2, `block/qcow2-refcount.c`, `qcow2_check_refcounts`): it
//! collects all references to clusters, adds them up, and compares the sums with the counts on disk and with the
//! COPIED flags. A damaged entry is a finding, and the check goes on behind it.
//!
//! It counts the findings of QEMU, each as often as QEMU does. It reports two further faults: a cluster that holds two
//! structures although its count is right, and a zero flag in version 2.
//!
//! The recount stops at the first damaged table instead. Both add references up with
//! [`ClusterCounts`](crate::harness::oracles::qcow2::recount::clusters::ClusterCounts).

mod bitmaps;
mod compare;
mod copied;
mod counts;
mod image_check;
mod references;

use std::path::Path;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap_list::bitmap_list;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::table::HostTable;
use crate::harness::oracles::qcow2::recount::Role;

use super::super::exit::CommandError;
use super::super::opening::malformed;
use super::summary::CheckSummary;
use image_check::ImageCheck;

/// Checks the image at `path`, and prints its findings.
pub(super) fn check(path: &Path, storage: &FileStorage) -> Result<CheckSummary, CommandError> {
    let checked = check_image(storage).map_err(|error| malformed(path, storage, &error))?;
    Ok(CheckSummary { filename: path.display().to_string(), ..checked })
}

/// Checks the image in `storage`. Prints no finding before it has read the header and the bitmaps, as QEMU does at
/// open.
fn check_image<S: Storage + ?Sized>(storage: &S) -> Result<CheckSummary, MapError> {
    let head = Head::read_for_check(storage)?;
    let header = &head.header;
    if header.geometry.data_file && head.data_file.is_none() {
        return Err(MapError::Missing("name of the external data file"));
    }
    bitmap_list(storage, &head)?;
    let mut check = ImageCheck::new(storage, header);
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
    let counts = check.findings.end();
    Ok(CheckSummary {
        image_end_offset: cluster_size.saturating_bytes(end_cluster),
        compressed_clusters: check.guest.compressed,
        total_clusters: cluster_size.clusters_for(header.virtual_size_bytes()),
        corruptions: counts.corruptions,
        check_errors: counts.check_errors,
        leaks: counts.leaks,
        allocated_clusters: check.guest.allocated,
        filename: String::new(),
        format: "qcow2",
        fragmented_clusters: check.guest.fragmented,
    })
}
