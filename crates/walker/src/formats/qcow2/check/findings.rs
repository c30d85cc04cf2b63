//! The findings of a check, counted as `qemu-img check` counts them.

use std::fmt;
use std::ops::Range;

use crate::formats::qcow2::references::Role;

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
pub(super) struct Findings<'f> {
    report: &'f mut dyn FnMut(&CheckFinding<'_>),
    counts: FindingCounts,
}

impl<'f> Findings<'f> {
    /// Begins with counts of zero. Passes each finding to `report`.
    pub(super) fn new(report: &'f mut dyn FnMut(&CheckFinding<'_>)) -> Self {
        Self { report, counts: FindingCounts::default() }
    }

    /// Returns the numbers of findings so far.
    pub(super) fn counts(&self) -> FindingCounts {
        self.counts
    }

    /// Reports a corruption.
    pub(super) fn corruption(&mut self, what: fmt::Arguments<'_>) {
        self.corruptions(1, what);
    }

    /// Reports `count` corruptions in one line.
    ///
    /// # Arithmetic
    /// A file has less than 2^63 bytes, and the number of its references that are kept is bounded. If the sum saturates
    /// all the same, the image is still corrupt.
    pub(super) fn corruptions(&mut self, count: u64, what: fmt::Arguments<'_>) {
        self.counts.corruptions = self.counts.corruptions.saturating_add(count);
        (self.report)(&CheckFinding::Corruption(what));
    }

    /// Reports a cluster with another count on disk than references.
    pub(super) fn miscount(&mut self, cluster: u64, on_disk: u64, references: u64) {
        match on_disk > references {
            true => self.counts.leaks += 1,
            false => self.counts.corruptions = self.counts.corruptions.saturating_add(1),
        }
        (self.report)(&CheckFinding::Miscount { cluster, on_disk, references });
    }

    /// Reports clusters whose count on disk cannot be read.
    pub(super) fn unreadable(&mut self, clusters: Range<u64>) {
        self.counts.check_errors += clusters.end - clusters.start;
        (self.report)(&CheckFinding::Unreadable(clusters));
    }
}

/// Returns the name that `qemu-img check` uses.
pub(super) fn name(role: Role) -> &'static str {
    match role {
        Role::L2Table => "L2",
        role => role.name(),
    }
}
