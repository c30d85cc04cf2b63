//! Compares our record of an image with the output of `qemu-img info`.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use qcowfuzz::disk::storage::FileStorage;
use qcowfuzz::internal::cli::info::record::InfoRecord;
use qcowfuzz::internal::cli::info::{human, info_record};
use qcowfuzz::internal::disk::image_format::ImageFormat;
use qcowfuzz::walkers::MapError;
use serde_json::Value;

use crate::qemu::Checked;

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

/// The intended difference.
pub const ENCRYPTED: &str = "info: qemu-img describes encrypted images, which we do not open";

/// Compares all fields of the JSON form, or the decisions to open the image.
pub fn compare_json(path: &Path, format: ImageFormat) -> Checked<Compared> {
    let theirs = printed(path, format, "json")?;
    let (ours, theirs) = match (record(path, format)?, theirs.status.success()) {
        (Ok(ours), true) => (serde_json::to_value(&ours), serde_json::from_slice(&theirs.stdout)),
        (Err(_), false) => return Ok(Compared::Refused),
        (Err(MapError::Unsupported(what)), true) if what.starts_with("encryption") => {
            return Ok(Compared::Named(ENCRYPTED));
        }
        (ours, _) => {
            let said = String::from_utf8_lossy(&theirs.stderr);
            return Err(format!("info: ours {:?}, qemu-img: {said:?}", ours.err()));
        }
    };
    let (ours, theirs): (Value, Value) =
        (ours.map_err(|error| error.to_string())?, theirs.map_err(|error| error.to_string())?);
    match ours == theirs {
        true => Ok(Compared::Same),
        false => Err(format!("info: ours {ours:#}\ntheirs {theirs:#}")),
    }
}

/// Compares the human form byte for byte. Both must open the image.
pub fn compare_human(path: &Path, format: ImageFormat) -> Checked<()> {
    let mut ours = Vec::new();
    let record = record(path, format)?.map_err(|error| format!("our info: {error}"))?;
    human::print(&record, &mut ours).map_err(|error| error.to_string())?;
    let theirs = printed(path, format, "human")?.stdout;
    let [one, other] = [&ours, &theirs].map(|bytes| String::from_utf8_lossy(bytes));
    match ours == theirs {
        true => Ok(()),
        false => Err(format!("info: ours\n{one}\ntheirs\n{other}")),
    }
}

fn record(path: &Path, format: ImageFormat) -> Checked<Result<InfoRecord, MapError>> {
    let storage = FileStorage::open(path).map_err(|error| error.to_string())?;
    Ok(info_record(path, format, &storage))
}

fn printed(path: &Path, format: ImageFormat, form: &str) -> Checked<Output> {
    let arguments = ["info", "--output", form, "-f", format.name()].map(OsStr::new);
    // Our dates of snapshots are in UTC.
    let mut command = Command::new("qemu-img");
    command.env("TZ", "UTC").args(arguments).arg(path);
    command.output().map_err(|error| format!("qemu-img: {error}"))
}
