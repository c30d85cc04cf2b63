//! Checks a qcow2 image as `qemu-img check` does (QEMU 10.0.2, `block/qcow2-refcount.c`, `qcow2_check_refcounts`): it
//! collects all references to clusters, adds them up, and compares the sums with the counts on disk and with the
//! COPIED flags. A damaged entry is a finding, and the check goes on behind it.
//!
//! It counts the findings of QEMU, each as often as QEMU does. It reports two further faults: a cluster that holds two
//! structures although its count is right, and a zero flag in version 2.
//!
//! The recount of the harness stops at the first damaged table instead, and knows the clusters of each reference. Both
//! read tables with [`HostTable`]. Walks do not.

pub mod cluster_counts;
mod counts;
mod paged_counts;
mod references;

use std::fmt;
use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::bitmap_list;
use crate::formats::qcow2::check::cluster_counts::Role;
use crate::formats::qcow2::check::paged_counts::PagedCounts;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::HostTable;

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

/// The bounds of a check. An image that needs more is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckBounds {
    /// The largest number of references to clusters, and of findings. A structure of several clusters references each
    /// of them, and a table counts each time that an entry names it.
    pub references: u64,
    /// The largest number of bytes in which the check keeps the references and the counts of clusters. It may keep
    /// those of one table more.
    pub kept_bytes: u64,
}

/// Checks the image in `storage`, and passes each finding to `report`: none before it has read the header and the
/// bitmaps, as QEMU does at open.
///
/// # Errors
/// QEMU refuses the image, the check needs more than `bounds`, or a read failed.
pub fn check_qcow2<S: Storage + ?Sized>(
    storage: &S,
    bounds: CheckBounds,
    report: &mut dyn FnMut(&CheckFinding<'_>),
) -> Result<CheckedQcow2, MapError> {
    let head = Head::read_for_check(storage)?;
    let header = &head.header;
    if header.geometry.data_file && head.data_file.is_none() {
        return Err(MapError::Missing("name of the external data file"));
    }
    bitmap_list(storage, header, head.bitmaps.as_ref())?;
    let mut check = ImageCheck::new(storage, header, bounds, report);
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
struct ImageCheck<'s, S: Storage + ?Sized> {
    storage: &'s S,
    header: &'s Header,
    findings: Findings<'s>,
    clusters: PagedCounts,
    bounds: CheckBounds,
    guest: GuestClusters,
    /// The end of the file in clusters. The file may end inside its last structure, which then adds a cluster.
    end_cluster: u64,
    /// The clusters whose counts on disk cannot be read, in order.
    unreadable: Vec<Range<u64>>,
}

impl<'s, S: Storage + ?Sized> ImageCheck<'s, S> {
    fn new(
        storage: &'s S,
        header: &'s Header,
        bounds: CheckBounds,
        report: &'s mut dyn FnMut(&CheckFinding<'_>),
    ) -> Self {
        Self {
            storage,
            header,
            findings: Findings::new(report),
            clusters: PagedCounts::default(),
            bounds,
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

    /// Adds a reference to the clusters of a structure, and returns true. If the structure ends a cluster or more past
    /// the end of the file, adds a finding instead, and returns false.
    ///
    /// # Arithmetic
    /// A structure that ends past 2^64 ends past the end of every file. A file has less than 2^63 bytes.
    fn reference(&mut self, at: HostOffset, length_bytes: u64, role: Role) -> bool {
        let Some(last) = length_bytes.checked_sub(1).map(|rest| at + rest) else {
            return true;
        };
        if last.get() >= self.references_end() {
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
        self.clusters.reference(first..end, role);
        true
    }

    /// Returns the host offset behind the last byte that a structure may have: less than a cluster past the end of the
    /// file.
    fn references_end(&self) -> u64 {
        let file_end = self.storage.length_bytes().next_multiple_of(FILE_SECTOR_BYTES);
        file_end.saturating_add(self.cluster_bytes() - 1)
    }

    /// Checks the bounds of references and of findings. Callers check them after each table.
    fn check_bound(&self) -> Result<(), MapError> {
        self.check_findings(0)?;
        let what = match &self.clusters {
            clusters if clusters.total_references() > self.bounds.references => {
                "too many references to clusters"
            }
            clusters if clusters.kept_bytes() > self.bounds.kept_bytes => "too many clusters",
            _ => return Ok(()),
        };
        Err(MapError::TooLarge(what))
    }

    /// Checks that the bound allows `more` findings.
    fn check_findings(&self, more: u64) -> Result<(), MapError> {
        let FindingCounts { corruptions, leaks, .. } = self.findings.counts();
        let all = corruptions.saturating_add(leaks).saturating_add(more);
        match all > self.bounds.references {
            true => Err(MapError::TooLarge("too many faults")),
            false => Ok(()),
        }
    }
}

/// A finding of a check. It prints as one line.
#[derive(Clone, Debug)]
pub enum CheckFinding<'a> {
    /// Errors in the image.
    Corruption(fmt::Arguments<'a>),
    /// A cluster whose count is not the number of its references.
    Miscount {
        /// The cluster.
        cluster: u64,
        /// The count on disk.
        on_disk: u64,
        /// The number of references.
        references: u64,
    },
    /// Clusters whose count cannot be read.
    Unreadable(Range<u64>),
}

impl fmt::Display for CheckFinding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corruption(what) => write!(f, "ERROR {what}"),
            Self::Miscount { cluster, on_disk, references } => {
                let kind = if on_disk > references { "Leaked" } else { "ERROR" };
                write!(f, "{kind} cluster {cluster} refcount={on_disk} reference={references}")
            }
            Self::Unreadable(Range { start, end }) => {
                write!(f, "ERROR the refcounts of clusters {start} to {end} are unreadable")
            }
        }
    }
}

/// The numbers of findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FindingCounts {
    /// Errors in the image.
    pub corruptions: u64,
    /// Clusters whose count is higher than their references.
    pub leaks: u64,
    /// Clusters whose count cannot be read.
    pub check_errors: u64,
}

/// Counts findings, and passes them on.
struct Findings<'f> {
    report: &'f mut dyn FnMut(&CheckFinding<'_>),
    counts: FindingCounts,
}

impl<'f> Findings<'f> {
    /// Begins with counts of zero. Passes each finding to `report`.
    fn new(report: &'f mut dyn FnMut(&CheckFinding<'_>)) -> Self {
        Self { report, counts: FindingCounts::default() }
    }

    /// Returns the numbers of findings so far.
    fn counts(&self) -> FindingCounts {
        self.counts
    }

    /// Reports a corruption.
    fn corruption(&mut self, what: fmt::Arguments<'_>) {
        self.corruptions(1, what);
    }

    /// Reports `count` corruptions in one line.
    ///
    /// # Arithmetic
    /// A file has less than 2^63 bytes, and the number of its references that are kept is bounded. If the sum saturates
    /// all the same, the image is still corrupt.
    fn corruptions(&mut self, count: u64, what: fmt::Arguments<'_>) {
        self.counts.corruptions = self.counts.corruptions.saturating_add(count);
        (self.report)(&CheckFinding::Corruption(what));
    }

    /// Reports a cluster with another count on disk than references.
    fn miscount(&mut self, cluster: u64, on_disk: u64, references: u64) {
        match on_disk > references {
            true => self.counts.leaks += 1,
            false => self.counts.corruptions = self.counts.corruptions.saturating_add(1),
        }
        (self.report)(&CheckFinding::Miscount { cluster, on_disk, references });
    }

    /// Reports clusters whose count on disk cannot be read.
    fn unreadable(&mut self, clusters: Range<u64>) {
        self.counts.check_errors += clusters.end - clusters.start;
        (self.report)(&CheckFinding::Unreadable(clusters));
    }
}

/// Returns the name that `qemu-img check` uses.
fn name(role: Role) -> &'static str {
    match role {
        Role::L2Table => "L2",
        role => role.name(),
    }
}
