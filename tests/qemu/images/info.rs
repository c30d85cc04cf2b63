//! Compares our record of an image with the output of `qemu-img info`.

use std::os::unix::process::ExitStatusExt;
use test_support::prelude::*;

use qcowfuzz::internal::cli::info::record::InfoRecord;
use qcowfuzz::internal::cli::info::record_of_file;
use serde_json::Value;

/// QEMU opens a VDI image whose block map reaches past the end of the file.
const MAP_PAST_END: &str = "info: qemu-img opens block maps past the end of the file";

/// The result of a comparison without a disagreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Both print the same record.
    Same,
    /// Both refuse the image.
    Refused,
    /// The records differ as intended.
    Named(&'static str),
}

/// The intended differences.
pub const ENCRYPTED: &str = "info: qemu-img describes encrypted images, which we do not open";
pub const NO_EXTENT: &str =
    "info: qemu-img aborts for a VMDK image without extents, which we refuse";

/// The signal that ends a process which aborts.
const SIGABRT: i32 = 6;

/// Compares all fields of the JSON form, or the decisions to open the image.
pub fn compare_json(path: &Path, format: ImageFormat) -> Checked<Compared> {
    let theirs = printed(path, format, "json")?;
    let (ours, theirs) = match (record(path, format), theirs.status.success()) {
        (Ok(ours), true) => (serde_json::to_value(&ours), serde_json::from_slice(&theirs.stdout)),
        (Err(error), false) if theirs.status.signal() == Some(SIGABRT) => {
            return match error.ends_with("the descriptor names no extent") {
                true => Ok(Compared::Named(NO_EXTENT)),
                false => Err(format!("info: qemu-img aborts, ours: {error}")),
            };
        }
        (Err(_), false) => return Ok(Compared::Refused),
        (Err(error), true) if error.contains("unsupported feature: encryption") => {
            return Ok(Compared::Named(ENCRYPTED));
        }
        (Err(error), true) if error.contains("header: end of the block map is ") => {
            return Ok(Compared::Named(MAP_PAST_END));
        }
        (ours, _) => {
            let said = String::from_utf8_lossy(&theirs.stderr);
            return Err(format!("info: ours {:?}, qemu-img: {said:?}", ours.err()));
        }
    };
    let (ours, theirs): (Value, Value) = (ours.described()?, theirs.described()?);
    match ours == theirs {
        true => Ok(Compared::Same),
        false => Err(format!("info: ours {ours:#}\ntheirs {theirs:#}")),
    }
}

/// Compares the human form byte for byte. Both must open the image.
pub fn compare_human(path: &Path, format: ImageFormat) -> Checked<()> {
    let mut ours = Vec::new();
    let record = record(path, format).map_err(|error| format!("our info: {error}"))?;
    record.print(&mut ours).described()?;
    let theirs = printed(path, format, "human")?.stdout;
    let [one, other] = [&ours, &theirs].map(|bytes| String::from_utf8_lossy(bytes));
    match ours == theirs {
        true => Ok(()),
        false => Err(format!("info: ours\n{one}\ntheirs\n{other}")),
    }
}

fn record(path: &Path, format: ImageFormat) -> Checked<InfoRecord> {
    record_of_file(path, Some(format.name()), false).described()
}

fn printed(path: &Path, format: ImageFormat, form: &str) -> Checked<Output> {
    let arguments = ["info", "--output", form, "-f", format.name()].map(OsStr::new);
    // Our dates of snapshots are in UTC.
    let mut command = Command::new("qemu-img");
    command.env("TZ", "UTC").args(arguments).arg(path);
    command.output().map_err(|error| format!("qemu-img: {error}"))
}
