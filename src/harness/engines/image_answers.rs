//! The answers of a program with the command line of qemu-img: the records of a map, the JSON of `info` and `check`,
//! the snapshots that a command can name, and the raw file that `convert` writes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::disk::extent::{Extent, Mapping};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot;
use crate::harness::against::differences::merged;
use crate::harness::engine::{Answer, CheckCounts, EngineError, ImageInfo, OpenDisk};
use crate::harness::files::chain::{Chain, ChainFile};
use crate::processes::ProcessEnd;

use super::engine_process::{EndedProgram, ImageCommands, reported};

/// A record in the output of any version of qemu-img.
#[derive(Debug, Deserialize)]
pub(crate) struct QemuMapRecord {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    /// The key exists since QEMU 8.2.
    compressed: Option<bool>,
    offset: Option<u64>,
}

impl QemuMapRecord {
    /// Reports whether the record states that data are compressed, or not.
    #[cfg(feature = "cli")]
    pub(crate) fn has_compressed(&self) -> bool {
        self.compressed.is_some()
    }
}

impl From<QemuMapRecord> for Extent {
    fn from(record: QemuMapRecord) -> Self {
        let QemuMapRecord { start, length, depth, present, zero, data, compressed, offset } =
            record;
        // Without this key, data without a host offset is compressed.
        let compressed = compressed.unwrap_or(data && offset.is_none());
        let offset = offset.map(HostOffset::new);
        let mapping = Mapping { depth, present, zero, data, compressed, offset };
        Self { start: GuestOffset::new(start), length_bytes: length, mapping }
    }
}

/// Parses the records, one in each line, and reports whether the list has an end.
pub(crate) fn parse_map(printed: &str) -> (Vec<Extent>, bool) {
    let lines =
        printed.lines().map(|line| line.trim_start_matches('[').trim_end_matches([']', ',']));
    let records = lines.filter_map(|line| serde_json::from_str::<QemuMapRecord>(line).ok());
    let extents = records.map(Extent::from).filter(|extent| extent.length_bytes > 0);
    (extents.collect(), printed.trim_end().ends_with(']'))
}

/// Returns the extents as if the files had no holes: the zero flag of data depends on them.
pub(crate) fn without_holes(extents: &[Extent], chain: &Chain) -> Vec<Extent> {
    let mut without = Vec::with_capacity(extents.len());
    merged(extents, |mapping| without_file_holes(mapping, chain), &mut without);
    without
}

/// Returns a mapping as if its file had no hole there. The holes of raw images and of fixed disks are zeros with an
/// offset. Their formats have no others but the rest of the last sector, behind the end of the file.
fn without_file_holes(mapping: Mapping, chain: &Chain) -> Mapping {
    let layer = usize::try_from(mapping.depth).ok().and_then(|depth| chain.layers().get(depth));
    let is_hole = layer.zip(mapping.offset).is_some_and(|(layer, offset)| {
        layer.format.facts().shows_file_holes && offset.get() < layer.image.length_bytes()
    });
    let data = mapping.data || is_hole;
    Mapping { data, zero: mapping.zero && !data, ..mapping }
}

/// The keys of `info --output=json` that the harness reads. A missing key means that the image has none.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct InfoJson {
    pub(super) virtual_size: u64,
    backing_filename: Option<String>,
    #[serde(default)]
    snapshots: Vec<IgnoredAny>,
    format_specific: Option<FormatJson>,
}

#[derive(Debug, Deserialize)]
struct FormatJson {
    data: SpecificJson,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct SpecificJson {
    data_file: Option<String>,
    #[serde(default)]
    bitmaps: Vec<IgnoredAny>,
}

/// The keys of `check --output=json` that the harness reads. qemu-img leaves out the first two if they are zero.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct CheckJson {
    #[serde(default)]
    corruptions: u64,
    #[serde(default)]
    leaks: u64,
    check_errors: u64,
}

impl InfoJson {
    /// Asks about the image of one layer of `chain`.
    pub(super) fn ask(commands: &ImageCommands<'_>, chain: &Chain, depth: usize) -> Answer<Self> {
        let Some(layer) = chain.layers().get(depth) else { return Err(EngineError::NoAnswer) };
        let format = layer.format.name();
        let printed = commands.answer(&["info", "--output=json", "-f", format, layer.name()])?;
        parsed_json(&printed)
    }
}

/// Asks for the properties of the image at the top of `chain`, and for the names of the files below it.
pub(crate) fn info(commands: &ImageCommands<'_>, chain: &Chain) -> Answer<ImageInfo> {
    let top = InfoJson::ask(commands, chain, 0)?;
    let (mut below, mut name) = (Vec::new(), top.backing_filename);
    while let Some(next) = name {
        below.push(next.into_bytes());
        name = match chain.layers().get(below.len()) {
            Some(_) => InfoJson::ask(commands, chain, below.len())?.backing_filename,
            None => None,
        };
    }
    let specific = top.format_specific.map(|it| it.data);
    Ok(ImageInfo {
        chain: Some(below),
        snapshots: Some(top.snapshots.len()),
        bitmaps: specific.as_ref().map(|it| it.bitmaps.len()),
        // An image without a data file names none.
        data_file: specific.map(|it| it.data_file.unwrap_or_default().into_bytes()),
    })
}

/// Has the program check the image at the top of `chain`. If its exit code and its numbers differ, the worse of both is
/// the answer.
pub(crate) fn check(commands: &ImageCommands<'_>, chain: &Chain) -> Answer<CheckCounts> {
    let (format, name) = (chain.format().name(), chain.image().name());
    let EndedProgram { end, output } =
        commands.run(&["check", "--output=json", "-f", format, name]);
    // Without numbers, the check is incomplete.
    let by_code = match end.process {
        ProcessEnd::Exit(0) => CheckCounts::default(),
        ProcessEnd::Exit(2) => CheckCounts { errors: 1, leaks: 0 },
        ProcessEnd::Exit(3) => CheckCounts { errors: 0, leaks: 1 },
        ProcessEnd::Exit(1) => return Err(reported(&end)),
        ProcessEnd::Exit(63) => return Err(EngineError::NoAnswer),
        _ => return Err(EngineError::Ended(Box::new(end))),
    };
    let CheckJson { corruptions, leaks, check_errors } = parsed_json(&output)?;
    // An image with as many errors is corrupt, too.
    let errors = corruptions.saturating_add(check_errors);
    Ok(CheckCounts { errors: errors.max(by_code.errors), leaks: leaks.max(by_code.leaks) })
}

/// Parses what a program prints.
fn parsed_json<'j, T: Deserialize<'j>>(printed: &'j str) -> Answer<T> {
    serde_json::from_str(printed)
        .map_err(|error| EngineError::untyped(format!("the output is not as expected: {error}")))
}

/// The longest id and the longest name of a snapshot that qemu-img finds (`QEMUSnapshotInfo`).
const MAX_FOUND_ID_BYTES: usize = 127;
const MAX_FOUND_NAME_BYTES: usize = 255;

/// A snapshot of an image, as far as qemu-img names it.
#[derive(Clone, Debug)]
pub(crate) struct NamedSnapshot {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The size of its disk in bytes.
    pub(crate) size_bytes: u64,
}

impl NamedSnapshot {
    /// Returns the id or the name by which qemu-img finds the snapshot at `index`. QEMU looks for ids first, then for
    /// names.
    ///
    /// # Errors
    /// qemu-img finds another snapshot, or a command cannot have the strings.
    pub(crate) fn string_of(snapshots: &[Self], index: usize) -> Answer<&str> {
        let snapshot = Self::nth(snapshots, index)?;
        let with_id = |id: &str| snapshots.iter().position(|other| other.id == id);
        let with_name = |name: &str| snapshots.iter().position(|other| other.name == name);
        match (with_id(&snapshot.id), with_id(&snapshot.name)) {
            (Some(first), _) if first == index && !snapshot.id.is_empty() => Ok(&snapshot.id),
            (_, None) if with_name(&snapshot.name) == Some(index) => Ok(&snapshot.name),
            _ => Err(EngineError::unsupported("another snapshot has the same name")),
        }
    }

    /// Returns the snapshot at `index`, if a command can have its strings.
    pub(crate) fn nth(snapshots: &[Self], index: usize) -> Answer<&Self> {
        let is_found = |string: &str, most| string.len() <= most && is_plain(string.as_bytes());
        let snapshot = snapshots.get(index).filter(|it| {
            is_found(&it.id, MAX_FOUND_ID_BYTES) && is_found(&it.name, MAX_FOUND_NAME_BYTES)
        });
        snapshot.ok_or_else(|| EngineError::unsupported("such a snapshot"))
    }
}

/// Returns the snapshots of an image, in the order of its table.
pub(crate) fn snapshots(file: &ChainFile, header: &Header) -> Answer<Vec<NamedSnapshot>> {
    let mut snapshots = Vec::new();
    snapshot::each_entry(file, header, |_, at, entry| {
        let [id_at, name_at] = entry.strings_at(at);
        let extra = snapshot::extra_of(file, at, entry)?;
        snapshots.push(NamedSnapshot {
            id: string(file, id_at, entry.id_bytes)?,
            name: string(file, name_at, entry.name_bytes)?,
            size_bytes: extra.disk_bytes.unwrap_or(header.size_bytes),
        });
        Ok(())
    })?;
    Ok(snapshots)
}

fn string(file: &ChainFile, at: HostOffset, length: u16) -> Result<String, MapError> {
    let mut bytes = vec![0; usize::from(length)];
    file.read_at(at, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reports whether a command may contain `name` without quotes.
pub(crate) fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// A disk that a program has written to a raw file. The file is deleted with this value.
#[derive(Debug)]
pub(crate) struct ConvertedFile {
    path: PathBuf,
    file: File,
    pub(crate) size_bytes: u64,
}

impl ConvertedFile {
    /// Has a program write the file at `path`, and opens it. A long file that the program leaves when it fails is
    /// deleted.
    pub(crate) fn written<T>(path: PathBuf, write: impl FnOnce() -> Answer<T>) -> Answer<Self> {
        if let Err(error) = write() {
            delete(&path);
            return Err(error);
        }
        let missing = |error| EngineError::untyped(format!("no file was written: {error}"));
        let file = File::open(&path).map_err(missing)?;
        let size_bytes = file.metadata()?.len();
        Ok(Self { path, file, size_bytes })
    }
}

impl OpenDisk for ConvertedFile {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        Ok(self.file.read_exact_at(into, guest.get())?)
    }
}

impl Drop for ConvertedFile {
    fn drop(&mut self) {
        delete(&self.path);
    }
}

fn delete(path: &Path) {
    // The folder is a temporary one: a file that stays is deleted with it.
    let _ = fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_older_versions_are_read() {
        let old = r#"{ "start": 0, "length": 9, "depth": 0, "present": true, "zero": false, "data": true,
            "filename": "x"}"#;
        let extent = Extent::from(serde_json::from_str::<QemuMapRecord>(old).unwrap());
        assert_eq!(extent.to_string(), "0x0+0x9 compressed");
    }

    #[test]
    fn missing_keys_mean_none() {
        let printed = r#"{"virtual-size": 512, "filename": "x", "format": "qcow2", "dirty-flag": false,
            "format-specific": {"type": "qcow2", "data": {"compat": "1.1"}}}"#;
        let InfoJson { virtual_size, backing_filename, snapshots, format_specific } =
            parsed_json(printed).unwrap();
        assert_eq!((virtual_size, backing_filename, snapshots.len()), (512, None, 0));
        assert_eq!(format_specific.map(|it| it.data.bitmaps.len()), Some(0));
        let CheckJson { corruptions, leaks, check_errors } =
            parsed_json(r#"{"check-errors": 0, "leaks": 2, "filename": "x"}"#).unwrap();
        assert_eq!((corruptions, leaks, check_errors), (0, 2, 0));
        assert!(parsed_json::<CheckJson>("{}").is_err() && parsed_json::<InfoJson>("").is_err());
    }
}
