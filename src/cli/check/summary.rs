//! The result of a completed check, as `qemu-img check` prints it.

use std::io::{self, Write};

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckResult {
    /// No error and no leak.
    Clean,
    /// The check could not read all it needs.
    Incomplete,
    /// At least one corruption.
    Corrupt,
    /// Leaked clusters, but no corruption.
    Leaks,
}

impl CheckResult {
    /// Returns the exit code of `qemu-img check`.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Incomplete => 1,
            Self::Corrupt => 2,
            Self::Leaks => 3,
        }
    }
}

/// The result, with the keys and the order of `qemu-img check --output=json`. Both omit most counts of zero.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct CheckSummary {
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) image_end_offset: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) compressed_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) total_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) corruptions: u64,
    pub(super) check_errors: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) leaks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) allocated_clusters: u64,
    pub(super) filename: String,
    pub(super) format: &'static str,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) fragmented_clusters: u64,
}

impl CheckSummary {
    /// Prints the text for people.
    pub(super) fn human(&self, out: &mut impl Write) -> io::Result<()> {
        if (self.corruptions, self.leaks, self.check_errors) == (0, 0, 0) {
            writeln!(out, "No errors were found on the image.")?;
        }
        if self.corruptions > 0 {
            writeln!(out, "\n{} errors were found on the image.", self.corruptions)?;
            writeln!(out, "Data may be corrupted, or further writes to the image may corrupt it.")?;
        }
        if self.leaks > 0 {
            writeln!(out, "\n{} leaked clusters were found on the image.", self.leaks)?;
            writeln!(out, "This means waste of disk space, but no harm to data.")?;
        }
        if self.check_errors > 0 {
            let errors = self.check_errors;
            writeln!(out, "\n{errors} internal errors have occurred during the check.")?;
        }
        let (total, allocated) = (self.total_clusters, self.allocated_clusters);
        if total > 0 && allocated > 0 {
            let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
            writeln!(
                out,
                "{allocated}/{total} = {:.2}% allocated, {:.2}% fragmented, {:.2}% compressed clusters",
                percent(allocated, total),
                percent(self.fragmented_clusters, allocated),
                percent(self.compressed_clusters, allocated)
            )?;
        }
        if self.image_end_offset > 0 {
            writeln!(out, "Image end offset: {}", self.image_end_offset)?;
        }
        Ok(())
    }

    /// Returns the result that the counts mean.
    pub(super) fn result(&self) -> CheckResult {
        match (self.check_errors, self.corruptions, self.leaks) {
            (0, 0, 0) => CheckResult::Clean,
            (0, 0, _) => CheckResult::Leaks,
            (0, ..) => CheckResult::Corrupt,
            _ => CheckResult::Incomplete,
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
