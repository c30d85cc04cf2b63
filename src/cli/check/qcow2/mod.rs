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
mod references;

use std::ops::Range;
use std::path::Path;

use crate::disk::limits::MAX_RECOUNTED;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{FileStorage, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap_list::bitmap_list;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::HostTable;
use crate::harness::oracles::qcow2::recount::Role;
use crate::harness::oracles::qcow2::recount::clusters::ClusterCounts;

use super::super::exit::CommandError;
use super::super::opening::malformed;
use super::printer::CheckPrinter;
use super::summary::CheckSummary;
use references::GuestClusters;

/// QEMU rounds the length of a file up to a multiple of this.
const FILE_SECTOR_BYTES: u64 = 512;

/// Checks the image at `path`, and prints its findings.
pub(super) fn check(path: &Path, storage: &FileStorage) -> Result<CheckSummary, CommandError> {
    let checked = check_image(storage).map_err(|error| malformed(path, storage, &error))?;
    Ok(CheckSummary { filename: path.display().to_string(), ..checked })
}

/// Checks the image in `storage`. Prints no finding before it has read the header and the bitmaps, as QEMU does at
/// open.
fn check_image<S: Storage + ?Sized>(storage: &S) -> Result<CheckSummary, MapError> {
    let head = Head::read_for_check(storage)?;
    bitmap_list(storage, &head)?;
    let header = &head.header;
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

/// The check of an image.
struct ImageCheck<'s, S: Storage + ?Sized> {
    storage: &'s S,
    header: &'s Header,
    findings: CheckPrinter,
    clusters: ClusterCounts,
    guest: GuestClusters,
    /// The end of the file in clusters. The file may end inside its last structure, which then adds a cluster.
    end_cluster: u64,
    /// The clusters whose counts on disk cannot be read, in order.
    unreadable: Vec<Range<u64>>,
}

impl<'s, S: Storage + ?Sized> ImageCheck<'s, S> {
    fn new(storage: &'s S, header: &'s Header) -> Self {
        Self {
            storage,
            header,
            findings: CheckPrinter::new(),
            clusters: ClusterCounts::bounded(MAX_RECOUNTED),
            guest: GuestClusters::default(),
            end_cluster: header.geometry.cluster_size.clusters_for(storage.length_bytes()),
            unreadable: Vec::new(),
        }
    }

    fn geometry(&self) -> &'s Geometry {
        &self.header.geometry
    }

    fn cluster_bytes(&self) -> u64 {
        self.geometry().cluster_size.bytes()
    }

    /// Reports whether an offset is not on a cluster boundary.
    fn is_unaligned(&self, host: HostOffset) -> bool {
        !self.geometry().cluster_size.is_aligned(host)
    }

    /// Adds a reference to the clusters of a structure, and reports whether it counts. A structure that ends a cluster
    /// or more past the end of the file is a finding instead.
    ///
    /// # Arithmetic
    /// A structure that ends past 2^64 ends past the end of every file. A file has less than 2^63 bytes.
    fn reference(&mut self, at: HostOffset, length_bytes: u64, role: Role) -> bool {
        let Some(last) = length_bytes.checked_sub(1).map(|rest| at.saturating_add(rest)) else {
            return true;
        };
        let file_end = self.storage.length_bytes().next_multiple_of(FILE_SECTOR_BYTES);
        let end = file_end.saturating_add(self.cluster_bytes() - 1);
        if last.get() >= end {
            let role = super::printer::name(role);
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
    fn check_bound(&self) -> Result<(), MapError> {
        if self.findings.counts().corruptions > MAX_RECOUNTED as u64 {
            return Err(MapError::TooLarge("too many faults"));
        }
        self.clusters.check_bound()
    }
}
