//! Our programs, judged by qemu: the images that they build are opened, checked, mapped and read by
//! the installed qemu-img and qemu-io, and every answer must be ours.

mod parts;
mod qemu;
#[path = "qemu/snapshots.rs"]
mod snapshots;

use qcowfuzz::formats::qcow2::layout::Layout;
use std::fmt;
use std::fs::{self, File};
use std::ops::AddAssign;
use std::path::Path;
use std::time::Instant;

use parts::{Part, Trace};
use qcowfuzz::disk::extent::{Extent, Mapping, Window};
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::disk::storage::{FileStorage, Layer, Storage};
use qcowfuzz::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW_DATA_FILE, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY,
};
use qcowfuzz::formats::qcow2::head::Head;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::harness::model::{Model, State, Visible};
use qcowfuzz::harness::oracles::data::{admit_inner_stamps, expect};
use qcowfuzz::harness::{Harness, Walker};
use qcowfuzz::images::entropy::Entropy;
use qcowfuzz::images::export;
use qcowfuzz::images::export::Holes;
use qcowfuzz::images::files::{Deviation, FileNames, Images};
use qcowfuzz::images::image::Image;
use qcowfuzz::programs::generate::{Wanted, generate};
use qcowfuzz::programs::{Program, Vm};
use qcowfuzz::walkers::chain::FileChain;
use qemu::differences::{DIFFERENCES, Difference};
use qemu::{Checked, WHOLE_DISK_BYTES, compare};
use snapshots::Listed;

/// What is allowed of images that are written whole: without holes, `zero` of data is comparable.
const WITHOUT_HOLES: &[Difference] = DIFFERENCES.split_at(1).0;

/// One program.
struct Case {
    name: String,
    input: Vec<u8>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.name, Program::decode(&self.input))
    }
}

/// What a thread works with.
struct Bench {
    harness: Harness<Walker>,
    model: Model,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            harness: Harness::new(Walker::default()),
            model: Model::new(),
            dir: tempfile::tempdir().unwrap(),
        }
    }
}

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    programs: u64,
    /// Those with more than one layer.
    chains: u64,
    /// Those with a file that is too long to be written.
    too_long: u64,
    extents: u64,
    windows: u64,
    maps_in_parts: u64,
    whole_disks: u64,
    raw_data_files: u64,
    read_windows: u64,
    snapshots: u64,
    snapshots_applied: u64,
    snapshots_converted: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.programs += other.programs;
        self.chains += other.chains;
        self.too_long += other.too_long;
        self.extents += other.extents;
        self.windows += other.windows;
        self.maps_in_parts += other.maps_in_parts;
        self.whole_disks += other.whole_disks;
        self.raw_data_files += other.raw_data_files;
        self.read_windows += other.read_windows;
        self.snapshots += other.snapshots;
        self.snapshots_applied += other.snapshots_applied;
        self.snapshots_converted += other.snapshots_converted;
    }
}

#[test]
fn qemu_agrees_about_every_program() {
    if !qemu::tools_are_there("qemu_agrees_about_every_program") {
        return;
    }
    let mut cases = generated();
    cases.extend(seeds());
    cases.extend(random_bytes(3, 120));
    cases.extend(headers());
    let began = Instant::now();
    let tally = qemu::judge_all(&cases, Bench::new, judge);
    println!("{tally:?} in {:?}", began.elapsed());
    assert!(tally.programs >= 500);
}

/// Programs of random parts of the format, until every part was there often enough and every pair of
/// parts that the format allows together was there at all.
#[test]
fn qemu_agrees_about_every_part_and_every_pair_of_parts() {
    if !qemu::tools_are_there("qemu_agrees_about_every_part_and_every_pair_of_parts") {
        return;
    }
    let pairs = Pairs::chosen();
    for (at, part) in pairs.all.iter().enumerate() {
        println!("{:4} programs: {}", pairs.had[at][at], part.name);
    }
    let (missing, count) = pairs.missing();
    println!("{count} pairs of parts that the format allows together");
    let told = |(one, other): &(usize, usize)| {
        let (one, other) = (&pairs.all[*one], &pairs.all[*other]);
        format!("{} with {}, allowed: {}", one.name, other.name, parts::allowed(one, other))
    };
    let missing: Vec<String> = missing.iter().map(told).collect();
    assert!(missing.is_empty(), "not in any program, or in one:\n{}", missing.join("\n"));
    assert!((0..pairs.all.len()).all(|at| pairs.had[at][at] >= ENOUGH));
    println!("{} programs", pairs.cases.len());
    let tally = qemu::judge_all(&pairs.cases, Bench::new, judge);
    println!("{tally:?}");
    assert!(tally.raw_data_files > 0);
}

/// In how many programs every part must be.
const ENOUGH: u32 = 20;
/// How many programs of random parts are judged, whatever they add.
const RANDOM_PROGRAMS: u64 = 200;
/// How many programs are tried for a pair that is in none so far.
const TRIES: u64 = 200;

/// Programs, and which parts each two of them had together.
struct Pairs {
    all: Vec<Part>,
    had: Vec<Vec<u32>>,
    cases: Vec<Case>,
    entropy: Entropy,
    rng_seed: u64,
}

impl Pairs {
    /// Programs of random parts; then, for every part that was not there often enough and for every pair
    /// that was not there at all, programs that ask for it.
    fn chosen() -> Self {
        let all = parts::all();
        let had = vec![vec![0; all.len()]; all.len()];
        let entropy = Entropy::new(9);
        let mut pairs = Self { all, had, cases: Vec::new(), entropy, rng_seed: 0 };
        for _ in 0..RANDOM_PROGRAMS {
            let wanted = parts::some(&mut pairs.entropy);
            pairs.keep_if(&wanted, &[]);
        }
        for one in 0..pairs.all.len() {
            for other in 0..=one {
                let least = if one == other { ENOUGH } else { 1 };
                if !parts::allowed(&pairs.all[one], &pairs.all[other]) {
                    continue;
                }
                for _ in 0..TRIES {
                    if pairs.had[one][other] >= least {
                        break;
                    }
                    let mut wanted = parts::some(&mut pairs.entropy);
                    // With a few others, in any order.
                    wanted.truncate(pairs.entropy.below(4) as usize);
                    let at = pairs.entropy.below(wanted.len() as u64 + 1) as usize;
                    wanted.insert(at, pairs.all[one]);
                    wanted.push(pairs.all[other]);
                    pairs.keep_if(&wanted, &[one, other]);
                }
            }
        }
        pairs
    }

    /// Makes a program of the `wanted` parts and keeps it, if it had those that are `needed`.
    fn keep_if(&mut self, wanted: &[Part], needed: &[usize]) {
        let rng_seed = self.rng_seed;
        self.rng_seed += 1;
        let program = parts::program(rng_seed, wanted);
        let trace = Trace::of(&program);
        let had = |at: &usize| (self.all[*at].had)(&trace);
        if !needed.iter().all(had) || too_long(&trace.images).is_some() {
            return;
        }
        let there: Vec<usize> = (0..self.all.len()).filter(had).collect();
        for one in &there {
            there.iter().for_each(|other| self.had[*one][*other] += 1);
        }
        let names: Vec<_> = there.iter().map(|at| self.all[*at].name).collect();
        let name = format!("parts of {rng_seed}: {}", names.join(", "));
        self.cases.push(Case { name, input: program.encode() });
    }

    /// The pairs that the format allows together and no program had, or the other way round; and how many
    /// it allows.
    fn missing(&self) -> (Vec<(usize, usize)>, usize) {
        let (mut missing, mut count) = (Vec::new(), 0);
        for one in 0..self.all.len() {
            for other in 0..one {
                let allowed = parts::allowed(&self.all[one], &self.all[other]);
                count += usize::from(allowed);
                if allowed != (self.had[one][other] > 0) {
                    missing.push((one, other));
                }
            }
        }
        (missing, count)
    }
}

#[test]
fn qemu_finds_nothing_in_what_random_bytes_build() {
    if !qemu::tools_are_there("qemu_finds_nothing_in_what_random_bytes_build") {
        return;
    }
    let began = Instant::now();
    let tally = qemu::judge_all(&random_bytes(1, 2000), Bench::new, |bench, case| {
        let path = bench.dir.path().join("layer.qcow2");
        bench.harness.build(&case.input);
        let images = bench.harness.images();
        // What the check does not look into is not written where no file system could hold it.
        for (name, image) in images.files(&FileNames::default()) {
            let path = name.map_or(path.clone(), |name| path.with_file_name(name));
            match image.length_bytes() > MAX_FILE_BYTES {
                true => write_to(&path, &Image::default(), Holes::Keep)?,
                false => write_to(&path, image, Holes::Keep)?,
            }
        }
        check_layers(bench.dir.path(), images)?;
        Ok(Tally { programs: 1, ..Tally::default() })
    });
    println!("{} programs checked in {:?}", tally.programs, began.elapsed());
    assert_eq!(tally.programs, 2000);
}

/// Programs of every pair of a cluster size and a refcount order, from few operations to many.
fn generated() -> Vec<Case> {
    let rounds = [(3, true), (24, true), (24, false), (60, true), (12, true), (250, true)];
    let case = |rng_seed: u64| {
        let (operations, compressed) = rounds[(rng_seed / 91) as usize];
        let program = generate(rng_seed, Wanted { operations, compressed });
        Case { name: format!("generated from {rng_seed}"), input: program.encode() }
    };
    (0..91 * rounds.len() as u64).map(case).collect()
}

/// Generated programs whose headers are written in any way at all.
fn headers() -> Vec<Case> {
    let mut entropy = Entropy::new(15);
    let case = |rng_seed: u64| {
        let mut input = generate(rng_seed, Wanted { operations: 16, compressed: true }).encode();
        input.push(15);
        input.extend((0..7).map(|_| entropy.next_u64() as u8));
        Case { name: format!("generated from {rng_seed}, with a header"), input }
    };
    (0..182).map(case).collect()
}

/// The committed seeds: what a fuzzer finds is named by its hash.
fn seeds() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/map_extents");
    let Ok(entries) = fs::read_dir(&dir) else { return Vec::new() };
    let mut cases: Vec<Case> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .filter(|(name, _)| name.len() != 40 || name.bytes().any(|byte| !byte.is_ascii_hexdigit()))
        .map(|(name, path)| Case { name, input: fs::read(path).unwrap() })
        .collect();
    cases.sort_by(|one, other| one.name.cmp(&other.name));
    cases
}

fn random_bytes(rng_seed: u64, count: usize) -> Vec<Case> {
    let mut entropy = Entropy::new(rng_seed);
    let case = |index| {
        let length = entropy.below(500) as usize;
        let input = (0..length).map(|_| entropy.next_u64() as u8).collect();
        Case { name: format!("random bytes {index}"), input }
    };
    (0..count).map(case).collect()
}

fn judge(bench: &mut Bench, case: &Case) -> Checked<Tally> {
    let Bench { harness, model, dir } = bench;
    let mut entropy = Entropy::new(u64::from(crc32fast::hash(&case.input)));
    harness.build(&case.input);
    let images = harness.images();
    if let Some(too_long) = too_long(images) {
        println!("not written: a file of {too_long} bytes, {}", case.name);
        return Ok(Tally { too_long: 1, ..Tally::default() });
    }
    let path = dir.path().join("layer.qcow2");
    let holes = export_to(&path, images, &mut entropy)?;
    let files = FileChain::open(&path).map_err(|error| error.to_string())?;
    check_layers(dir.path(), images)?;
    model.replay(harness.vm().journals());
    let on_disk = files.layers();
    let on_disk: Vec<Layer> = on_disk.into_iter().map(Layer::erased).collect();
    let exported = Exported {
        path: &path,
        on_disk: &on_disk,
        in_memory: &images.layers().map(|files| files.layer().erased()).collect::<Vec<_>>(),
        model,
        l2_span_bytes: l2_span_bytes(harness.vm()),
        allowed: if holes == Holes::Fill { WITHOUT_HOLES } else { &DIFFERENCES },
    };
    let mut tally = Tally { programs: 1, ..Tally::default() };
    tally.chains += u64::from(on_disk.len() > 1);
    exported.compare_maps(&mut entropy, &mut tally)?;
    exported.compare_data(&mut entropy, &mut tally)?;
    tally.raw_data_files += compare_raw_data_file(harness.images(), model)?;
    compare_snapshots(bench, holes, &mut entropy, &mut tally)?;
    for (name, _) in bench.harness.images().files(&FileNames::default()) {
        let path = name.map_or(path.clone(), |name| path.with_file_name(name));
        fs::remove_file(&path).map_err(|error| error.to_string())?;
    }
    Ok(tally)
}

/// A data file that is said to be raw is the disk, byte for byte; how many there were.
fn compare_raw_data_file(images: &Images, model: &Model) -> Checked<u64> {
    let top = images.top();
    let head = Head::read(&top.image).map_err(|error| error.to_string())?;
    let size = model.virtual_size_bytes();
    if head.header.autoclear & AUTOCLEAR_RAW_DATA_FILE == 0 || size > WHOLE_DISK_BYTES {
        return Ok(0);
    }
    let mut disk = vec![0; size as usize];
    expect(model, GuestOffset::ZERO, &mut disk);
    let mut file = vec![0; top.data_file.length_bytes() as usize];
    top.data_file.read_at(HostOffset::ZERO, &mut file).map_err(|error| error.to_string())?;
    compare::same_bytes("the raw data file", 0, &file, &disk)?;
    Ok(1)
}

/// Holds the snapshots of the image at the top, which is exported, against qemu's: their table, and what
/// each of them reads as, by itself or applied.
fn compare_snapshots(
    bench: &mut Bench,
    holes: Holes,
    entropy: &mut Entropy,
    tally: &mut Tally,
) -> Checked<()> {
    let Bench { harness, model, dir } = bench;
    let images = harness.images();
    let (path, copy) = (dir.path().join("layer.qcow2"), dir.path().join("applied.qcow2"));
    let version = harness.vm().builder().plan().geometry.version;
    let active_bytes = model.virtual_size_bytes();
    // qemu-img repairs a dirty image first, refuses to write to a corrupt one, and applies no snapshot
    // while there are bitmaps.
    let head = Head::read(&images.top().image).map_err(|error| error.to_string())?;
    let unclean = INCOMPATIBLE_DIRTY | INCOMPATIBLE_CORRUPT;
    let Header { incompatible, autoclear, .. } = head.header;
    let writable = incompatible & unclean == 0 && autoclear & AUTOCLEAR_BITMAPS == 0;
    let all = snapshots::list(&FileStorage::open(&path).map_err(|error| error.to_string())?)?;
    snapshots::compare_lists(&path, &all)?;
    for (index, snapshot) in all.iter().enumerate() {
        let told = |error| format!("snapshot {index}, {snapshot:?}: {error}");
        model.become_snapshot(index);
        tally.snapshots += 1;
        let largest = model.virtual_size_bytes().max(active_bytes);
        // Every process takes milliseconds: one of the two where both are possible.
        if largest <= WHOLE_DISK_BYTES && entropy.one_in(2) {
            compare_converted(&path, snapshot, model, active_bytes).map_err(told)?;
            tally.snapshots_converted += 1;
            continue;
        }
        // A change of the size takes qemu-img minutes where the disk is large.
        if !writable || model.virtual_size_bytes() != active_bytes && largest > WHOLE_DISK_BYTES {
            continue;
        }
        write_to(&copy, &images.top().image, holes)?;
        if snapshots::apply(&copy, snapshot, version, active_bytes)? {
            // Leaks in what QEMU wrote are its own.
            let (findings, said) = qemu::check(&copy)?;
            if (findings.corruptions, findings.check_errors) != (0, 0) {
                return Err(told(format!("applied by qemu-img: {findings:?}\n{said}")));
            }
            let files = FileChain::open(&copy).map_err(|error| error.to_string())?;
            let on_disk: Vec<Layer> = files.layers().into_iter().map(Layer::erased).collect();
            let applied = Exported {
                path: &copy,
                on_disk: &on_disk,
                in_memory: &on_disk,
                model,
                l2_span_bytes: l2_span_bytes(harness.vm()),
                allowed: &DIFFERENCES,
            };
            applied.compare_maps(entropy, tally).map_err(told)?;
            applied.compare_data(entropy, tally).map_err(told)?;
            tally.snapshots_applied += 1;
        }
        fs::remove_file(&copy).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// What `qemu-img convert -l` reads in a snapshot, as far as both disks reach. `model` is the snapshot.
fn compare_converted(
    path: &Path,
    snapshot: &Listed,
    model: &Model,
    active_bytes: u64,
) -> Checked<()> {
    let size = model.virtual_size_bytes();
    let Some(theirs) = snapshots::convert(path, &path.with_extension("raw"), snapshot)? else {
        return Ok(());
    };
    let common = size.min(active_bytes) as usize;
    let theirs = &theirs[..common];
    let start = GuestOffset::ZERO;
    let mut ours = vec![0; size as usize];
    expect(model, start, &mut ours);
    let ours = &mut ours[..common];
    admit_inner_stamps(model, start, ours, theirs);
    compare::same_bytes("the model's snapshot", 0, ours, theirs)
}

fn write_to(path: &Path, image: &Image, holes: Holes) -> Checked<()> {
    let file = File::create(path).map_err(|error| error.to_string())?;
    export::write(image, &file, holes).map_err(|error| error.to_string())
}

/// The smallest part of the disk that one L2 table of any layer maps.
fn l2_span_bytes(vm: &Vm) -> u64 {
    vm.builders().map(|builder| builder.plan().geometry.l2_span_bytes()).min().unwrap()
}

/// The longest file that file systems here can hold, and the longest that is written without holes.
const MAX_FILE_BYTES: u64 = 15 << 40;
const MAX_FILLED_BYTES: u64 = 64 << 20;

/// The length of a file that cannot be written: longer than file systems allow, or a raw layer that is
/// too long to be written without holes, which `qemu-img map` would tell of.
fn too_long(images: &Images) -> Option<u64> {
    let lengths = images.layers().flat_map(|files| {
        let most = if files.raw { MAX_FILLED_BYTES } else { MAX_FILE_BYTES };
        [(files.image.length_bytes(), most), (files.data_file.length_bytes(), MAX_FILE_BYTES)]
    });
    lengths.into_iter().find(|(length, most)| length > most).map(|(length, _)| length)
}

/// Two of three short chains are written whole, so that `zero` of data is compared too; raw layers always.
fn export_to(path: &Path, images: &Images, entropy: &mut Entropy) -> Checked<Holes> {
    let names = FileNames::default();
    let longest = images.files(&names).map(|(_, image)| image.length_bytes()).max().unwrap();
    let short = longest <= 8 << 20;
    let holes = if short && !entropy.one_in(3) { Holes::Fill } else { Holes::Keep };
    for (name, image) in images.files(&names) {
        let raw = name.is_some_and(|name| name.ends_with(".raw"));
        let path = name.map_or(path.to_path_buf(), |name| path.with_file_name(name));
        write_to(&path, image, if raw { Holes::Fill } else { holes })?;
    }
    Ok(holes)
}

/// Checks every layer that is an image.
fn check_layers(directory: &Path, images: &Images) -> Checked<()> {
    let names = FileNames::default();
    let top = images.layers().len() - 1;
    for (depth, files) in images.layers().enumerate().filter(|(_, files)| !files.raw) {
        let name = if depth == 0 { "layer.qcow2" } else { names.image(top - depth, false) };
        let path = directory.join(name);
        let file = FileStorage::open(&path).map_err(|error| error.to_string())?;
        check(&path, &[&file, &files.image], &files.out_of_date)?;
        unchanged(&file, &files.image)?;
    }
    Ok(())
}

/// Nothing is found, by anyone, but the counts that are out of date; and the counts end where they
/// end.
fn check(path: &Path, storages: &[&dyn Storage], out_of_date: &[Deviation]) -> Checked<()> {
    let (theirs, said) = compare::counts(path, storages)?;
    let too_high = |one: &&Deviation| one.on_disk > one.references;
    let leaks = out_of_date.iter().filter(too_high).count() as u64;
    let flags: u64 = out_of_date.iter().map(|one| one.flags).sum();
    let expected = (out_of_date.len() as u64 - leaks + flags, leaks, 0);
    let quiet = said.is_empty() || !out_of_date.is_empty();
    if (theirs.corruptions, theirs.leaks, theirs.check_errors) != expected || !quiet {
        return Err(format!("qemu-img check: {theirs:?}, expected {out_of_date:?}\n{said}"));
    }
    Ok(())
}

/// The tools repaired nothing in the file, and updated nothing.
fn unchanged(file: &FileStorage, image: &Image) -> Checked<()> {
    let mut bytes = Vec::new();
    for data in image.written() {
        bytes.resize(data.bytes.len(), 0);
        file.read_at(data.offset, &mut bytes).map_err(|error| error.to_string())?;
        compare::same_bytes("the file after it was read", data.offset.get(), data.bytes, &bytes)?;
    }
    Ok(())
}

/// How many steps qemu-img may need for the map of a disk to be asked for the whole of it. It goes from
/// L2 table to L2 table, also where there is none, and by less than 4 GiB: minutes for the largest.
const WHOLE_MAP_STEPS: u64 = 1 << 13;

/// An image in memory and in a file, and what is expected of it.
struct Exported<'a> {
    path: &'a Path,
    on_disk: &'a [Layer<'a>],
    in_memory: &'a [Layer<'a>],
    model: &'a Model,
    l2_span_bytes: u64,
    allowed: &'static [Difference],
}

impl Exported<'_> {
    /// The whole disk where that is possible, else every part that is not one large hole; and
    /// windows that lie anywhere.
    fn compare_maps(&self, entropy: &mut Entropy, tally: &mut Tally) -> Checked<()> {
        let mut expected: Vec<Extent> = Vec::new();
        self.model.extents(&mut expected);
        let ours = compare::walk(self.on_disk, Window::ALL).map_err(|error| error.to_string())?;
        if ours != expected {
            return Err("the model expects other extents".to_string());
        }
        tally.extents += ours.len() as u64;
        let most = WHOLE_MAP_STEPS * self.l2_span_bytes.min(1 << 31);
        let mut windows = vec![Window::ALL];
        if self.model.virtual_size_bytes() > most {
            windows = busy_windows(&ours, most / 16);
            tally.maps_in_parts += 1;
        }
        windows.extend(compare::windows(entropy, &ours, most, 3));
        for window in windows {
            compare::maps(self.path, &[self.on_disk, self.in_memory], window, self.allowed)?;
            tally.windows += 1;
        }
        Ok(())
    }

    /// What a guest reads: the whole disk, or windows of it where it is large.
    fn compare_data(&self, entropy: &mut Entropy, tally: &mut Tally) -> Checked<()> {
        let Self { path, on_disk, model, .. } = self;
        let size = model.virtual_size_bytes();
        let expected = |window: &Window, theirs: &[u8]| {
            let mut bytes = vec![0; window.length_bytes as usize];
            expect(model, window.start, &mut bytes);
            admit_inner_stamps(model, window.start, &mut bytes, theirs);
            bytes
        };
        if size <= WHOLE_DISK_BYTES {
            let theirs = qemu::convert(path, &path.with_extension("raw"))?;
            let window = Window { start: GuestOffset::ZERO, length_bytes: size };
            tally.whole_disks += 1;
            compare::same_bytes("the model's disk", 0, &expected(&window, &theirs), &theirs)?;
            return compare::same_bytes("our read", 0, &compare::read(on_disk, window)?, &theirs);
        }
        let windows = read_windows(model, entropy);
        for (window, theirs) in windows.iter().zip(qemu::read(path, &windows)?) {
            let start = window.start.get();
            compare::same_bytes("the model's data", start, &expected(window, &theirs), &theirs)?;
            compare::same_bytes("our read", start, &compare::read(on_disk, *window)?, &theirs)?;
            tally.read_windows += 1;
        }
        Ok(())
    }
}

/// Windows over everything but the inside of holes that are longer than `most` bytes; of those, both
/// ends.
fn busy_windows(extents: &[Extent], most: u64) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut start = 0;
    for extent in extents {
        let hole = extent.mapping == Mapping::HOLE && extent.length_bytes > most;
        let end = extent.start.get() + extent.length_bytes;
        if hole {
            let until = extent.start.get() + most / 2;
            windows.push((start, until));
            start = end - most / 2;
        }
    }
    windows.push((start, u64::MAX >> 1));
    let window = |(start, end): (u64, u64)| Window {
        start: GuestOffset::new(start),
        length_bytes: end - start,
    };
    windows.into_iter().map(window).collect()
}

/// Windows around both edges of pieces of the disk, those that hold something first.
fn read_windows(model: &Model, entropy: &mut Entropy) -> Vec<Window> {
    let size = model.virtual_size_bytes();
    let mut pieces: Vec<Visible> = model.visible().to_vec();
    pieces.sort_by_cached_key(|it| (it.piece.state == State::Unallocated, entropy.next_u64()));
    pieces.truncate(24);
    let around = |at: u64| {
        let start = at.saturating_sub(40).min(size - 1);
        let length_bytes = 200.min(size - start);
        Window { start: GuestOffset::new(start), length_bytes }
    };
    pieces.iter().flat_map(|it| [around(it.start), around(it.end)]).collect()
}
