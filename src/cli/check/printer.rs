//! Prints the findings of the check of a qcow2 image to standard error, one per line, and counts them as
//! `qemu-img check` does.

use std::fmt::Arguments;
use std::io::{self, BufWriter, StderrLock, Write};
use std::ops::Range;

use crate::harness::oracles::qcow2::recount::Role;

/// Prints and counts findings.
pub struct CheckPrinter {
    /// Standard error. If it cannot be written, the counts are still right.
    out: BufWriter<StderrLock<'static>>,
    counts: FindingCounts,
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

impl CheckPrinter {
    /// Returns counts of zero.
    pub fn new() -> Self {
        Self { out: BufWriter::new(io::stderr().lock()), counts: FindingCounts::default() }
    }

    /// Returns the numbers of findings so far.
    pub fn counts(&self) -> FindingCounts {
        self.counts
    }

    /// Flushes the output and returns the numbers of findings.
    pub fn end(mut self) -> FindingCounts {
        let _ = self.out.flush();
        self.counts
    }

    /// Reports a corruption.
    pub fn corruption(&mut self, what: Arguments<'_>) {
        self.corruptions(1, what);
    }

    /// Reports `count` corruptions in one line.
    ///
    /// # Arithmetic
    /// A file has less than 2^63 bytes, and no more than [`MAX_RECOUNTED`](crate::disk::limits::MAX_RECOUNTED) of its
    /// references are kept. If the sum saturates all the same, the image is still corrupt.
    pub fn corruptions(&mut self, count: u64, what: Arguments<'_>) {
        self.counts.corruptions = self.counts.corruptions.saturating_add(count);
        let _ = writeln!(self.out, "ERROR {what}");
    }

    /// Reports a cluster with another count on disk than references.
    pub fn miscount(&mut self, cluster: u64, on_disk: u64, references: u64) {
        if on_disk > references {
            self.counts.leaks += 1;
            let _ = writeln!(
                self.out,
                "Leaked cluster {cluster} refcount={on_disk} reference={references}"
            );
        } else {
            self.corruption(format_args!(
                "cluster {cluster} refcount={on_disk} reference={references}"
            ));
        }
    }

    /// Reports clusters whose count on disk cannot be read.
    pub fn unreadable(&mut self, clusters: Range<u64>) {
        let Range { start, end } = clusters;
        self.counts.check_errors += end - start;
        let _ =
            writeln!(self.out, "ERROR the refcounts of clusters {start} to {end} are unreadable");
    }
}

/// Returns the name that `qemu-img check` uses.
pub fn name(role: Role) -> &'static str {
    match role {
        Role::L2Table => "L2",
        role => role.name(),
    }
}
