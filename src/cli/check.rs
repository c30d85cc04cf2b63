//! `check`: checks the refcounts of an image file as `qemu-img check` does.

mod printer;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::ser::PrettyFormatter;

use crate::disk::storage::{FileStorage, Storage};
use crate::formats::qcow2::head::Head;
use crate::harness::oracles::qcow2::entries;
use crate::harness::oracles::qcow2::recount::Recount;

use super::exit::{CommandError, Exit, ExitResult};
use super::map::Form;
use super::opening::{check_format, malformed};
use printer::CheckPrinter;

/// Check the refcounts of an image against its references, as 'qemu-img check' does
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes (those of 'qemu-img check'): 0 nothing was found; 1 the check could not be completed; 2 the \
image is corrupt; 3 the image has leaked clusters, but is not corrupt.

The command reads only the image itself, and opens no file that the image names.

It reports two errors that qemu-img does not: a cluster that holds two structures, even if its refcount \
is right, and a zero flag in a version 2 image. It prints each finding as a line on standard error.

Example: qcowfuzz check --output json disk.qcow2")]
pub struct Arguments {
    /// The image file
    image: PathBuf,
    /// The format of the image; only qcow2 is supported
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
}

/// The result of a completed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// No error and no leak.
    Clean,
    /// At least one corruption.
    Corrupt,
    /// Leaked clusters, but no corruption.
    Leaks,
}

impl CheckResult {
    /// Returns the exit code of `qemu-img check`.
    pub fn code(self) -> u8 {
        match self {
            Self::Clean => 0,
            Self::Corrupt => 2,
            Self::Leaks => 3,
        }
    }
}

/// The result, with the keys and the order of `qemu-img check --output=json`. Both omit most counts of zero.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct CheckSummary {
    #[serde(skip_serializing_if = "is_zero")]
    image_end_offset: u64,
    #[serde(skip_serializing_if = "is_zero")]
    compressed_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    total_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    corruptions: u64,
    check_errors: u64,
    #[serde(skip_serializing_if = "is_zero")]
    leaks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    allocated_clusters: u64,
    filename: String,
    format: &'static str,
    #[serde(skip_serializing_if = "is_zero")]
    fragmented_clusters: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Checks the image.
pub fn run(arguments: &Arguments) -> ExitResult {
    // A check that could not be completed has an exit code of its own.
    check(arguments).map_err(|failure| match failure {
        CommandError::Message(line) => CommandError::CheckMessage(line),
        failure => failure,
    })
}

fn check(arguments: &Arguments) -> ExitResult {
    check_format(&arguments.image, arguments.format.as_deref())?;
    let storage = FileStorage::open(&arguments.image)?;
    let failure = |error| malformed(&arguments.image, &storage, &error);
    let mut recount = Recount::new();
    let mut findings = CheckPrinter::new();
    // The command prints no finding before it has validated the header.
    let Head { header, .. } = Head::read(&storage).map_err(failure)?;
    let cluster_size = header.geometry.cluster_size;
    let file_clusters = cluster_size.clusters_for(storage.length_bytes());
    let reports = recount.recount(&storage).map_err(failure)?;
    // An unreadable table ends the check, so the scan runs before the counts are printed.
    let guest = entries::scan(&storage, &mut |report| {
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
    let summary = CheckSummary {
        image_end_offset: cluster_size.host_offset(end_cluster).get(),
        compressed_clusters: guest.compressed,
        total_clusters: cluster_size.clusters_for(header.virtual_size_bytes()),
        corruptions,
        check_errors: 0,
        leaks,
        allocated_clusters: guest.allocated,
        filename: arguments.image.display().to_string(),
        format: "qcow2",
        fragmented_clusters: guest.fragmented,
    };
    let answer = match (corruptions, leaks) {
        (0, 0) => CheckResult::Clean,
        (0, _) => CheckResult::Leaks,
        _ => CheckResult::Corrupt,
    };
    let mut out = io::stdout().lock();
    let printed = match arguments.output {
        Form::Human => human(&summary, &mut out),
        Form::Json => json(&summary, &mut out),
    };
    match printed.and_then(|()| out.flush()).map_err(|error| CommandError::output(&error)) {
        Ok(()) | Err(CommandError::Pipe) => Ok(Exit::Check(answer.code())),
        Err(failure) => Err(failure),
    }
}

fn human(summary: &CheckSummary, out: &mut impl Write) -> io::Result<()> {
    if summary.corruptions == 0 && summary.leaks == 0 {
        writeln!(out, "No errors were found on the image.")?;
    }
    if summary.corruptions > 0 {
        writeln!(out, "\n{} errors were found on the image.", summary.corruptions)?;
        writeln!(out, "Data may be corrupted, or further writes to the image may corrupt it.")?;
    }
    if summary.leaks > 0 {
        writeln!(out, "\n{} leaked clusters were found on the image.", summary.leaks)?;
        writeln!(out, "This means waste of disk space, but no harm to data.")?;
    }
    let (total, allocated) = (summary.total_clusters, summary.allocated_clusters);
    if total > 0 && allocated > 0 {
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
        writeln!(
            out,
            "{allocated}/{total} = {:.2}% allocated, {:.2}% fragmented, {:.2}% compressed clusters",
            percent(allocated, total),
            percent(summary.fragmented_clusters, allocated),
            percent(summary.compressed_clusters, allocated)
        )?;
    }
    if summary.image_end_offset > 0 {
        writeln!(out, "Image end offset: {}", summary.image_end_offset)?;
    }
    Ok(())
}

fn json(summary: &CheckSummary, out: &mut impl Write) -> io::Result<()> {
    let formatter = PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut *out, formatter);
    summary.serialize(&mut serializer)?;
    out.write_all(b"\n")
}
