//! Compares the commands `info` and `check` with those of qemu-img, whether an image opens or not.

use std::os::unix::process::ExitStatusExt;
use test_support::prelude::*;

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::disk::storage::each_data;
use qcowfuzz::internal::images::damage::BrokenEntry;
use qcowfuzz::internal::images::format::list::drawer;
use qcowfuzz::walkers;

use super::comparison::SIGFPE;
use crate::images::info::{self, Compared};

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
    let is_same_fault = fault.is_none_or(|guest| said.contains(&format!("offset {guest:#x}: ")));
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

/// Refused images that break no rule: QEMU does not read the copy of a structure, checks more entries than
/// those that map the disk, or refuses what the format allows; or the rules leave out the files that an image names.
const WITHOUT_RULE: &str = "refused images that break no rule";
/// The number of images that break a rule.
pub const WITH_RULE: &str = "images that break a rule";

/// Returns the counts of a format, with their lowest values. Random images may miss a rule:
/// `tests/qemu/damaged/refusals.rs` has images for each of them.
pub fn bounds(format: ImageFormat) -> impl Iterator<Item = (&'static str, u64)> {
    let drawer = drawer(format);
    let rules = drawer.open_rules().into_iter().chain(drawer.entry_rules().iter().copied());
    rules.chain([WITHOUT_RULE]).map(|rule| (rule, 0))
}

/// Reads the data of a file into memory.
fn image_of(path: &Path) -> Checked<Image> {
    let file = FileStorage::open(path).described()?;
    let mut image = Image::default();
    let all = HostOffset::ZERO..HostOffset::new(file.length_bytes());
    let mut scratch = vec![0; 1 << 16];
    let read = each_data(&file, all, &mut scratch, |data| {
        image.write(data.offset, data.bytes);
        Ok::<_, StorageError>(std::ops::ControlFlow::Continue(()))
    });
    let _ = read.described()?;
    image.seal(file.length_bytes());
    image.cut(file.length_bytes());
    Ok(image)
}

/// Checks that QEMU refuses the image at `path`, or a read of it, if that breaks a rule. `refused` is the error of
/// qemu-img. Counts the broken rules.
pub fn compare_rules(
    path: &Path,
    format: ImageFormat,
    refused: Option<&str>,
    tally: &mut Tally,
) -> Checked<()> {
    let image = image_of(path)?;
    match (drawer(format).broken_at_open(&image), refused) {
        (Some(rule), Some(_)) => {
            tally.add(rule, 1);
            tally.add(WITH_RULE, 1);
        }
        (Some(rule), None) => return Err(format!("qemu-img opens an image that breaks: {rule}")),
        (None, _) => {
            let mut broken: Vec<BrokenEntry> = Vec::new();
            drawer(format).broken_entries(&image, &mut |entry| {
                if broken.iter().all(|other| other.rule != entry.rule) {
                    broken.push(entry);
                }
            });
            for entry in &broken {
                let is_refused = refused.is_some() || !reads(path, format, entry)?;
                if !is_refused
                    || refused.is_none() && format != ImageFormat::Vmdk && !entry.is_mapped
                {
                    return Err(format!("qemu-img answers, and the image has {entry:?}"));
                }
                tally.add(entry.rule, 1);
            }
            tally.add(WITH_RULE, u64::from(!broken.is_empty()));
            if refused.is_some() && broken.is_empty() {
                tally.add(WITHOUT_RULE, 1);
            }
        }
    }
    Ok(())
}

/// Reports whether qemu-io reads the first byte of the range that an entry maps.
fn reads(path: &Path, format: ImageFormat, entry: &BrokenEntry) -> Checked<bool> {
    let command = format!("read {} 1", entry.guest.start);
    let arguments = ["-r", "-f", format.name(), "-c", &command].map(OsStr::new);
    let output = qemu::run("qemu-io", &[&arguments[..], &[path.as_os_str()]].concat())?;
    Ok(output.status.success())
}

/// The number of parts of a disk, and their length: qemu-io reads all of them in one process.
const PARTS: usize = 24;
const PART_BYTES: u64 = 700;

/// Compares our reads with those of qemu-io. `disk` has these extents. VHDX images have a comparison of their own,
/// which knows the blocks.
pub fn compare_parts(
    format: ImageFormat,
    path: &Path,
    (disk, extents): (&Disk<FileStorage>, &[Extent]),
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<()> {
    if format == ImageFormat::Vhdx {
        return Ok(());
    }
    // QEMU may be unable to read some of a damaged disk, and prints nothing then. So each read stands alone.
    let windows = windows(disk.virtual_size_bytes(), extents, entropy);
    let (mut ours, mut readable) = (vec![0xA5; PART_BYTES as usize], Vec::new());
    for window in windows {
        let part = &mut ours[..window.length_bytes as usize];
        match walkers::read(disk, window.start, part, &mut WalkScratch::new()) {
            Ok(()) => readable.push((window, part.to_vec())),
            Err(error) => {
                let alone = qemu::read_with(path, format.name(), &[window]);
                if alone.is_ok() {
                    return Err(format!("qemu-io reads {window:?}, and we do not: {error}"));
                }
                tally.add("parts of disks that cannot be read", 1);
            }
        }
    }
    let windows: Vec<Window> = readable.iter().map(|(window, _)| *window).collect();
    if windows.is_empty() {
        return Ok(());
    }
    for ((window, ours), theirs) in
        readable.iter().zip(qemu::read_with(path, format.name(), &windows)?)
    {
        compare::same_bytes("our read", window.start.get(), ours, &theirs)?;
    }
    tally.add("parts of disks", windows.len() as u64);
    Ok(())
}

/// Returns parts of a disk, each with an end of an extent in its middle. Those of data come first.
fn windows(size: u64, extents: &[Extent], entropy: &mut Entropy) -> Vec<Window> {
    let mut edges = BTreeSet::new();
    let (data, zeros): (Vec<&Extent>, Vec<_>) = extents.iter().partition(|it| it.mapping.data);
    let chosen = |from: &[&Extent], entropy: &mut Entropy| {
        let extent = from.get(entropy.below(from.len() as u64) as usize);
        extent.map(|it| [it.start, it.start + (it.length_bytes - 1)])
    };
    for from in [data, zeros] {
        for _ in 0..if from.is_empty() { 0 } else { PARTS / 4 } {
            edges.extend(chosen(&from, entropy).into_iter().flatten());
        }
    }
    let window = |edge: GuestOffset| {
        let start = edge.get().saturating_sub(PART_BYTES / 2);
        Window { start: GuestOffset::new(start), length_bytes: PART_BYTES.min(size - start) }
    };
    edges.into_iter().map(window).collect()
}
