//! What `qemu-img map` says of the files that a program builds.

use qcowfuzz::harness::target::Expectation;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;

use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::qcow2::constants::INCOMPATIBLE_DATA_FILE;
use qcowfuzz::images::export::Holes;
use qcowfuzz::images::files::{FileNames, Images, LayerFiles};

use super::account::Account;
use super::files::Built;
use super::files::{self, Existing};
use super::once::wait;
use super::output::Record;
use qcowfuzz::harness::targets::TargetKind;

/// What the image at the top is called: the names of the others, made of it, are [`FileNames::default`].
const TOP_STEM: &str = "layer";
/// Files up to this length, together, are written with their holes filled.
const MAX_COMPARED_FILLED_BYTES: u64 = 64 << 20;
/// As long as qemu-img is waited for: there are disks over which it takes hours.
const QEMU_PATIENCE: Duration = Duration::from_secs(5);
/// As much as is read of what it prints: a few hundred thousand extents.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Where the incompatible features are in a header.
const INCOMPATIBLE_AT: u64 = 72;

/// What qemu-img says of a disk.
#[derive(Debug)]
pub struct Map {
    /// Its extents.
    pub records: Vec<Record>,
    /// Of clusters that are allocated and were never written, qemu-img may say that they read as zeros.
    pub holes: Holes,
}

/// Writes what was built to a folder of its own, and asks `qemu-img map`. No name that is in an image is
/// followed: which file lies where is told beside. The images call each other by [`FileNames::default`].
///
/// # Errors
/// In words: there is no qemu-img, it says that something is wrong, or it takes too long.
fn map(built: Built) -> Result<Map, String> {
    let names = FileNames::default();
    let (_, images) = built;
    if let Some(depth) = images.layers().position(names_a_stranger) {
        return Err(format!(
            "not asked: a header {depth} layers down was made to name a data file"
        ));
    }
    let dir = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let length: u64 = images.files(&names).map(|(_, image)| image.length_bytes()).sum();
    let holes = if length <= MAX_COMPARED_FILLED_BYTES { Holes::Fill } else { Holes::Keep };
    let written = files::write_images(&dir.path().join(TOP_STEM), Existing::Keep, built, holes);
    written.map_err(|failure| format!("its files could not be written: {failure}"))?;
    let disk = format!("json:{}", disk(dir.path(), images, &names));
    let said = run(dir.path(), &["map", "--output=json", &disk])?;
    let said: Vec<Said> = serde_json::from_slice(&said)
        .map_err(|error| format!("its answer could not be read: {error}"))?;
    Ok(Map { records: said.into_iter().map(Record::from).collect(), holes })
}

/// What qemu-img says of the disk of an account, whose images call each other by [`FileNames::default`].
///
/// # Errors
/// As for [`map`], and in words why it is not asked.
pub fn asked(account: &Account, target: TargetKind) -> Result<Map, String> {
    match (target.definition().expectation, account.evidence.explanation()) {
        (Expectation::Unknown, _) => {
            Err("not asked: the input is a file, and whatever it names is nobody's to open".into())
        }
        (Expectation::NotWalked, _) => {
            Err("not asked: of refcounts the counts are judged, and no disk is walked".into())
        }
        (_, Some(explanation)) => map(explanation.built()),
        (_, None) => Err("not asked: the input could not be explained".into()),
    }
}

/// Which qemu-img there is, if any.
pub fn version() -> Option<String> {
    let output = Command::new("qemu-img").arg("--version").stdin(Stdio::null()).output().ok()?;
    let first = first_line(&output.stdout);
    let version = first.strip_prefix("qemu-img version ")?.split_whitespace().next()?;
    Some(version.to_string())
}

/// Whether the image says that its data are in another file, where none was built: damage did that.
fn names_a_stranger(files: &LayerFiles) -> bool {
    let number = |at: u64| files.image.number(HostOffset::new(at), 8);
    // The magic stands before the version; headers of version 2 have no features.
    let version = number(0) & u64::from(u32::MAX);
    let says = version > 2 && number(INCOMPATIBLE_AT) & INCOMPATIBLE_DATA_FILE != 0;
    says && !files.raw && !files.has_data_file
}

/// The files of the chain, as qemu-img is told them.
fn disk(dir: &Path, images: &Images, names: &FileNames) -> serde_json::Value {
    let layers = images.layers().len();
    let file = |name: &str| json!({ "driver": "file", "filename": dir.join(name) });
    let mut below = serde_json::Value::Null;
    for (height, files) in images.layers().rev().enumerate() {
        let top = height + 1 == layers;
        let name = if top { TOP_STEM } else { names.image(height, files.raw) };
        below = match files.raw {
            true => json!({ "driver": "raw", "file": file(name) }),
            false => json!({ "driver": "qcow2", "file": file(name), "backing": below }),
        };
        if files.has_data_file {
            below["data-file"] = file(names.data_file(height));
        }
    }
    below
}

/// What qemu-img prints.
fn run(dir: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
    // Files, so that neither side waits for the other.
    let failed = |error: io::Error| format!("it could not be run: {error}");
    let [out, said] = ["stdout", "stderr"].map(|name| dir.join(name));
    let mut command = Command::new("qemu-img");
    command.args(arguments).current_dir(dir).stdin(Stdio::null());
    command.stdout(File::create(&out).map_err(failed)?);
    command.stderr(File::create(&said).map_err(failed)?);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "not asked: qemu-img is not installed".to_string(),
        _ => failed(error),
    })?;
    let Some(status) = wait(&mut child, QEMU_PATIENCE).map_err(failed)? else {
        return Err(format!("no answer after {} seconds", QEMU_PATIENCE.as_secs()));
    };
    if !status.success() {
        let line = complaint(&first_line(&fs::read(&said).map_err(failed)?), dir);
        return Err(if line.is_empty() { status.to_string() } else { line });
    }
    let mut answer = Vec::new();
    let file = File::open(&out).map_err(failed)?;
    file.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).map_err(failed)?;
    Ok(answer)
}

/// What qemu-img says of an image, without the long name that the image has here.
fn complaint(line: &str, dir: &Path) -> String {
    let line = line.trim_start_matches("qemu-img: ").replace(&format!("{}/", dir.display()), "");
    match line.split_once("}': ") {
        Some((name, why)) if name.starts_with("Could not open 'json:") => {
            format!("could not open the image: {why}")
        }
        _ => line,
    }
}

fn first_line(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().trim().to_string()
}

/// A record, as qemu-img prints it.
#[derive(Debug, Deserialize)]
struct Said {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    /// Since QEMU 8.2.
    compressed: Option<bool>,
    offset: Option<u64>,
}

impl From<Said> for Record {
    fn from(said: Said) -> Self {
        let Said { start, length, depth, present, zero, data, compressed, offset } = said;
        // Data that lie nowhere in particular are compressed.
        let compressed = compressed.unwrap_or(data && offset.is_none());
        Self { start, length, depth, present, zero, data, compressed, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_told_without_the_names_of_here() {
        let dir = Path::new("/tmp/.tmpx");
        let told = |line: &str| complaint(line, dir);
        assert_eq!(
            told(
                "qemu-img: Could not open 'json:{\"file\":{\"filename\":\"/tmp/.tmpx/layer\"}}': No."
            ),
            "could not open the image: No."
        );
        assert_eq!(told("qemu-img: /tmp/.tmpx/layer.0.raw: gone"), "layer.0.raw: gone");
    }

    #[test]
    fn what_older_versions_print_is_read() {
        let old = r#"{ "start": 0, "length": 9, "depth": 0, "present": true, "zero": false, "data": true,
            "filename": "x"}"#;
        let record = Record::from(serde_json::from_str::<Said>(old).unwrap());
        assert_eq!(record.extent().to_string(), "0x0+0x9 compressed");
    }
}
