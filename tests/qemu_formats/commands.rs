//! Compares the commands `info` and `check` with those of qemu-img, whether an image opens or not.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use qcowfuzz::disk::image_format::ImageFormat;

use crate::comparison::SIGFPE;
use crate::info::{self, Compared};
use crate::qemu::{self, Checked};
use crate::tally::Tally;

/// The intended differences of `check`.
pub const PARENT: &str = "check: qemu-img also opens the parent, which we do not";
pub const DIVISION: &str = "check: qemu-img divides by zero, and we report a fault";

/// A part of our error about a VDI image whose block map reaches past the end of the file, which QEMU opens.
pub const MAP_PAST_END: &str = "header: end of the block map is ";
const MAP_CHECK: &str = "check: qemu-img opens block maps past the end of the file, and we do not";

pub const LENGTH: &str =
    "check: qemu-img checks disks of 2^63 bytes and more, which it cannot map and we refuse";

/// Compares the record of an image and the result of its check, and counts the results. `with_human` compares the human
/// forms, too.
pub fn compare_commands(
    path: &Path,
    format: ImageFormat,
    with_human: bool,
    tally: &mut Tally,
) -> Checked<()> {
    match info::compare_json(path, format)? {
        Compared::Same => {
            tally.add("records of info", 1);
            if with_human {
                info::compare_human(path, format)?;
            }
        }
        Compared::Refused => tally.add("images that info refuses", 1),
        Compared::Named(difference) => tally.add(difference, 1),
    }
    tally.add(compare_check(path, format, "--output=json")?, 1);
    if with_human {
        compare_check(path, format, "--output=human")?;
    }
    Ok(())
}

/// Compares the output of `map` with that of qemu-img, byte for byte, if qemu-img maps the whole disk. Returns what was
/// compared.
pub fn compare_map(path: &Path, format: ImageFormat) -> Checked<&'static str> {
    let [ours, theirs] = [
        (env!("CARGO_BIN_EXE_qcowfuzz"), ["map", "--output", "json", "-f"]),
        ("qemu-img", ["map", "--output", "json", "-f"]),
    ]
    .map(|(tool, words)| {
        let mut command = Command::new(tool);
        command.args(words).arg(format.name()).arg(path);
        command.output().map_err(|error| format!("{tool}: {error}"))
    });
    let (ours, theirs) = (ours?, theirs?);
    match theirs.status.success() {
        true if ours.status.success() && ours.stdout == theirs.stdout => Ok("maps of the command"),
        false if !ours.status.success() => Ok("maps that the command does not complete"),
        _ => {
            let [ours, theirs] = [("qcowfuzz", &ours), ("qemu-img", &theirs)]
                .map(|(tool, output)| qemu::failure(tool, &[path.as_os_str()], output));
            Err(format!("map: {ours}\n{theirs}"))
        }
    }
}

/// Compares the output and the exit code of `check`. Returns the exit code, or the name of an intended difference.
fn compare_check(path: &Path, format: ImageFormat, form: &str) -> Checked<String> {
    let [ours, theirs] = [env!("CARGO_BIN_EXE_qcowfuzz"), "qemu-img"].map(|tool| {
        let mut command = Command::new(tool);
        command.args(["check", form, "-f", format.name()]).arg(path);
        command.output().map_err(|error| format!("{tool}: {error}"))
    });
    let (ours, theirs) = (ours?, theirs?);
    if let Some(difference) = named_difference(&ours, &theirs) {
        return Ok(difference.to_string());
    }
    let is_same = ours.stdout == theirs.stdout && ours.status.code() == theirs.status.code();
    let fault = fault_at(&theirs);
    let said = String::from_utf8_lossy(&ours.stderr);
    let is_same_fault = fault.is_none_or(|guest| said.contains(&format!("offset {guest}: ")));
    match ours.status.code() {
        Some(_) if is_same && is_same_fault && fault.is_some() => {
            Ok("checks that end at a fault".to_string())
        }
        Some(code) if is_same && is_same_fault => Ok(format!("checks that exit with {code}")),
        _ => {
            let [ours, theirs] = [("qcowfuzz", &ours), ("qemu-img", &theirs)]
                .map(|(tool, output)| qemu::failure(tool, &[path.as_os_str()], output));
            Err(format!("check: {ours}\n{theirs}"))
        }
    }
}

/// Returns the guest offset of the fault at which QEMU ends the check of a VMDK image.
fn fault_at(theirs: &Output) -> Option<u64> {
    let said = String::from_utf8_lossy(&theirs.stderr);
    let (_, sector) = said.split_once(" for sector ")?;
    let digits: String = sector.chars().take_while(char::is_ascii_digit).collect();
    Some(digits.parse::<u64>().ok()? * 512)
}

/// Returns the intended difference between two results of `check`.
fn named_difference(ours: &Output, theirs: &Output) -> Option<&'static str> {
    let said = String::from_utf8_lossy(&theirs.stderr);
    let differs = ours.status.code() != theirs.status.code();
    let is_fault = ours.status.code() == Some(1) && ours.stdout.is_empty();
    if differs && said.contains("Could not open backing file") {
        return Some(PARENT);
    }
    if String::from_utf8_lossy(&ours.stderr).contains(MAP_PAST_END) {
        return Some(MAP_CHECK);
    }
    let is_refused = String::from_utf8_lossy(&ours.stderr).contains("smaller than 2^63 bytes");
    let has_checked = theirs.status.success() || fault_at(theirs).is_some();
    if is_refused && has_checked {
        return Some(LENGTH);
    }
    (theirs.status.signal() == Some(SIGFPE) && is_fault).then_some(DIVISION)
}
