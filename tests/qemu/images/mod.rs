//! Images that qemu makes, judged by us: our walker, our recount and our reader must agree with the installed qemu-img.

mod bitmaps;
mod chains;
pub mod check;
pub mod info;
mod maker;
mod measure;
mod texts;

use test_support::prelude::*;

use crate::images::info::Compared;
use crate::images::maker::Making;
use maker::Recipe;
use qcowfuzz::disk::extent::MappingStatus;
use test_support::qemu::WHOLE_DISK_BYTES;

/// The lowest count of each comparison.
const BOUNDS: [(&str, u64); 14] = [
    ("images", 400),
    ("records of info", 400),
    ("records of info in the human form", 100),
    ("cut files that info refuses", 3),
    ("cut files with a record of info", 100),
    ("extents", 5000),
    ("extents in host holes", 300),
    ("windows", 1500),
    ("whole disks", 350),
    ("windows that are read", 500),
    ("images with damage", 15),
    ("bitmaps with damage", 400),
    ("cut files", 819),
    ("cut files that are refused", 100),
];

#[test]
fn we_agree_about_every_image_that_qemu_makes() {
    let Some(()) = qemu::tools() else { return };
    let recipes: Vec<Recipe> = (0..273).map(Recipe::new).collect();
    let dir = || tempfile::tempdir().unwrap();
    let tally: Tally = qemu::judge_all(&recipes, dir, |dir, recipe| judge(recipe, dir.path()));
    tally.assert_at_least(&BOUNDS);
}

/// Makes the image of `recipe`, and derives others from it: a compressed copy, an image after a crash, and truncated
/// ones.
fn judge(recipe: &Recipe, dir: &Path) -> Checked<Tally> {
    let mut tally = Tally::default();
    let mut making = Making::begin(recipe, dir)?;
    let judged = judge_stages(&mut making, &mut tally);
    let files = fs::read_dir(dir).described()?;
    for file in files.flatten() {
        fs::remove_file(file.path()).described()?;
    }
    judged.map_err(|what| format!("{what}\n{}", making.story.join("\n")))?;
    Ok(tally)
}

fn judge_stages(making: &mut Making, tally: &mut Tally) -> Checked<()> {
    let path = making.path.clone();
    let with_bitmaps = making.with_bitmaps();
    for _ in 0..1 + making.entropy.below(3) {
        if with_bitmaps {
            making.manage_bitmaps()?;
        }
        making.change()?;
        making.manage()?;
    }
    let damaged = judge_image(&path, false, &mut making.entropy, tally)?;
    tally.add("bitmaps with damage", bitmaps::judge_damaged(&path)?);
    if !damaged && making.entropy.one_in(3) {
        let copy = making.compressed_copy()?;
        judge_image(&copy, false, &mut making.entropy, tally)?;
    }
    if making.entropy.one_in(3) {
        let commands = making.crash();
        let mut crashing = Command::new("qemu-io");
        crashing.args(commands.iter().flat_map(|command| ["-c", command]));
        let status = crashing.arg(&path).output().described()?.status;
        if status.code().is_some() {
            return Err(format!("qemu-io did not crash: {status}"));
        }
        judge_image(&path, true, &mut making.entropy, tally)?;
    }
    judge_cut(&path, &mut making.entropy, tally)
}

/// Reports whether the image, about which we and qemu agree, has faults.
fn judge_image(
    path: &Path,
    crashed: bool,
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<bool> {
    // A file system may allocate blocks long after they were written. QEMU decides by their number whether it looks for
    // holes, and must see the number that we see.
    fs::File::open(path).and_then(|file| file.sync_all()).described()?;
    let file = FileStorage::open(path).described()?;
    let damaged = judge_counts(path, &file, tally)? || crashed;
    let extents = compare::maps(path, &[Layer::alone(&file)], Window::ALL)?;
    judge_info(path, extents.len() % 3 == 1, tally)?;
    for window in compare::windows(entropy, &extents, u64::MAX, 3) {
        compare::maps(path, &[Layer::alone(&file)], window)?;
        tally.add("windows", 1);
    }
    tally.add("images", 1);
    tally.add("extents", extents.len() as u64);
    let in_host_holes = |it: &&Extent| it.mapping.status() == MappingStatus::HostHole;
    tally.add("extents in host holes", extents.iter().filter(in_host_holes).count() as u64);
    judge_data(path, &file, &extents, damaged, entropy, tally)?;
    Ok(damaged)
}

/// Compares the record of an image that qemu opens with qemu-img info, and the human form, if wanted.
fn judge_info(path: &Path, human: bool, tally: &mut Tally) -> Checked<()> {
    match info::compare_json(path, ImageFormat::Qcow2)? {
        Compared::Same => tally.add("records of info", 1),
        other => return Err(format!("info: {other:?}")),
    }
    if human {
        info::compare_human(path, ImageFormat::Qcow2)?;
        tally.add("records of info in the human form", 1);
    }
    Ok(())
}

/// Compares the numbers of corruptions and leaks, including 0. Returns true if one of them is not 0.
fn judge_counts(path: &Path, file: &FileStorage, tally: &mut Tally) -> Checked<bool> {
    let (theirs, _) = compare::counts(path, &[file])?;
    let damaged = theirs.corruptions + theirs.leaks > 0;
    tally.add("images with damage", u64::from(damaged));
    Ok(damaged)
}

fn judge_data(
    path: &Path,
    file: &FileStorage,
    extents: &[Extent],
    damaged: bool,
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<()> {
    let size = extents.last().and_then(Extent::end).map_or(0, GuestOffset::get);
    if size <= WHOLE_DISK_BYTES {
        let window = Window { start: GuestOffset::ZERO, length_bytes: size };
        let theirs = qemu::convert(path, &path.with_extension("raw"));
        tally.add("whole disks", 1);
        return match (compare::read(&[Layer::alone(file)], window), theirs) {
            (Ok(ours), Ok(theirs)) => compare::same_bytes("our read", 0, &ours, &theirs),
            // A crashed process had discarded the payloads, but not their entries.
            (Err(_), Err(_)) if damaged => Ok(()),
            (ours, theirs) => Err(format!("our read {:?}, theirs {:?}", ours.err(), theirs.err())),
        };
    }
    let window = |_| {
        let extent = &extents[entropy.below(extents.len() as u64) as usize];
        let start = extent.start.get().saturating_sub(entropy.below(600));
        let length_bytes = (1 + entropy.below(2000)).min(size - start);
        Window { start: GuestOffset::new(start), length_bytes }
    };
    let windows: Vec<Window> = (0..16).map(window).collect();
    for (window, theirs) in windows.iter().zip(qemu::read(path, &windows)?) {
        let start = window.start.get();
        compare::same_bytes(
            "our read",
            start,
            &compare::read(&[Layer::alone(file)], *window)?,
            &theirs,
        )?;
        tally.add("windows that are read", 1);
    }
    Ok(())
}

/// Truncates the file step by step, down to little more than the header.
fn judge_cut(path: &Path, entropy: &mut Entropy, tally: &mut Tally) -> Checked<()> {
    let file = File::options().write(true).open(path).described()?;
    let mut length = fs::metadata(path).described()?.len();
    for last in [false, false, true] {
        length = if last { 200 } else { 200 + entropy.below(length - 200) };
        file.set_len(length).described()?;
        let storage = FileStorage::open(path).described()?;
        tally.add("cut files", 1);
        if length.is_multiple_of(3) {
            let what = match info::compare_json(path, ImageFormat::Qcow2)? {
                Compared::Refused => "cut files that info refuses",
                _ => "cut files with a record of info",
            };
            tally.add(what, 1);
        }
        // The bitmap directory may be truncated. The walker does not read it.
        if bitmaps::refused(&storage) && qemu::map(path, Window::ALL).is_err() {
            tally.add("cut files that are refused", 1);
            continue;
        }
        let described = |what| format!("cut to {length} bytes: {what}");
        let extents =
            compare::maps(path, &[Layer::alone(&storage)], Window::ALL).map_err(described)?;
        for window in compare::windows(entropy, &extents, u64::MAX, 1) {
            compare::maps(path, &[Layer::alone(&storage)], window).map_err(described)?;
            tally.add("windows", 1);
        }
        debug_assert_eq!(storage.length_bytes(), length);
    }
    Ok(())
}

/// If a compressed write continues in a host cluster that was freed and allocated for other data meanwhile, qemu
/// overwrites that data and counts the cluster twice (seen in QEMU 10.0.2: `qcow2_alloc_bytes` does not notice). After
/// a snapshot, no entry is COPIED; then `qemu-img check` finds nothing, and our recount finds two structures in one
/// cluster. So the recipes of this test begin with the compressed writes.
#[test]
fn qemu_still_writes_compressed_data_over_other_data() {
    let Some(()) = qemu::tools() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.qcow2");
    let words = |line: &'static str| line.split(' ').map(OsStr::new);
    let img = |before, after| {
        let path = [path.as_os_str()];
        qemu::img(&words(before).chain(path).chain(words(after)).collect::<Vec<_>>()).unwrap()
    };
    img("create -q -f qcow2", "1M");
    let commands = ["write -c -P 7 0 64k", "discard 0 64k", "write -P 1 64k 64k"];
    let commands = commands.into_iter().chain(["write -c -P 9 128k 64k"]).map(str::to_string);
    qemu::io_with(&path, &["-f", "qcow2"], &commands.collect::<Vec<_>>()).unwrap();
    img("snapshot -c now", "-q");
    assert_eq!(qemu::check(&path).unwrap().0.corruptions, 0);
    let recounted = compare::recount(&FileStorage::open(&path).unwrap()).unwrap();
    assert!(recounted.findings.corruptions == 0 && recounted.overlaps > 0, "{}", recounted.printed);
    let written = Window { start: GuestOffset::new(64 << 10), length_bytes: 64 << 10 };
    assert_ne!(qemu::read(&path, &[written]).unwrap(), [vec![1; 64 << 10]]);
}
