//! The oracles find wrong bits in an image: the test builds generated programs, alters one element of the image, and
//! each oracle compares the result with the journal of the same program.

use test_support::prelude::*;

use crate::altered::{Altered, Case, bitmaps, contents, counts, out_of_date, snapshots};
use qcowfuzz::internal::harness::engine::tested::TestedEngine;
use qcowfuzz::internal::harness::model::{Model, PieceState};
use qcowfuzz::internal::harness::oracles;
use qcowfuzz::internal::harness::oracles::bounds::Collector;
use qcowfuzz::internal::harness::oracles::extents::model;
use qcowfuzz::internal::harness::oracles::qcow2::recount::Recount;
use qcowfuzz::internal::harness::oracles::qcow2::refcounts;
use qcowfuzz::internal::harness::oracles::{OracleResult, data};
use qcowfuzz::internal::images::files::Deviation;
use qcowfuzz::internal::programs::journal::Journal;

/// The number of programs: each pair of a cluster size and a refcount order twice.
const PROGRAMS: u64 = 2 * 91;
/// The lowest number of images in which each bug is planted.
const LEAST_PLANTED: u32 = 15;

/// The intent of a program: everything that the oracles compare the image with.
struct Meant {
    journal: Journal,
    model: Model,
    expected: Vec<Extent>,
    out_of_date: Vec<Deviation>,
}

/// Returns the violations that each oracle finds by itself.
fn found(image: &Image, meant: &Meant) -> Vec<String> {
    let counted = refcounts::check(&mut Recount::new(), image, &meant.out_of_date, &mut Err);
    let mut found: Vec<_> = counted.err().map(|it| it.fingerprint()).into_iter().collect();
    let (mut walker, chain) = (Walker::default(), Chain::alone(image.clone()));
    let mut disk = match walker.open(&chain) {
        Ok(disk) => disk,
        Err(error) => {
            found.push(format!("open: {error}"));
            return found;
        }
    };
    let extents_and_data = [mapped(&mut *disk, meant), read(&mut *disk, meant)];
    found.extend(extents_and_data.into_iter().filter_map(Result::err));
    found
}

fn mapped(disk: &mut dyn OpenDisk, meant: &Meant) -> Result<(), String> {
    let named = |verdict: OracleResult| verdict.map_err(|it| it.fingerprint());
    named(model::check_size(meant.model.virtual_size_bytes(), disk.virtual_size_bytes()))?;
    let mut actual = Vec::new();
    let walked = disk.map(Window::ALL, &mut Collector::new(&mut actual, u64::MAX));
    walked.map_err(|error| format!("walk: {error}"))?;
    named(model::check(&meant.expected, &actual))
}

/// Compares the stamps, and the whole content of compressed clusters that are not too large.
fn read(disk: &mut dyn OpenDisk, meant: &Meant) -> Result<(), String> {
    let Meant { model, .. } = meant;
    let mut buffers = Default::default();
    let read = &mut |at, into: &mut [u8]| disk.read(at, into);
    data::edges::check(read, model, |_| true, &mut Err).map_err(|it| it.fingerprint())?;
    for visible in model.visible() {
        let length = (visible.end - visible.start) as usize;
        if matches!(visible.piece.state, PieceState::Compressed(..)) && length <= 64 << 10 {
            let start = GuestOffset::new(visible.start);
            data::check_range(read, model, start, length, &mut buffers)
                .map_err(|it| it.fingerprint())?;
        }
    }
    Ok(())
}

fn images() -> Vec<(Image, Meant)> {
    images_with("")
}

/// Returns the images of generated programs, each with these lines at its end.
fn images_with(lines: &str) -> Vec<(Image, Meant)> {
    let last = lines::operations(lines);
    let mut images = Vec::new();
    let mut harness = Harness::new(Walker::default());
    for rng_seed in 0..PROGRAMS {
        let wanted = GenerateSettings { operations: 32, compressed: rng_seed % 2 == 0 };
        let mut program = generate(rng_seed, wanted);
        if rng_seed % 3 != 2 {
            bitmaps::add_to(&mut program, rng_seed % 3 == 1);
        }
        program.operations.extend(&last);
        let input = program.encode();
        harness.run(&input, Checks::AtCheckpoints).unwrap();
        let mut model = Model::new();
        model.replay(harness.vm().journals());
        let journal = harness.vm().journal().clone();
        let expected = harness.expected().to_vec();
        let image = Altered::new(harness.image()).image();
        let out_of_date = harness.images().top().out_of_date.clone();
        images.push((image, Meant { journal, model, expected, out_of_date }));
    }
    images
}

#[test]
fn every_bug_in_the_bytes_is_found() {
    let images = images();
    for (image, meant) in &images {
        assert_eq!(found(image, meant), Vec::<String>::new(), "unaltered");
    }
    assert_found(&images, counts::CASES.iter().chain(bitmaps::CASES).chain(contents::CASES), found);
}

/// Returns the violations that the oracle of snapshots finds in any snapshot.
fn found_in_snapshots(image: &Image, meant: &Meant) -> Vec<String> {
    let chain = Chain::alone(image.clone());
    let mut model = Model::new();
    model.replay(std::iter::once(&meant.journal));
    let mut verdict = |index| {
        let (walker, buffers) = (Walker::default(), &mut Default::default());
        let facts = walker.facts();
        let engine = &mut TestedEngine::new(Box::new(walker), facts);
        oracles::snapshots::check(engine, &chain, index, &mut model, u64::MAX, buffers, &mut Err)
    };
    let all = 0..meant.model.snapshot_count();
    all.map(&mut verdict).filter_map(|it| it.err().map(|it| it.fingerprint())).collect()
}

#[test]
fn every_bug_in_the_bytes_of_a_snapshot_is_found() {
    let images = images();
    for (image, meant) in &images {
        assert_eq!(found_in_snapshots(image, meant), Vec::<String>::new(), "unaltered");
    }
    assert_found(&images, snapshots::CASES.iter(), found_in_snapshots);
}

/// Plants each bug in every image, and asserts that the expected oracles find it.
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
        let seen = |one: &&str| all.iter().any(|name: &String| name.starts_with(*one));
        let missed: Vec<_> = case.must.iter().filter(|one| !seen(one)).collect();
        let known =
            |name: &&String| case.must.iter().chain(case.may).any(|it| name.starts_with(it));
        let other: Vec<_> = all.iter().filter(|name| !known(name)).collect();
        let noticed = unnoticed == 0 || case.harmless && unnoticed < planted;
        if planted < LEAST_PLANTED || !missed.is_empty() || !other.is_empty() || !noticed {
            let name = case.name;
            failures.push(format!(
                "{name}: planted {planted}, unnoticed {unnoticed}\n  missed {missed:?}\n  other {other:#?}\n  all {all:#?}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The oracles accept counts that are meant to be out of date, and no other bug beside them.
#[test]
fn every_bug_beside_counts_that_are_out_of_date_is_found() {
    let header = "header length=shortest order=0 unknown=0 bytes=0 flags=out_of_date";
    let images = images_with(header);
    for (image, meant) in &images {
        assert_eq!(found(image, meant), Vec::<String>::new(), "unaltered");
    }
    let left = |(_, meant): &&(Image, Meant)| !meant.out_of_date.is_empty();
    assert!(images.iter().filter(left).count() > 100);
    for case in out_of_date::CASES {
        let mut planted = 0;
        for (image, meant) in images.iter().filter(left) {
            let mut altered = Altered::new(image);
            if (case.plant)(&mut altered, &meant.out_of_date).is_some() {
                let found = found(&altered.image(), meant);
                planted += 1;
                let noticed = found.iter().any(|name| name.starts_with(case.found));
                assert!(noticed, "{}: found {found:?}", case.name);
            }
        }
        assert!(planted >= 100, "{}: planted {planted}", case.name);
    }
}
