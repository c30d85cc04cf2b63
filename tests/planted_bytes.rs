//! A wrong bit in what the build wrote is found: generated programs are built, one thing in the image
//! is altered, and each oracle judges the result against the journal of the same program.

mod altered;

use std::collections::BTreeSet;

use altered::{Altered, Case, contents, counts, snapshots};
use qcowfuzz::engines::{Engine, OpenDisk, Walker};
use qcowfuzz::extent::{Extent, Window};
use qcowfuzz::harness::{Checks, Harness};
use qcowfuzz::image::Image;
use qcowfuzz::model::{Model, State};
use qcowfuzz::oracles::collector::Collector;
use qcowfuzz::oracles::metered::Metered;
use qcowfuzz::oracles::recount::Recount;
use qcowfuzz::oracles::{self, Verdict, data, model, refcounts};
use qcowfuzz::qcow2::header::Geometry;
use qcowfuzz::qcow2::units::GuestOffset;
use qcowfuzz::vm::Journal;
use qcowfuzz::vm::generate::{Wanted, generate};

/// Every cluster size with every refcount order twice over.
const PROGRAMS: u64 = 2 * 91;

/// What was meant by a program: all that the image is held against.
struct Meant {
    geometry: Geometry,
    journal: Journal,
    model: Model,
    expected: Vec<Extent>,
}

/// What each oracle finds by itself.
fn found(image: &Image, meant: &Meant) -> Vec<String> {
    let counted = refcounts::check(&mut Recount::new(), image);
    let mut found: Vec<_> = counted.err().map(|it| it.fingerprint()).into_iter().collect();
    let mut walker = Walker::default();
    let mut disk = match walker.open(image) {
        Ok(disk) => disk,
        Err(error) => {
            found.push(format!("open: {error}"));
            return found;
        }
    };
    let extents_and_data = [mapped(&mut disk, meant), read(&mut disk, meant)];
    found.extend(extents_and_data.into_iter().filter_map(Result::err));
    found
}

fn mapped(disk: &mut impl OpenDisk, meant: &Meant) -> Result<(), String> {
    let told = |verdict: Verdict| verdict.map_err(|it| it.fingerprint());
    told(model::check_size(meant.model.virtual_size_bytes(), disk.virtual_size_bytes()))?;
    let mut actual = Vec::new();
    let walked = disk.map(Window::ALL, &mut Collector::new(&mut actual, u64::MAX));
    walked.map_err(|error| format!("walk: {error}"))?;
    told(model::check(&meant.expected, &actual))
}

/// The stamps, and all of the compressed clusters that are not too large.
fn read(disk: &mut impl OpenDisk, meant: &Meant) -> Result<(), String> {
    let Meant { geometry, model, .. } = meant;
    data::check(disk, model, geometry).map_err(|it| it.fingerprint())?;
    let mut buffers = Default::default();
    for (piece, end) in model.pieces() {
        let length = (end - piece.start) as usize;
        if matches!(piece.state, State::Compressed(..)) && length <= 64 << 10 {
            let start = GuestOffset::new(piece.start);
            data::check_range(disk, model, geometry, start, length, &mut buffers)
                .map_err(|it| it.fingerprint())?;
        }
    }
    Ok(())
}

fn images() -> Vec<(Image, Meant)> {
    let mut images = Vec::new();
    let mut harness = Harness::new(Walker::default());
    for rng_seed in 0..PROGRAMS {
        let wanted = Wanted { operations: 32, compressed: rng_seed % 2 == 0 };
        let input = generate(rng_seed, wanted).encode();
        harness.run(&input, Checks::AtCheckpoints).unwrap();
        let mut model = Model::new();
        model.replay(harness.vm().journal());
        let geometry = harness.vm().builder().plan().geometry;
        let journal = harness.vm().journal().clone();
        let expected = harness.expected().to_vec();
        let image = Altered::new(harness.image()).image();
        images.push((image, Meant { geometry, journal, model, expected }));
    }
    images
}

#[test]
fn every_bug_in_the_bytes_is_found() {
    let images = images();
    for (image, meant) in &images {
        assert_eq!(found(image, meant), Vec::<String>::new(), "unaltered");
    }
    assert_found(&images, counts::CASES.iter().chain(contents::CASES), found);
}

/// What the oracle of snapshots finds in any of them.
fn found_in_snapshots(image: &Image, meant: &Meant) -> Vec<String> {
    let storage = Metered::new(image);
    let mut model = Model::new();
    model.replay(&meant.journal);
    let verdict = |index| {
        let (walker, buffers) = (&mut Walker::default(), &mut Default::default());
        let (model, geometry) = (&mut model, &meant.geometry);
        oracles::snapshots::check(walker, &storage, index, model, geometry, u64::MAX, buffers)
    };
    let all = 0..meant.model.snapshot_count();
    all.map(verdict).filter_map(|it| it.err().map(|it| it.fingerprint())).collect()
}

#[test]
fn every_bug_in_the_bytes_of_a_snapshot_is_found() {
    let images = images();
    for (image, meant) in &images {
        assert_eq!(found_in_snapshots(image, meant), Vec::<String>::new(), "unaltered");
    }
    assert_found(&images, snapshots::CASES.iter(), found_in_snapshots);
}

/// Plants each bug in every image, and has it found by what is expected.
fn assert_found<'c>(
    images: &[(Image, Meant)],
    cases: impl Iterator<Item = &'c Case>,
    found: fn(&Image, &Meant) -> Vec<String>,
) {
    let mut failures = Vec::new();
    for case in cases {
        let (mut planted, mut unnoticed) = (0, 0);
        let mut all = BTreeSet::new();
        for (image, meant) in images {
            let mut altered = Altered::new(image);
            if (case.plant)(&mut altered).is_none() {
                continue;
            }
            let found = found(&altered.image(), meant);
            planted += 1;
            unnoticed += u32::from(found.is_empty());
            all.extend(found);
        }
        println!("{:<50} planted {planted:>3}, unnoticed {unnoticed}", case.name);
        let seen = |one: &&str| all.iter().any(|told: &String| told.starts_with(*one));
        let missed: Vec<_> = case.must.iter().filter(|one| !seen(one)).collect();
        let known =
            |told: &&String| case.must.iter().chain(case.may).any(|it| told.starts_with(it));
        let other: Vec<_> = all.iter().filter(|told| !known(told)).collect();
        let noticed = unnoticed == 0 || case.harmless;
        if planted == 0 || !missed.is_empty() || !other.is_empty() || !noticed {
            let name = case.name;
            failures.push(format!(
                "{name}: planted {planted}, unnoticed {unnoticed}\n  missed {missed:?}\n  other {other:#?}\n  all {all:#?}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
