//! Checks a qcow2 image, and prints each finding as a line on standard error.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::base::limits::MAX_RECOUNTED;
use crate::disk::storage::FileStorage;
use crate::walkers::{CheckedQcow2, FindingCounts, GuestClusters, check_qcow2};

use super::super::exit::CommandError;
use super::super::opening::malformed;
use super::summary::CheckSummary;

/// Checks the image at `path`, and prints its findings.
pub(super) fn check(path: &Path, storage: &FileStorage) -> Result<CheckSummary, CommandError> {
    let mut out = BufWriter::new(io::stderr().lock());
    // If standard error cannot be written, the counts are still right.
    let checked = check_qcow2(storage, MAX_RECOUNTED, &mut |finding| {
        let _ = writeln!(out, "{finding}");
    });
    let _ = out.flush();
    drop(out);
    let CheckedQcow2 { findings, end_offset_bytes, guest, total_clusters } =
        checked.map_err(|error| malformed(path, storage, &error))?;
    let FindingCounts { corruptions, leaks, check_errors } = findings;
    let GuestClusters { allocated, compressed, fragmented } = guest;
    Ok(CheckSummary {
        image_end_offset: end_offset_bytes,
        compressed_clusters: compressed,
        total_clusters,
        corruptions,
        check_errors,
        leaks,
        allocated_clusters: allocated,
        filename: path.display().to_string(),
        format: "qcow2",
        fragmented_clusters: fragmented,
    })
}
