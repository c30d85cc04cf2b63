//! VHD images, judged by qemu: valid ones of every shape, those that qemu-img makes, and damaged ones. The installed
//! qemu-img opens the same images as our walker, with the same extents and the same data.

#[allow(dead_code)]
mod qemu;
mod tally;
#[path = "vpc/writer.rs"]
mod writer;

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use qcowfuzz::disk::extent::{Extent, Mapping, Window};
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::GuestOffset;
use qcowfuzz::disk::storage::{FileStorage, Layer};
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::walkers::{self, Disk, WalkScratch};
use qemu::{Checked, compare};
use tally::Tally;

/// The length up to which a disk is compared byte for byte.
const MAX_COMPARED_BYTES: u64 = 16 << 20;

/// One image: the seed of its shape, and whether it is damaged.
struct Case {
    rng_seed: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Valid,
    Damaged,
    MadeByQemu,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, seed {}", self.kind, self.rng_seed)
    }
}

/// The lowest count of each comparison.
const BOUNDS: [(&str, u64); 7] = [
    ("valid images", 500),
    ("damaged images that open", 100),
    ("damaged images that are refused", 100),
    ("images that qemu makes", 150),
    ("extents", 4000),
    ("windows", 1500),
    ("whole disks", 600),
];

#[test]
fn qemu_agrees_about_vhd_images() {
    if !qemu::tools_are_there("qemu_agrees_about_vhd_images") {
        return;
    }
    let of = |kind, count| (0..count).map(move |rng_seed| Case { rng_seed, kind });
    let all = of(Kind::Valid, 520).chain(of(Kind::Damaged, 480)).chain(of(Kind::MadeByQemu, 160));
    let cases: Vec<Case> = all.collect();
    let dir = || tempfile::tempdir().unwrap();
    let tally: Tally = qemu::judge_all(&cases, dir, |dir, case| judge(case, dir.path()));
    tally.assert_at_least(&BOUNDS);
}

fn judge(case: &Case, dir: &Path) -> Checked<Tally> {
    let path = dir.join("image.vhd");
    let mut entropy = Entropy::new(case.rng_seed);
    match case.kind {
        Kind::MadeByQemu => make(&path, &mut entropy)?,
        kind => {
            let mut written = writer::write(&mut entropy);
            if kind == Kind::Damaged {
                (0..=entropy.below(2)).for_each(|_| writer::damage(&mut written, &mut entropy));
            }
            fs::write(&path, &written.bytes).map_err(|error| error.to_string())?;
        }
    }
    let mut tally = Tally::default();
    let refused = compare_image(&path, &mut entropy, &mut tally)?;
    let what = match (case.kind, refused) {
        (Kind::Damaged, None) => "damaged images that open",
        (Kind::Damaged, Some(_)) => "damaged images that are refused",
        (Kind::Valid, None) => "valid images",
        (Kind::MadeByQemu, None) => "images that qemu makes",
        (_, Some(error)) => return Err(format!("an image that must open is refused: {error}")),
    };
    tally.add(what, 1);
    Ok(tally)
}

/// Makes an image with qemu-img, and changes it with qemu-io.
fn make(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let bits = 1 + entropy.below(15);
    let size = 512 * (1 + entropy.below(1 << bits));
    let subformat = ["dynamic", "dynamic", "dynamic", "fixed"][entropy.below(4) as usize];
    let force = ["on", "off"][entropy.below(2) as usize];
    let options = format!("subformat={subformat},force_size={force}");
    let create = format!("create -q -f vpc -o {options}");
    let size = size.to_string();
    let mut arguments: Vec<&OsStr> = create.split(' ').map(OsStr::new).collect();
    arguments.extend([path.as_os_str(), OsStr::new(&size)]);
    qemu::img(&arguments)?;
    let size: u64 = size.parse().map_err(|_| "a size")?;
    for _ in 0..entropy.below(5) {
        let (at, pattern) = (entropy.below(size / 512) * 512, entropy.below(256));
        let length = (512 * (1 + entropy.below(300))).min(size - at);
        let kind = [format!("write -P {pattern}"), "write -z".to_string()];
        let command = format!("{} {at} {length}", kind[entropy.below(2) as usize]);
        let mut arguments = ["-f", "vpc", "-c", &command].map(OsStr::new).to_vec();
        arguments.push(path.as_os_str());
        let output = qemu::run("qemu-io", &arguments)?;
        if !output.status.success() {
            return Err(qemu::failure("qemu-io", &arguments, &output));
        }
    }
    Ok(())
}

/// Compares the walk, windows and the data of an image. Returns the error of qemu-img if neither opens it.
fn compare_image(path: &Path, entropy: &mut Entropy, tally: &mut Tally) -> Checked<Option<String>> {
    let theirs = map(path, Window::ALL)?;
    let storage = FileStorage::open(path).map_err(|error| error.to_string())?;
    let disk = Disk::open_as(ImageFormat::Vpc, &[Layer::alone(&storage)]);
    let (disk, theirs) = match (disk, theirs) {
        (Ok(disk), Ok(theirs)) => (disk, theirs),
        (Err(_), Err(error)) => return Ok(Some(error)),
        (Ok(_), Err(error)) => {
            return Err(format!("we open the image, and qemu-img does not: {error}"));
        }
        (Err(error), Ok(_)) => {
            return Err(format!("qemu-img opens the image, and we do not: {error}"));
        }
    };
    same(&disk, Window::ALL, &theirs)?;
    tally.add("extents", theirs.len() as u64);
    for window in compare::windows(entropy, &theirs, u64::MAX, 3) {
        let theirs = map(path, window)?.map_err(|error| format!("{window:?}: {error}"))?;
        same(&disk, window, &theirs)?;
        tally.add("windows", 1);
    }
    let size = disk.virtual_size_bytes();
    if (1..=MAX_COMPARED_BYTES).contains(&size) {
        let theirs = qemu::convert_with(&["-f", "vpc"], path, &path.with_extension("raw"))?;
        let mut ours = vec![0xA5; size as usize];
        walkers::read(&disk, GuestOffset::ZERO, &mut ours, &mut WalkScratch::new())
            .map_err(|error| format!("our read: {error}"))?;
        compare::same_bytes("the disk", 0, &ours, &theirs)?;
        tally.add("whole disks", 1);
    }
    Ok(None)
}

/// Compares our walk and look-ups with the extents of qemu-img.
fn same(disk: &Disk<FileStorage>, window: Window, theirs: &[Extent]) -> Checked<()> {
    let mut ours = Vec::new();
    let mut keep = |extent| {
        ours.push(extent);
        ControlFlow::Continue(())
    };
    walkers::map_extents(disk, window, &mut WalkScratch::new(), &mut keep)
        .map_err(|error| format!("our walk: {error}"))?;
    let theirs = without_host_holes(theirs);
    if ours != theirs {
        return Err(format!("{window:?}\nours   {ours:?}\ntheirs {theirs:?}"));
    }
    for extent in ours {
        let last = extent.length_bytes - 1;
        for delta in [0, last / 2, last] {
            let found = walkers::lookup(disk, extent.start.saturating_add(delta));
            if found.as_ref().ok() != extent.mapping.advanced(delta).as_ref() {
                return Err(format!("look-up of byte {delta} of {extent}: {found:?}"));
            }
        }
    }
    Ok(())
}

/// Returns the extents without the zero flag of data in holes of the file, which QEMU sets for fixed disks, and without
/// the empty record of an empty window.
fn without_host_holes(extents: &[Extent]) -> Vec<Extent> {
    let mut merged: Vec<Extent> = Vec::new();
    for extent in extents.iter().filter(|extent| extent.length_bytes > 0) {
        let mapping =
            Mapping { zero: extent.mapping.zero && !extent.mapping.data, ..extent.mapping };
        match merged.last_mut() {
            Some(last) if last.mapping.continues_as(last.length_bytes, &mapping) => {
                last.length_bytes += extent.length_bytes;
            }
            _ => merged.push(Extent { mapping, ..*extent }),
        }
    }
    merged
}

/// Returns the extents that qemu-img prints for a window, or its error.
fn map(path: &Path, window: Window) -> Checked<Checked<Vec<Extent>>> {
    let mut arguments = ["map", "--output=json", "-f", "vpc"].map(OsStr::new).to_vec();
    let start = format!("--start-offset={}", window.start);
    let length = format!("--max-length={}", window.length_bytes.min(1 << 62));
    arguments.extend([OsStr::new(&start), OsStr::new(&length), path.as_os_str()]);
    let output = qemu::run("qemu-img", &arguments)?;
    Ok(match output.status.success() {
        true => Ok(qemu::beginning(&output)?),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    })
}
