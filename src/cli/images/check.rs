//! `check`: checks an image file as `qemu-img check` does.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::base::limits::{
    CHECKED_REFERENCES_PER_BYTE, MAX_CHECK_KEPT_BYTES, MAX_CHECKED_REFERENCES,
    MIN_CHECKED_REFERENCES,
};
use crate::cli::output::{CommandError, Exit, ExitResult, complain, json_of_qemu_img, print_with};
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::{FileStorage, Storage};
use crate::walkers::{
    self, CheckBounds, CheckedQcow2, Disk, FindingCounts, GuestClusters, check_qcow2,
};

use super::map::Form;
use super::{ImageFile, malformed};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes (those of 'qemu-img check'): 0 nothing was found; 1 the check could not be completed, or ended \
at a fault; 2 the image is corrupt; 3 the image has leaked clusters, but is not corrupt; 63 the format has \
no checks, such as raw.

The command opens no backing file and no data file. It opens the files of the extents that an image \
names: only regular files, no protocols. Use --no-follow for an image that you do not trust: it could name any \
file on this machine. The checks of some formats end at the first fault.

Of a qcow2 image, it reports two errors that qemu-img does not: a cluster that holds two structures, even if its refcount \
is right, and a zero flag in a version 2 image. It prints each finding as a line on standard error.

Example: qcowfuzz check --output json disk.qcow2")]
pub struct Arguments {
    /// The image: a file or a block device
    image: PathBuf,
    /// The format of the image, by its name in qemu-img, such as qcow2 or raw [default: by its first bytes, as in
    /// qemu-img]
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    /// Do not open files that the image names; refuse an image whose extents are other files
    #[arg(long)]
    no_follow: bool,
}

/// The exit code of qemu-img for a format without checks.
const NO_CHECKS: u8 = 63;

/// Checks the image.
pub fn run(arguments: &Arguments) -> ExitResult {
    // A check that could not be completed has an exit code of its own.
    check(arguments).map_err(CommandError::with_exit_code_of_qemu_img)
}

fn check(arguments: &Arguments) -> ExitResult {
    let Arguments { image, .. } = arguments;
    let file = ImageFile::open(image, arguments.format.as_deref(), arguments.no_follow)?;
    let (storage, format) = (&file.storage, file.format);
    if format == ImageFormat::Qcow2 {
        return print(arguments, &check_image(image, storage)?);
    }
    let mut corruptions = 0;
    let mut report = |fault: &dyn fmt::Display| {
        corruptions += 1;
        complain(&format!("{}: {fault}", image.display()));
    };
    let Some(checked) = walkers::check(format, &file.layer(), &mut report) else {
        return without_check(&file, image);
    };
    // A fault that ends the check leaves it without a result, as in qemu-img.
    checked.map_err(|error| CommandError::at(image, error))?;
    let (filename, format) = (image.display().to_string(), format.name());
    print(arguments, &CheckSummary { corruptions, filename, format, ..CheckSummary::default() })
}

/// Opens an image whose format has no check, and says so.
fn without_check(file: &ImageFile, image: &Path) -> ExitResult {
    Disk::open_alone(file.format, &file.storage).map_err(|error| CommandError::at(image, error))?;
    file.warn_of_parent(image);
    let (path, name) = (image.display(), file.format.name());
    complain(&format!("{path}: the format {name} has no checks (-f names another)"));
    Ok(Exit::Check(NO_CHECKS))
}

/// Prints the result of a check, and returns its exit code.
fn print(arguments: &Arguments, summary: &CheckSummary) -> ExitResult {
    print_with(|out| match arguments.output {
        Form::Human => summary.human(out),
        Form::Json => json_of_qemu_img(summary, out),
    })?;
    if summary.check_errors > 0 {
        let (image, count) = (&summary.filename, summary.check_errors);
        complain(&format!("{image}: the check is incomplete: {count} refcounts cannot be read"));
    }
    Ok(Exit::Check(summary.exit_code()))
}

/// Checks the qcow2 image at `path`, and prints each finding as a line on standard error.
fn check_image(path: &Path, storage: &FileStorage) -> Result<CheckSummary, CommandError> {
    let mut out = BufWriter::new(io::stderr().lock());
    // If standard error cannot be written, the counts are still right.
    let checked = check_qcow2(storage, bounds_of(storage), &mut |finding| {
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

/// Returns the bounds of the check of a qcow2 image.
fn bounds_of(storage: &FileStorage) -> CheckBounds {
    // A block device has no blocks of a file system.
    let stored_bytes = storage.allocated_bytes().filter(|bytes| *bytes > 0);
    let stored_bytes = stored_bytes.unwrap_or(storage.length_bytes());
    let references = stored_bytes.saturating_mul(CHECKED_REFERENCES_PER_BYTE);
    CheckBounds {
        references: references.clamp(MIN_CHECKED_REFERENCES, MAX_CHECKED_REFERENCES),
        kept_bytes: MAX_CHECK_KEPT_BYTES,
    }
}

/// The result, with the keys and the order of `qemu-img check --output=json`. Like qemu-img, it omits most counts that
/// are zero.
#[derive(Debug, Default, Serialize)]
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

impl CheckSummary {
    /// Prints the text for people.
    fn human(&self, out: &mut impl Write) -> io::Result<()> {
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

    /// Returns the exit code of `qemu-img check`.
    fn exit_code(&self) -> u8 {
        match (self.check_errors, self.corruptions, self.leaks) {
            (0, 0, 0) => 0,
            (0, 0, _) => 3,
            (0, ..) => 2,
            _ => 1,
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
