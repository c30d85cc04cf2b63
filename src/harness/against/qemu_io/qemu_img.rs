//! qemu-img, for changes that qemu-io has no command for: new images, snapshots and bitmaps. It also copies the disk of
//! a snapshot to a file, from which the harness reads it.

use std::path::Path;

use crate::disk::storage::Storage;
use crate::formats::qcow2::bitmap;
use crate::formats::qcow2::constants::BITMAP_FIXED_BYTES;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::header::Header;
use crate::harness::against::differences::SECTOR_BYTES;
use crate::harness::engine::{Answer, BitmapChange, EngineError, NewImage, Opened};
use crate::harness::engines::engine_process::ImageCommands;
use crate::harness::engines::image_answers::{ConvertedFile, NamedSnapshot, is_plain, snapshots};
use crate::harness::files::chain::{Chain, ChainFile};
use crate::processes::ProcessEnd;

use super::recorded::{ImageOptions, name_of};
use super::session::run_qemu_img;

/// A change of the snapshots of an image.
#[derive(Clone, Debug)]
pub(super) struct SnapshotChange {
    /// The option of qemu-img.
    flag: &'static str,
    /// The name of a new snapshot, or the string by which qemu-img finds one.
    string: String,
}

impl SnapshotChange {
    fn new(flag: &'static str, string: &str) -> Self {
        Self { flag, string: string.to_string() }
    }

    /// Returns the change that applies the snapshot at `index`.
    pub(super) fn apply(snapshots: &[NamedSnapshot], index: usize) -> Answer<Self> {
        Ok(Self::new("-a", NamedSnapshot::string_of(snapshots, index)?))
    }

    pub(super) fn delete(snapshots: &[NamedSnapshot], index: usize) -> Answer<Self> {
        let snapshot = NamedSnapshot::nth(snapshots, index)?;
        match snapshots.iter().position(|other| other.name == snapshot.name) == Some(index) {
            true => Ok(Self::new("-d", &snapshot.name)),
            false => Err(EngineError::unsupported("another snapshot has the same name")),
        }
    }

    /// Returns the change that takes a snapshot, whose name none of `snapshots` has.
    pub(super) fn take(snapshots: &[NamedSnapshot]) -> Self {
        Self::new("-c", &new_name(snapshots.iter().map(|other| other.name.as_bytes())))
    }

    /// Returns the arguments that change the image which `options` name.
    pub(super) fn arguments(&self, options: &ImageOptions) -> String {
        let Self { flag, string } = self;
        let options = &options.with_layers_below;
        format!("snapshot -q {flag} '{string}' --image-opts '{options}'")
    }
}

pub(super) fn create(path: &Path, image: &NewImage) -> Answer {
    let compat = if image.version == 2 { "0.10" } else { "1.1" };
    let mut options = format!(
        "cluster_size={},compat={compat},refcount_bits={}",
        1u64 << image.cluster_bits,
        image.refcount_bits
    );
    if image.extended_l2 {
        options.push_str(",extended_l2=on");
    }
    if image.is_zstd {
        options.push_str(",compression_type=zstd");
    }
    let (name, size) = (name_of(path), image.size_bytes);
    run(&format!("create -q -f qcow2 -o {options} '{name}' {size}"), path.parent()).map(drop)
}

/// Runs qemu-img in a folder to its end, which must succeed. Returns all that it prints.
pub(super) fn run(arguments: &str, folder: Option<&Path>) -> Answer<String> {
    let ran = run_qemu_img(&format!("{arguments} 2>&1"), folder);
    match ran.end.process {
        ProcessEnd::Exit(0) => Ok(ran.output),
        ProcessEnd::Exit(1) => Err(EngineError::untyped(ran.output.trim().to_string())),
        _ => Err(EngineError::Ended(Box::new(ran.end))),
    }
}

/// Returns a name that is not among `taken`.
fn new_name<'n>(taken: impl Iterator<Item = &'n [u8]> + Clone) -> String {
    // There are fewer taken names than numbers.
    let mut names = (0u64..).map(|number| format!("new-{number}"));
    let is_free = |name: &String| taken.clone().all(|other| other != name.as_bytes());
    names.find(is_free).unwrap_or_default()
}

/// Returns the names of the bitmaps of an image, in the order of its directory.
pub(super) fn bitmap_names(file: &ChainFile) -> Answer<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    if let Some(extension) = &Head::read(file)?.bitmaps {
        bitmap::each_entry(file, extension, |_, at, entry| {
            let mut name = vec![0; usize::from(entry.name_bytes)];
            let behind = BITMAP_FIXED_BYTES as u64;
            file.read_at(at + behind + u64::from(entry.extra_bytes), &mut name)?;
            names.push(name);
            Ok(())
        })?;
    }
    Ok(names)
}

/// Returns the name of the bitmap at `index`, or a new one, if a command can have it.
pub(super) fn bitmap_name(names: &[Vec<u8>], index: usize, change: BitmapChange) -> Answer<String> {
    if let BitmapChange::Add { .. } = change {
        return Ok(new_name(names.iter().map(Vec::as_slice)));
    }
    let name = names.get(index).filter(|name| !name.is_empty() && is_plain(name));
    let name = name.ok_or_else(|| EngineError::unsupported("such a bitmap"))?;
    // All bytes are ASCII.
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Returns the arguments that change a bitmap of the image which `options` name.
pub(super) fn bitmap_arguments(name: &str, change: BitmapChange, options: &ImageOptions) -> String {
    let flags = match change {
        BitmapChange::Add { granularity_bits, is_enabled } => {
            let disabled = if is_enabled { "" } else { " --disable" };
            format!("--add -g {}{disabled}", 1u64 << granularity_bits)
        }
        BitmapChange::Remove => "--remove".to_string(),
        BitmapChange::Clear => "--clear".to_string(),
        BitmapChange::Enable => "--enable".to_string(),
        BitmapChange::Disable => "--disable".to_string(),
    };
    let options = &options.alone;
    format!("bitmap {flags} --image-opts '{options}' {name}")
}

/// The largest disk that is copied, in bytes: the copy lies where the files of the image do, which may be memory.
const MAX_COPIED_BYTES: u64 = 64 << 20;
/// The name of the copy.
const COPY: &str = "snapshot.raw";

/// Opens the snapshot at `index` of the image in the file `path`, which is that at the top of `chain`.
pub(super) fn open_snapshot<'s>(chain: &Chain, path: &Path, index: u32) -> Opened<'s> {
    let file = chain.image();
    let (snapshots, nth) = (snapshots(file, &Header::read(file)?)?, index as usize);
    let string = NamedSnapshot::string_of(&snapshots, nth)?;
    let size_bytes = snapshots.get(nth).map_or(0, |snapshot| snapshot.size_bytes);
    let size_bytes = size_bytes / SECTOR_BYTES * SECTOR_BYTES;
    let (Some(folder), true) = (path.parent(), size_bytes <= MAX_COPIED_BYTES) else {
        return Err(EngineError::NoAnswer);
    };
    let source = path.to_string_lossy();
    let convert = ["convert", "-q", "-U", "-t", "unsafe", "-l", string, "-f", "qcow2", "-O", "raw"];
    let files = [&*source, COPY];
    let commands = ImageCommands { line: "qemu-img", folder };
    let write = || commands.answer(&[&convert[..], &files].concat());
    let mut copy = ConvertedFile::written(folder.join(COPY), write)?;
    if copy.size_bytes < size_bytes {
        return Err(EngineError::NoAnswer);
    }
    copy.size_bytes = size_bytes;
    Ok(Box::new(copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(id: &str, name: &str) -> NamedSnapshot {
        NamedSnapshot { id: id.to_string(), name: name.to_string(), size_bytes: 0 }
    }

    fn string_of(change: Answer<SnapshotChange>) -> Option<String> {
        change.ok().map(|change| change.string)
    }

    #[test]
    fn a_change_names_the_snapshot_that_qemu_finds() {
        let all = [snapshot("1", ""), snapshot("", "3"), snapshot("2", ""), snapshot("3", "new-0")];
        let applied = [0, 1, 2, 3].map(|index| string_of(SnapshotChange::apply(&all, index)));
        let [one, two, three] = ["1", "2", "3"].map(|it| Some(it.to_string()));
        assert_eq!(applied, [one, None, two, three.clone()]);
        let deleted = [0, 1, 2, 3].map(|index| string_of(SnapshotChange::delete(&all, index)));
        let named = Some("new-0".to_string());
        assert_eq!(deleted, [Some(String::new()), three, None, named]);
        assert_eq!(string_of(Ok(SnapshotChange::take(&all))).as_deref(), Some("new-1"));
        assert_eq!(string_of(SnapshotChange::apply(&all, 4)), None);
    }

    #[test]
    fn a_new_name_is_free_and_others_are_plain() {
        let names: Vec<Vec<u8>> =
            ["new-0", "", "b\u{e9}", "b4"].map(|name| name.as_bytes().to_vec()).to_vec();
        let add = BitmapChange::Add { granularity_bits: 9, is_enabled: true };
        assert_eq!(bitmap_name(&names, 4, add).unwrap(), "new-1");
        let found =
            [0, 1, 2, 3, 4].map(|index| bitmap_name(&names, index, BitmapChange::Clear).ok());
        let [first, last] = ["new-0", "b4"].map(|name| Some(name.to_string()));
        assert_eq!(found, [first, None, None, last, None]);
    }
}
