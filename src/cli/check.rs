//! `check`: checks an image file as `qemu-img check` does.

mod qcow2;
mod summary;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::disk::image_format::ImageFormat;
use crate::walkers::{self, Disk};

use super::exit::{CommandError, Exit, ExitResult};
use super::map::Form;
use super::opening::ImageFile;
use super::print::{buffered_stdout, json_of_qemu_img};
use super::terminal::complain;
use summary::CheckSummary;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit codes (those of 'qemu-img check'): 0 nothing was found; 1 the check could not be completed, or a VMDK \
image is corrupt; 2 the image is corrupt; 3 the image has leaked clusters, but is not corrupt; 63 the format has \
no checks (raw, vpc).

The command opens no backing file and no data file. It opens the files of the extents that a VMDK image \
names: only regular files, no protocols. Use --no-follow for an image that you do not trust: it could name any \
file on this machine. The check of a VMDK image ends at its first fault.

Of a qcow2 image, it reports two errors that qemu-img does not: a cluster that holds two structures, even if its refcount \
is right, and a zero flag in a version 2 image. It prints each finding as a line on standard error.

Example: qcowfuzz check --output json disk.qcow2")]
pub struct Arguments {
    /// The image file
    image: PathBuf,
    /// The format of the image, such as qcow2, vmdk or vpc [default: by its first bytes, as in qemu-img]
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// The output format
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    /// Do not open files that the image names; refuse a VMDK image whose extents are other files
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
        return print(arguments, &qcow2::check(image, storage)?);
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
    let (path, name) = (image.display(), file.format.name());
    complain(&format!("{path}: the format {name} has no checks (-f names another)"));
    Ok(Exit::Check(NO_CHECKS))
}

/// Prints the result of a check, and returns its exit code.
fn print(arguments: &Arguments, summary: &CheckSummary) -> ExitResult {
    let mut out = buffered_stdout();
    let printed = match arguments.output {
        Form::Human => summary.human(&mut out),
        Form::Json => json_of_qemu_img(summary, &mut out),
    };
    match printed.and_then(|()| out.flush()).map_err(|error| CommandError::output(&error)) {
        Ok(()) | Err(CommandError::Pipe) => {}
        Err(failure) => return Err(failure),
    }
    if summary.check_errors > 0 {
        let (image, count) = (&summary.filename, summary.check_errors);
        complain(&format!("{image}: the check is incomplete: {count} refcounts cannot be read"));
    }
    Ok(Exit::Check(summary.result().code()))
}
