//! Compares our answers about images of a format with those of qemu-img.

use std::marker::PhantomData;
use std::os::unix::process::ExitStatusExt;
use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Part;
use qcowfuzz::walkers;
use qcowfuzz::walkers::MapError;
use qcowfuzz::walkers::chain::FileChain;

use super::commands::{self, compare_commands};
use super::parts::{self, Programs};
use super::program;

/// The length up to which a disk is compared byte for byte.
const MAX_COMPARED_BYTES: u64 = 16 << 20;

/// The signal that ends a process which divides by zero.
pub const SIGFPE: i32 = 8;

/// A format, and how images of it are made.
pub trait TestedFormat: Sync {
    const FORMAT: ImageFormat;
    /// The numbers of images of each kind.
    const VALID: u64;
    const DAMAGED: u64;
    const MADE_BY_QEMU: u64;
    /// The number of images of large disks, mostly holes.
    const LARGE: u64 = 0;
    /// The number of random programs with a large disk.
    const LARGE_PROGRAMS: u64 = 0;
    /// The number of random programs, with the base that gives them the format.
    const PROGRAMS: (u64, Base);
    /// The lowest number of pairs of parts that programs have together.
    const PAIRS: usize;
    /// The number of programs that damage their images, and the parts that they attack.
    const ATTACKED: (u64, &[Part]) = (0, &[]);
    /// The lowest count of each comparison.
    const BOUNDS: &[(&str, u64)];
    /// One image in this many is compared in windows, too.
    const WINDOWS_OF: u64 = 4;
    /// One image in this many is read whole.
    const DATA_OF: u64 = 1;

    /// Writes an image to `path`, and the files that it names beside it.
    fn write(path: &Path, kind: Kind, entropy: &mut Entropy) -> Checked<()>;

    /// Returns the name of an intended difference between our data and those of QEMU, if an image shows one.
    fn data_difference(_path: &Path) -> Checked<Option<&'static str>> {
        Ok(None)
    }

    /// Checks more of an image that opens.
    fn check_more(_path: &Path, _entropy: &mut Entropy, _tally: &mut Tally) -> Checked<()> {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Valid,
    Damaged,
    MadeByQemu,
    /// Made by QEMU, with a large disk.
    Large,
    OfProgram,
    /// A program with a disk of more than 4 GiB, if its clusters allow it.
    OfLargeProgram,
    Attacked,
}

/// One image of a format.
struct Case<F> {
    rng_seed: u64,
    kind: Kind,
    format: PhantomData<F>,
}

impl<F: TestedFormat> fmt::Display for Case<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}, seed {}", F::FORMAT.name(), self.kind, self.rng_seed)
    }
}

/// Chooses one of some things.
pub fn one_of<T, const N: usize>(entropy: &mut Entropy, things: [T; N]) -> T {
    let chosen = entropy.below(N as u64) as usize;
    things.into_iter().nth(chosen).unwrap()
}

/// Compares images of a format.
pub fn judge_format<F: TestedFormat>() {
    let Some(()) = qemu::tools() else { return };
    let (count, base) = F::PROGRAMS;
    let mut chosen = Programs::chosen(base, count);
    let (missing, pairs) = chosen.missing();
    assert!(missing.is_empty(), "allowed, and in no program:\n{}", missing.join("\n"));
    assert!(pairs >= F::PAIRS, "{pairs} pairs of parts, expected at least {}", F::PAIRS);
    for (at, part) in chosen.all.iter().enumerate() {
        let programs = chosen.had[at][at];
        assert!(programs >= parts::ENOUGH, "{part}: in {programs} programs");
    }
    let programs = &chosen.programs;
    let counts = [
        (Kind::Valid, F::VALID),
        (Kind::Damaged, F::DAMAGED),
        (Kind::MadeByQemu, F::MADE_BY_QEMU),
        (Kind::Large, F::LARGE),
        (Kind::OfProgram, programs.len() as u64),
        (Kind::OfLargeProgram, F::LARGE_PROGRAMS),
        (Kind::Attacked, F::ATTACKED.0),
    ];
    let cases: Vec<Case<F>> = counts
        .into_iter()
        .flat_map(|(kind, count)| (0..count).map(move |rng_seed| (kind, rng_seed)))
        .map(|(kind, rng_seed)| Case { rng_seed, kind, format: PhantomData })
        .collect();
    let large = ("images of programs with large disks", F::LARGE_PROGRAMS);
    let bounds = F::BOUNDS.iter().copied().chain([large]).chain(commands::bounds(F::FORMAT));
    let bounds: Vec<_> = bounds.collect();
    qemu::judge_share(cases, &bounds, || (), |(), case| judge(case, programs));
}

/// Compares images of a format that qemu-img makes.
pub fn judge_made<F: TestedFormat>() {
    let Some(()) = qemu::tools() else { return };
    let case = |rng_seed| Case { rng_seed, kind: Kind::MadeByQemu, format: PhantomData };
    let cases: Vec<Case<F>> = (0..F::MADE_BY_QEMU).map(case).collect();
    let bounds: Vec<_> = F::BOUNDS.iter().copied().chain(commands::bounds(F::FORMAT)).collect();
    qemu::judge_share(cases, &bounds, || (), |(), case| judge(case, &[]));
}

fn judge<F: TestedFormat>(case: &Case<F>, programs: &[Program]) -> Checked<Tally> {
    let dir = tempfile::tempdir().described()?;
    let path = dir.path().join("image");
    let mut entropy = Entropy::new(case.rng_seed);
    let mut attacked = None;
    match case.kind {
        Kind::OfProgram => program::write(&path, &programs[case.rng_seed as usize])?,
        Kind::OfLargeProgram => {
            program::write(&path, &program::large(F::PROGRAMS.1, case.rng_seed))?;
        }
        Kind::Attacked => {
            let (format, (_, parts)) = ((F::FORMAT, F::PROGRAMS.1), F::ATTACKED);
            attacked = Some(program::write_attacked(&path, format, parts, case.rng_seed)?);
        }
        kind => F::write(&path, kind, &mut entropy)?,
    }
    let mut tally = Tally::default();
    let refused = compare_all::<F>(&path, case, &mut entropy, &mut tally);
    let refused = refused.map_err(|what| match &attacked {
        Some((_, program)) => format!("{what}\n{program}"),
        None => what,
    })?;
    commands::compare_rules(&path, F::FORMAT, refused.as_deref(), &mut tally)?;
    for part in attacked.into_iter().flat_map(|(parts, _)| parts) {
        let verdict = if refused.is_none() { "open" } else { "refused" };
        tally.add(format!("attacks on {part}: {verdict}"), 1);
    }
    let what = match (case.kind, refused) {
        (Kind::Damaged, None) => "damaged images that open",
        (Kind::Damaged, Some(_)) => "damaged images that are refused",
        (Kind::Valid, None) => "valid images",
        (Kind::MadeByQemu, None) => "images that qemu makes",
        (Kind::Large, None) => "images of large disks",
        (Kind::OfProgram, None) => "images of programs",
        (Kind::OfLargeProgram, None) => "images of programs with large disks",
        (Kind::Attacked, None) => "attacked images that open",
        (Kind::Attacked, Some(_)) => "attacked images that are refused",
        (_, Some(error)) => return Err(format!("an image that must open is refused: {error}")),
    };
    tally.add(what, 1);
    Ok(tally)
}

/// Compares the commands and the image. Returns the error of qemu-img if neither opens it.
fn compare_all<F: TestedFormat>(
    path: &Path,
    case: &Case<F>,
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<Option<String>> {
    let is_fourth = case.rng_seed.is_multiple_of(4);
    // The commands start more processes than the walk.
    if case.kind != Kind::Attacked || is_fourth {
        compare_commands(path, F::FORMAT, is_fourth, tally)?;
    }
    let is_made = matches!(case.kind, Kind::MadeByQemu | Kind::Large);
    // All raw images, because holes are all that they have.
    if is_made && (is_fourth || F::FORMAT == ImageFormat::Raw) {
        tally.add(commands::compare_map(path, F::FORMAT)?, 1);
    }
    compare_image::<F>(path, if case.kind == Kind::Attacked { 1 } else { 3 }, entropy, tally)
}

/// Compares the walk, up to `windows` windows, and the data of an image. Returns the error of qemu-img if neither opens
/// it.
fn compare_image<F: TestedFormat>(
    path: &Path,
    windows: usize,
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<Option<String>> {
    let format = F::FORMAT;
    let theirs = map(format, path, Window::ALL)?;
    let chain = FileChain::open(path, Some(format)).described();
    let disk = chain.as_ref().map_err(String::clone).and_then(|chain| {
        let disk = chain.disk().described()?;
        Ok(disk.with_host_holes())
    });
    // qemu-img prints the beginning of the list once it has opened an image.
    let opened = theirs.error.is_none() || theirs.began || theirs.divides_by_zero;
    let disk = match (disk, opened) {
        (Ok(disk), true) => disk.as_qemu_reports(),
        (Err(_), false) => return Ok(theirs.error),
        (Ok(_), false) => {
            return Err(format!("we open the image, and qemu-img does not: {:?}", theirs.error));
        }
        (Err(error), true) if error.contains(commands::MAP_PAST_END) => {
            tally.add("block maps past the end of the file, which only qemu-img opens", 1);
            return Ok(None);
        }
        (Err(error), true) => {
            return Err(format!("qemu-img opens the image, and we do not: {error}"));
        }
    };
    if theirs.divides_by_zero {
        let (_, error) = walk(&disk, Window::ALL);
        tally.add("walks on which qemu-img divides by zero", 1);
        return error.map(|_| None).ok_or("our walk divides by zero".to_string());
    }
    let extents = same(&disk, Window::ALL, &theirs)?;
    tally.add("extents", theirs.extents.len() as u64);
    if theirs.error.is_some() {
        tally.add("walks that fail", 1);
    }
    let windows = if entropy.one_in(F::WINDOWS_OF) { windows } else { 0 };
    for window in compare::windows(entropy, &theirs.extents, u64::MAX, windows) {
        same(&disk, window, &map(format, path, window)?)?;
        tally.add("windows", 1);
    }
    compare_lookups(format, path, &disk, &extents, tally)?;
    if let Some(name) = F::data_difference(path)? {
        tally.add(name, 1);
        return Ok(None);
    }
    match disk.virtual_size_bytes() {
        0 => {}
        1..=MAX_COMPARED_BYTES if entropy.one_in(F::DATA_OF) => {
            tally.add(compare_data(format, path, &disk)?, 1);
        }
        1..=MAX_COMPARED_BYTES => {}
        _ => commands::compare_parts(format, path, (&disk, &extents), entropy, tally)?,
    }
    F::check_more(path, entropy, tally)?;
    Ok(None)
}

/// Compares all data of a disk. Returns what was compared.
fn compare_data(
    format: ImageFormat,
    path: &Path,
    disk: &Disk<FileStorage>,
) -> Checked<&'static str> {
    let theirs = qemu::convert_with(&["-f", format.name()], path, &path.with_extension("raw"));
    let all = format!("read 0 {}", disk.virtual_size_bytes());
    let mut ours = vec![0xA5; disk.virtual_size_bytes() as usize];
    let read = walkers::read(disk, GuestOffset::ZERO, &mut ours, &mut WalkScratch::new());
    match (read, theirs) {
        (Ok(()), Ok(theirs)) => {
            compare::same_bytes("the disk", 0, &ours, &theirs)?;
            Ok("whole disks")
        }
        (Err(_), Err(_)) => Ok("disks that cannot be read"),
        (Ok(()), Err(error)) => Err(format!("we read the disk, and qemu-img does not: {error}")),
        // A parent of a VMDK image must have the right identity only for reads of its data.
        (Err(_), Ok(_)) if qemu::io_with(path, &["-r", "-f", format.name()], &[all]).is_err() => {
            Ok("disks that only qemu-img convert can read")
        }
        (Err(error), Ok(_)) => Err(format!("qemu-img reads the disk, and we do not: {error}")),
    }
}

/// Compares our walk with the extents of qemu-img. Returns the extents.
fn same(disk: &Disk<FileStorage>, window: Window, theirs: &Printed) -> Checked<Vec<Extent>> {
    let (mut ours, error) = walk(disk, window);
    match (&error, &theirs.error) {
        (None, None) => {}
        (Some(_), Some(_)) => {
            // qemu-img loses the extent that was growing when it met the error.
            ours.truncate(theirs.extents.len());
        }
        (ours, theirs) => {
            return Err(format!("{window:?}: our walk: {ours:?}, that of qemu-img: {theirs:?}"));
        }
    }
    if ours != theirs.extents {
        let what = compare::first_difference(&ours, &theirs.extents);
        return Err(format!("{window:?}: {what}"));
    }
    Ok(ours)
}

/// Compares look-ups with the extents of a walk.
fn compare_lookups(
    format: ImageFormat,
    path: &Path,
    disk: &Disk<FileStorage>,
    extents: &[Extent],
    tally: &mut Tally,
) -> Checked<()> {
    for extent in extents {
        let last = extent.length_bytes - 1;
        for delta in [0, last / 2, last] {
            let start = extent.start + delta;
            let found = walkers::lookup(disk, start);
            if found.as_ref().ok() == extent.mapping.advanced(delta).as_ref() {
                continue;
            }
            // QEMU's answer about a byte depends on the beginning of the window if the last grain of a VMDK extent
            // reaches into the next extent.
            let theirs = map(format, path, Window { start, length_bytes: 1 })?;
            let mapping = theirs.extents.first().map(|extent| extent.mapping);
            if format != ImageFormat::Vmdk || found.as_ref().ok() != mapping.as_ref() {
                let what = format!("{found:?}, qemu-img {mapping:?}");
                return Err(format!("look-up of byte {delta} of {extent}: {what}"));
            }
            tally.add("look-ups behind the last grain of an extent", 1);
        }
    }
    Ok(())
}

/// Returns the extents that our walker emits for a window, up to its error.
pub fn walk(disk: &Disk<FileStorage>, window: Window) -> (Vec<Extent>, Option<MapError>) {
    let mut extents = Vec::new();
    let mut keep = |extent| {
        extents.push(extent);
        ControlFlow::Continue(())
    };
    let walked = walkers::map_extents(disk, window, &mut WalkScratch::new(), &mut keep);
    (extents, walked.err())
}

/// The output of qemu-img for a window.
struct Printed {
    extents: Vec<Extent>,
    /// The list has begun, and the image has a size.
    began: bool,
    divides_by_zero: bool,
    error: Option<String>,
}

fn map(format: ImageFormat, path: &Path, window: Window) -> Checked<Printed> {
    let mut arguments = ["map", "--output=json", "-f", format.name()].map(OsStr::new).to_vec();
    let start = format!("--start-offset={}", window.start);
    let length = format!("--max-length={}", window.length_bytes.min(1 << 62));
    arguments.extend([OsStr::new(&start), OsStr::new(&length), path.as_os_str()]);
    let output = qemu::run("qemu-img", &arguments)?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let failed = !output.status.success();
    let mut extents = qemu::beginning(&output)?;
    // qemu-img prints one record of length 0 for an empty window.
    extents.retain(|extent| extent.length_bytes > 0);
    Ok(Printed {
        extents,
        began: output.stdout.starts_with(b"[") && !message.contains("Failed to get size"),
        divides_by_zero: output.status.signal() == Some(SIGFPE),
        error: failed.then_some(message),
    })
}

/// Creates an image of `size` bytes with these options of the format, and `more` options of the command.
pub fn create(
    path: &Path,
    format: ImageFormat,
    options: &str,
    size: u64,
    more: &[&OsStr],
) -> Checked<()> {
    let size = size.to_string();
    let mut arguments =
        ["create", "-q", "-f", format.name(), "-o", options].map(OsStr::new).to_vec();
    arguments.extend(more);
    arguments.extend([path.as_os_str(), OsStr::new(&size)]);
    qemu::img(&arguments).map(drop)
}

/// Writes data and zeros to an image of `size` bytes, a few times.
pub fn change(path: &Path, format: ImageFormat, size: u64, entropy: &mut Entropy) -> Checked<()> {
    let commands: Vec<String> = (0..entropy.below(5))
        .map(|_| {
            let (at, pattern) = (entropy.below(size / 512) * 512, entropy.below(256));
            let length = (512 * (1 + entropy.below(300))).min(size - at);
            let kind = one_of(entropy, [format!("write -P {pattern}"), "write -z".to_string()]);
            format!("{kind} {at} {length}")
        })
        .collect();
    qemu::io_with(path, &["-f", format.name()], &commands).map(drop)
}
