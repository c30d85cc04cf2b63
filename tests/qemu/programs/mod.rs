//! Our programs, judged by qemu: the installed qemu-img and qemu-io open, check, map and read the images of programs,
//! and every answer must equal ours.

mod against;
mod data;
mod exported;
mod failing;
mod files;
mod judge;
mod payloads;
mod scripts;
mod snapshots;
mod writer;

use crate::parts;
use std::sync::atomic::{AtomicU64, Ordering};
use test_support::prelude::*;

use crate::programs::files::{MAX_FILE_BYTES, check_layers, is_checkable, write_to};
use crate::programs::judge::{Bench, judge, judge_disk};
use files::{ENOUGH, Pairs};
use qcowfuzz::internal::programs::operand::Size;

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

/// The counts of the test, each with its lowest value for programs of any kind and for programs with chosen parts.
const BOUNDS: [(&str, u64, u64); 20] = [
    ("programs", 800, 300),
    ("programs with given bytes", 300, 30),
    ("maps on VHDX", 30, 20),
    ("programs in other formats", 5, 0),
    ("programs with too many clusters to be checked", 1, 0),
    ("programs with too many clusters to be mapped", 0, 0),
    ("programs with a file that is too long to be written", 5, 0),
    ("chains", 8, 120),
    ("extents", 11_000, 4000),
    ("extents in host holes", 1, 1),
    ("windows", 3500, 1200),
    ("maps in parts", 300, 70),
    ("whole disks", 220, 180),
    ("raw data files", 3, 5),
    ("windows that are read", 11_000, 3500),
    ("snapshots", 350, 350),
    ("snapshots that are applied", 40, 40),
    ("snapshots that are converted", 40, 90),
    ("programs on small holes", 0, 0),
    ("extents in zeros with an offset below", 0, 0),
];

#[test]
fn qemu_agrees_about_every_program() {
    let Some(()) = qemu::tools() else { return };
    let mut cases = generated();
    cases.extend(seeds_of("map_extents"));
    cases.extend(seeds_of("refcounts"));
    cases.extend(random_bytes(3, 120));
    cases.extend(headers());
    cases.extend(with_given_bytes());
    cases.extend(on_other_formats());
    qemu::judge_share(cases, &BOUNDS.map(|(what, any, _)| (what, any)), Bench::new, judge);
}

/// Judges programs with random parts of the format, until every part has occurred often enough and every pair of parts
/// that the format allows has occurred.
#[test]
fn qemu_agrees_about_every_part_and_every_pair_of_parts() {
    let Some(()) = qemu::tools() else { return };
    let pairs = Pairs::chosen();
    let (missing, allowed) = pairs.missing();
    assert!(allowed >= 3000, "{allowed} pairs of parts are allowed together");
    let described = |(one, other): &(usize, usize)| {
        let (one, other) = (&pairs.all[*one], &pairs.all[*other]);
        format!("{} with {}, allowed: {}", one.name, other.name, parts::allowed(one, other))
    };
    let missing: Vec<String> = missing.iter().map(described).collect();
    assert!(missing.is_empty(), "not in any program, or in one:\n{}", missing.join("\n"));
    for (at, part) in pairs.all.iter().enumerate() {
        let programs = pairs.had[at][at];
        assert!(programs >= ENOUGH, "{}: in {programs} programs", part.name);
    }
    let bounds = BOUNDS.map(|(what, _, chosen)| (what, chosen));
    qemu::judge_share(pairs.cases, &bounds, Bench::new, judge);
}

/// The number of programs on raw files with holes.
const ON_HOLES: u64 = 520;

#[test]
fn qemu_agrees_about_holes_of_raw_files_below_programs() {
    let Some(()) = qemu::tools() else { return };
    let cases: Vec<Case> = (0..ON_HOLES).map(on_raw_holes).collect();
    let bounds = [
        ("programs", ON_HOLES),
        ("programs on small holes", 100),
        ("chains", ON_HOLES),
        ("extents", 3000),
        ("extents in host holes", 1),
        ("extents in zeros with an offset below", 1000),
        ("windows", 2 * ON_HOLES),
        ("whole disks", ON_HOLES),
    ];
    qemu::judge_share(cases, &bounds, Bench::new, judge_disk);
}

/// Returns a program with a qcow2 image on a raw file with holes, of any length up to 64 MiB. Every pair of a cluster
/// size and a refcount order occurs.
fn on_raw_holes(rng_seed: u64) -> Case {
    let mut entropy = Entropy::new(rng_seed);
    let random = |count: u64, entropy: &mut Entropy| {
        let operations = generate_any(entropy.next_u64(), count as usize).operations;
        let grows =
            |it: &Operation| matches!(it, Operation::Resize { .. } | Operation::ReserveFar { .. });
        operations.into_iter().filter(move |it| !grows(it) && it.class() != Class::Overlays)
    };
    let mut program = generate_any(rng_seed, 0);
    let bits = program.prologue.cluster_bits.get();
    let units = 1 + entropy.below(64 << 20 >> bits).min(entropy.below(400));
    let tail = if entropy.one_in(2) { 0 } else { entropy.below(1 << 12) as i16 };
    program.prologue.size = Size::new(units as u16, bits, -tail).unwrap();
    program.prologue.base = Base::SparseRaw;
    program.operations = random(4 + entropy.below(30), &mut entropy).collect();
    let overlay = format!(
        "overlay version=3 cluster_bits={} refcount_order=4 features={} data_in=image size={}",
        9 + entropy.below(13),
        ["none", "extended_l2"][entropy.below(2) as usize],
        ["same", "same", "-1<<12", "+3<<14"][entropy.below(4) as usize],
    );
    program.operations.extend(lines::operations(&overlay));
    let above = entropy.below(8);
    program.operations.extend(random(above, &mut entropy));
    Case { name: format!("on raw holes, from {rng_seed}"), input: program.encode() }
}

#[test]
fn qemu_finds_nothing_in_programs_from_random_bytes() {
    let Some(()) = qemu::tools() else { return };
    let checked: u64 = qemu::judge_all(&random_bytes(1, 1000), Bench::new, |bench, case| {
        let path = bench.dir.path().join("layer.qcow2");
        bench.harness.build(&case.input);
        let images = bench.harness.images();
        if !is_checkable(images)? {
            skipped(format_args!("{}: qemu-img would take minutes to check its files", case.name));
            return Ok(0);
        }
        // A file that is too long for file systems is replaced by an empty one: it is a data file, which the
        // check does not read. An image of so few clusters is shorter.
        for (name, image) in images.files(&FileNames::default()) {
            let path = name.map_or(path.clone(), |name| path.with_file_name(name));
            match image.length_bytes() > MAX_FILE_BYTES {
                true => write_to(&path, &Image::default(), Holes::Keep)?,
                false => write_to(&path, image, Holes::Keep)?,
            }
        }
        check_layers(bench.dir.path(), images)?;
        Ok(1)
    });
    assert!(checked >= 900, "{checked} of 1000 programs");
}

/// The longest file in memory is longer than any program's.
const MAX_FILE_IN_MEMORY_BYTES: u64 = 1 << 57;

/// A file system in memory holds files as long as the format allows.
#[test]
fn qemu_agrees_about_host_offsets_up_to_the_end_of_the_format() {
    let Some(()) = qemu::tools() else { return };
    let folder = Path::new("/dev/shm");
    assert!(folder.is_dir(), "{}: expected a file system in memory", folder.display());
    let cases: Vec<Case> = (0..8 * 13).map(far).collect();
    let farthest = AtomicU64::new(0);
    let bench = || Bench::writing_to(folder, MAX_FILE_IN_MEMORY_BYTES);
    let tally: Tally = qemu::judge_all(&cases, bench, |bench, case| {
        let tally = judge(bench, case)?;
        farthest.fetch_max(bench.harness.image().length_bytes(), Ordering::Relaxed);
        Ok(tally)
    });
    let mapped = |(what, _, _): &(&'static str, u64, u64)| (*what, u64::from(*what == "windows"));
    let bounds: Vec<_> = BOUNDS.iter().map(mapped).collect();
    tally.assert_at_least(&bounds);
    let farthest = farthest.into_inner();
    assert!(farthest > 1 << 55, "the longest file has {farthest} bytes");
}

/// Returns a program whose data lie on both sides of a far gap. Every cluster size has gaps of any length.
fn far(rng_seed: u64) -> Case {
    let mut program = generate_any(rng_seed, 12);
    let mut entropy = Entropy::new(rng_seed);
    program.prologue.size = Size::new(3000, 12 + (rng_seed % 13) as u8, 0).unwrap();
    let gap = format!("reserve_far gap={}<<{}", 1 + entropy.below(255), entropy.below(48));
    let lines = format!("{gap}\nwrite at=start+1 clusters=3\nwrite at=end-4 clusters=2");
    program.operations.extend(lines::operations(&lines));
    Case { name: format!("generated from {rng_seed}, with a far gap"), input: program.encode() }
}

/// Returns programs of every pair of a cluster size and a refcount order, with few operations to many.
fn generated() -> Vec<Case> {
    let rounds = [3, 24, 24, 60, 12, 120];
    let case = |rng_seed: u64| {
        let program = generate_any(rng_seed, rounds[(rng_seed / 91) as usize]);
        Case { name: format!("generated from {rng_seed}"), input: program.encode() }
    };
    (0..91 * rounds.len() as u64).map(case).collect()
}

/// Returns generated programs with random `header` operations.
fn headers() -> Vec<Case> {
    let mut entropy = Entropy::new(15);
    let case = |rng_seed: u64| {
        let mut program = generate_any(rng_seed, 16);
        program.operations.extend(lines::operations(&lines::header(&mut entropy)));
        Case { name: format!("generated from {rng_seed}, with a header"), input: program.encode() }
    };
    (0..182).map(case).collect()
}

/// Returns generated programs with bytes of all kinds, each before an operation that uses them.
fn with_given_bytes() -> Vec<Case> {
    let mut entropy = Entropy::new(37);
    let case = |rng_seed: u64| {
        let mut program = generate_any(rng_seed, 6);
        for _ in 0..4 + entropy.below(8) {
            let at = entropy.below(60);
            let (kind, user) = match entropy.below(6) {
                0 => ("name", "bitmap granularity=20 flags=none name=1".to_string()),
                1 => ("name", "snapshot".to_string()),
                2 => ("id", "snapshot".to_string()),
                3 => ("extension", lines::header(&mut entropy)),
                _ => (
                    "payload",
                    format!("compress at=start+{at} clusters=1 shape=zeros skew=packed"),
                ),
            };
            let line = format!("bytes kind={kind} data={}\n{user}", lines::digits(&mut entropy));
            program.operations.extend(lines::operations(&line));
        }
        Case { name: format!("generated from {rng_seed}, with bytes"), input: program.encode() }
    };
    (0..273).map(case).collect()
}

/// Returns programs with a qcow2 image on an image of each other format.
fn on_other_formats() -> Vec<Case> {
    let bases: Vec<_> = Base::other_formats().map(Base::of).collect();
    let case = |rng_seed: u64| {
        let mut program = generate_any(rng_seed, 12);
        let base = bases[rng_seed as usize % bases.len()];
        (program.prologue.base, program.prologue.form) = (base, form_of(rng_seed));
        let overlay = format!(
            "overlay version=3 cluster_bits={} refcount_order=4 features=none data_in=image \
             size=same",
            9 + rng_seed % 13
        );
        program.operations.extend(lines::operations(&overlay));
        program.operations.extend(generate_any(!rng_seed, 6).operations);
        Case { name: format!("generated from {rng_seed}, on {base:?}"), input: program.encode() }
    };
    (0..91 * bases.len() as u64).map(case).collect()
}

/// Returns a form in which every bit occurs with every other.
fn form_of(rng_seed: u64) -> ImageForm {
    ImageForm((rng_seed as u16).wrapping_mul(0x9e37))
}

/// Returns the committed seeds of a target. Inputs that a fuzzer kept have a hash for a name, and are left out.
fn seeds_of(target: &str) -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut cases: Vec<Case> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .filter(|(name, _)| name.len() != 40 || name.bytes().any(|byte| !byte.is_ascii_hexdigit()))
        .map(|(name, path)| Case {
            name: format!("{target}/{name}"),
            input: fs::read(path).unwrap(),
        })
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
