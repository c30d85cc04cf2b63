//! Prints the findings of `check` to standard error, one per line, and counts them as `qemu-img check` does.

use std::io::{self, BufWriter, StderrLock, Write};
use std::ops::Range;

use crate::disk::clusters::HostCluster;
use crate::harness::oracles::qcow2::entries::EntryReport;
use crate::harness::oracles::qcow2::recount::RefcountFault;
use crate::harness::oracles::qcow2::recount::RefcountReport;
use crate::harness::oracles::qcow2::recount::Role;

/// Prints and counts findings.
pub struct CheckPrinter {
    /// Standard error. If it cannot be written, the counts are still right.
    out: BufWriter<StderrLock<'static>>,
    corruptions: u64,
    leaks: u64,
}

impl CheckPrinter {
    /// Returns counts of zero.
    pub fn new() -> Self {
        Self { out: BufWriter::new(io::stderr().lock()), corruptions: 0, leaks: 0 }
    }

    /// Flushes the output and returns the numbers of corruptions and of leaks.
    pub fn end(mut self) -> (u64, u64) {
        let _ = self.out.flush();
        (self.corruptions, self.leaks)
    }

    fn corruption(&mut self, what: std::fmt::Arguments<'_>) {
        self.corruptions += 1;
        let _ = writeln!(self.out, "ERROR {what}");
    }

    /// Reports the findings of a recount for each cluster of a file of `file_clusters` clusters.
    pub fn counts(&mut self, reports: &[RefcountReport], file_clusters: u64) {
        // The refcount of a cluster with overlapping structures is usually wrong too, and both faults together are one
        // finding.
        let miscounted: Vec<Range<u64>> = reports
            .iter()
            .filter(|report| {
                matches!(report.finding, RefcountFault::Corruption | RefcountFault::Leak)
            })
            .map(clusters)
            .collect();
        let is_miscounted = |cluster: u64| {
            // The reports are in file order.
            let at = miscounted.partition_point(|clusters| clusters.end <= cluster);
            miscounted.get(at).is_some_and(|clusters| clusters.contains(&cluster))
        };
        for report in reports {
            let Range { start, mut end } = clusters(report);
            if report.finding != RefcountFault::Copied {
                // Counts past the end of the file mean nothing. `past_end` reports references to those clusters.
                end = end.min(file_clusters);
            }
            for cluster in start..end {
                if report.finding != RefcountFault::Overlap || !is_miscounted(cluster) {
                    self.cluster(report, cluster);
                }
            }
        }
    }

    fn cluster(&mut self, report: &RefcountReport, cluster: u64) {
        let RefcountReport { finding, references, on_disk, .. } = *report;
        let role = report.role.map_or("unreferenced", name);
        match finding {
            RefcountFault::Leak => {
                self.leaks += 1;
                let _ = writeln!(
                    self.out,
                    "Leaked cluster {cluster} refcount={on_disk} reference={references}"
                );
            }
            RefcountFault::Corruption => self.corruption(format_args!(
                "cluster {cluster} refcount={on_disk} reference={references}"
            )),
            RefcountFault::Copied => {
                let flag = if references == 1 { "set" } else { "not set" };
                self.corruption(format_args!(
                    "OFLAG_COPIED {role} cluster {cluster}: {flag}, refcount={on_disk}"
                ));
            }
            RefcountFault::Overlap => self
                .corruption(format_args!("cluster {cluster} is {role} and another structure too")),
        }
    }

    /// Reports a reference to clusters past the end of the file.
    pub fn past_end(&mut self, role: Role, clusters: Range<HostCluster>) {
        let (role, Range { start, end }) = (name(role), clusters);
        self.corruption(format_args!(
            "{role} clusters {start} to {end} lie past the end of the file"
        ));
    }

    /// Reports a finding in an entry.
    pub fn entry(&mut self, report: &EntryReport) {
        let EntryReport { table, at, entry, what } = *report;
        self.corruption(format_args!("{table} entry {entry:#x} at host offset {at}: {what}"));
    }
}

fn clusters(report: &RefcountReport) -> Range<u64> {
    let first = report.cluster.get();
    first..first.saturating_add(report.clusters)
}

/// Returns the name that `qemu-img check` uses.
fn name(role: Role) -> &'static str {
    match role {
        Role::L2Table => "L2",
        role => role.name(),
    }
}
