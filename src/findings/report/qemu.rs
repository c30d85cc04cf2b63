//! Runs `qemu-img map` on the files that a program builds.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::base::files::Existing;
use crate::disk::extent::Extent;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::qcow2::constants::INCOMPATIBLE_DATA_FILE;
use crate::harness::against::qemu_io::printed_version;
use crate::harness::cases::target::Expectation;
use crate::harness::engines::image_answers::QemuMapRecord;
use crate::images::files::export::Holes;
use crate::images::files::{FileNames, Images, LayerFiles};
use crate::processes::{Executable, ProcessEnd, Reply, TemporaryFolder, run};
use crate::programs::export::{self, Built};

use super::Report;

/// The file of the image at the top. [`FileNames::default`] names the other files; their names begin with this one.
const TOP_STEM: &str = "layer";
/// The maximum total length of files that are written without holes, in bytes.
const MAX_COMPARED_FILLED_BYTES: u64 = 64 << 20;
/// The time limit of qemu-img, which takes hours for some disks.
const QEMU_PATIENCE: Duration = Duration::from_secs(5);
/// The offset of the incompatible features in a header, in bytes.
const INCOMPATIBLE_AT: u64 = 72;

/// The map of a disk by qemu-img.
#[derive(Debug)]
pub struct Map {
    /// The extents.
    pub extents: Vec<Extent>,
    /// The treatment of holes in the files. If they were kept, qemu-img may report that allocated clusters which were
    /// never written read as zeros.
    pub holes: Holes,
}

/// The result of `qemu-img map` for a disk.
#[derive(Debug)]
pub struct QemuResult {
    /// The version of qemu-img, if there is a map.
    pub version: Option<String>,
    /// The map, or the reason why there is none, for people.
    pub answer: Result<Map, String>,
}

impl QemuResult {
    /// Runs `qemu-img map` on the disk of a report. The images name each other by [`FileNames::default`].
    pub fn of(report: &Report) -> Self {
        let answer = map_of(report);
        Self { version: answer.is_ok().then(version).flatten(), answer }
    }
}

fn map_of(report: &Report) -> Result<Map, String> {
    let not_run = |why: &str| Err(format!("not run: {why}"));
    match (report.target.definition().expectation, &report.evidence.built) {
        (Expectation::Unknown, _) => {
            not_run("the input is an image file, and qemu-img would open the files that it names")
        }
        (Expectation::Bytes, _) => not_run("the run itself compares the map of each step"),
        (Expectation::NotWalked, _) => not_run("the target checks refcounts and walks no disk"),
        (_, Some(built)) => map(built.files()),
        (_, None) => not_run("the input could not be explained"),
    }
}

/// Writes the files to a temporary folder, and runs `qemu-img map`. qemu-img follows no name in an image, because the
/// command line passes the path of each file. The images name each other by [`FileNames::default`].
fn map(built: Built) -> Result<Map, String> {
    let names = FileNames::default();
    let (_, images) = built;
    if let Some(depth) = images.layers().position(|files| has_unknown_data_file(files)) {
        let what = format!(
            "not run: damage makes the header of layer {depth} (0 is the top) name a data file that the program did not build"
        );
        return Err(what);
    }
    let dir =
        TemporaryFolder::on_disk().map_err(|error| format!("no temporary folder: {error}"))?;
    let length: u64 = images.files(&names).map(|(_, image)| image.length_bytes()).sum();
    let holes = if length <= MAX_COMPARED_FILLED_BYTES { Holes::Fill } else { Holes::Keep };
    export::write(&dir.path().join(TOP_STEM), Existing::Keep, built, holes)
        .map_err(|error| format!("its files could not be written: {error}"))?;
    let disk = format!("json:{}", disk(dir.path(), images, &names));
    let printed = ask(dir.path(), &["map", "--output=json", &disk])?;
    let answer: Vec<QemuMapRecord> = serde_json::from_slice(&printed)
        .map_err(|error| format!("its answer could not be read: {error}"))?;
    if images.layers().any(|files| files.format.facts().is_all_data_for_qemu) {
        // It says that all of the disk is data.
        return Err("it opens the disk, and reports no blocks of images in this format".to_string());
    }
    Ok(Map { extents: answer.into_iter().map(Extent::from).collect(), holes })
}

/// Returns the version of the installed qemu-img.
pub fn version() -> Option<String> {
    printed_version("qemu-img").ok()
}

/// Reports whether damage made the image name a data file that the program did not build.
fn has_unknown_data_file(files: &LayerFiles) -> bool {
    let number = |at: u64| files.image.number(HostOffset::new(at), 8);
    // The low half of the first number is the version, after the magic. Headers of version 2 have no features.
    let version = number(0) & u64::from(u32::MAX);
    let flag = version > 2 && number(INCOMPATIBLE_AT) & INCOMPATIBLE_DATA_FILE != 0;
    flag && files.format == ImageFormat::Qcow2 && !files.has_data_file
}

/// Returns the files of the chain, as a block device of QEMU.
fn disk(dir: &Path, images: &Images, names: &FileNames) -> serde_json::Value {
    let layers = images.layers().len();
    let file = |name: &str| json!({ "driver": "file", "filename": dir.join(name) });
    let mut below = serde_json::Value::Null;
    for (height, files) in images.layers().rev().enumerate() {
        let top = height + 1 == layers;
        let name = if top { TOP_STEM } else { names.image(height, files.format) };
        below = match files.format {
            format if format.facts().has_backing_files => {
                json!({ "driver": format.name(), "file": file(name), "backing": below })
            }
            format => json!({ "driver": format.name(), "file": file(name) }),
        };
        for (index, (name, _)) in names.extents(height).iter().zip(files.extents.all()).enumerate()
        {
            below[format!("extents.{index}")] = file(name);
        }
        if files.has_data_file {
            below["data-file"] = file(names.data_file(height));
        }
    }
    below
}

/// Runs qemu-img in a folder, and returns its output.
fn ask(dir: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
    // Ctrl-C at the terminal ends it, too: it takes hours for some disks.
    let qemu_img = Executable::new("qemu-img", []).with(arguments).sharing_group();
    let ran = run(&qemu_img.in_folder(Some(dir)), QEMU_PATIENCE);
    let Reply { end, stdout, stderr } = ran.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "not run: qemu-img is not installed".to_string(),
        _ => format!("it could not be run: {error}"),
    })?;
    match end {
        ProcessEnd::Exit(0) => Ok(stdout),
        ProcessEnd::Timeout => Err(format!("no answer after {} seconds", QEMU_PATIENCE.as_secs())),
        _ => {
            let line = complaint(&first_line(&stderr), dir);
            Err(if line.is_empty() { end.to_string() } else { line })
        }
    }
}

/// Returns an error message of qemu-img without the path of the temporary folder.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_name_no_local_folder() {
        let dir = Path::new("/tmp/.tmpx");
        let shortened = |line: &str| complaint(line, dir);
        assert_eq!(
            shortened(
                "qemu-img: Could not open 'json:{\"file\":{\"filename\":\"/tmp/.tmpx/layer\"}}': No."
            ),
            "could not open the image: No."
        );
        assert_eq!(shortened("qemu-img: /tmp/.tmpx/layer.0.raw: gone"), "layer.0.raw: gone");
    }
}
