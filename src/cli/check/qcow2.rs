//! Checks a qcow2 image: its refcounts against its references.

use std::ops::ControlFlow;
use std::path::Path;

use crate::disk::storage::{FileStorage, Storage};
use crate::formats::qcow2::head::Head;
use crate::harness::oracles::qcow2::entries;
use crate::harness::oracles::qcow2::recount::Recount;

use super::super::exit::CommandError;
use super::super::opening::malformed;
use super::printer::CheckPrinter;
use super::summary::CheckSummary;

/// Checks the image at `path`, and prints its findings.
pub(super) fn check(path: &Path, storage: &FileStorage) -> Result<CheckSummary, CommandError> {
    let failure = |error| malformed(path, storage, &error);
    let mut recount = Recount::new();
    let mut findings = CheckPrinter::new();
    // The command prints no finding before it has validated the header.
    let Head { header, .. } = Head::read(storage).map_err(failure)?;
    let cluster_size = header.geometry.cluster_size;
    let file_clusters = cluster_size.clusters_for(storage.length_bytes());
    let reports = recount.recount(storage).map_err(failure)?;
    // An unreadable table ends the check, so the scan runs before the counts are printed.
    let guest = entries::scan(storage, &mut |report| {
        findings.entry(&report);
        ControlFlow::Continue(())
    });
    let guest = guest.map_err(failure)?;
    findings.counts(reports, file_clusters);
    for (role, clusters) in recount.past_end() {
        findings.past_end(role, clusters);
    }
    let (corruptions, leaks) = findings.end();
    let end_cluster = recount.end_cluster_within(file_clusters);
    Ok(CheckSummary {
        image_end_offset: cluster_size.host_offset(end_cluster).get(),
        compressed_clusters: guest.compressed,
        total_clusters: cluster_size.clusters_for(header.virtual_size_bytes()),
        corruptions,
        check_errors: 0,
        leaks,
        allocated_clusters: guest.allocated,
        filename: path.display().to_string(),
        format: "qcow2",
        fragmented_clusters: guest.fragmented,
    })
}
