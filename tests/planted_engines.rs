//! Each oracle can fail: engines with one planted bug each run generated programs. The oracle that exists for the bug
//! finds it, reports the expected fingerprint, and finds nothing else.

#[allow(dead_code)]
mod lines;
mod planted;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use planted::{Case, Fault, Faulty, chains, extents, hostile, points, snapshots, walks};
use qcowfuzz::harness::engine::Engine;
use qcowfuzz::harness::target::Target;
use qcowfuzz::harness::targets::Hostile;
use qcowfuzz::harness::{Checks, Failure, Harness, Walker};
use qcowfuzz::programs::generate::{Wanted, generate};

/// The number of programs: each pair of a cluster size and a refcount order three times.
const PROGRAMS: u64 = 3 * 91;

fn inputs() -> Vec<Vec<u8>> {
    let wanted = |rng_seed| Wanted { operations: 32, compressed: rng_seed % 2 == 0 };
    (0..PROGRAMS).map(|rng_seed| generate(rng_seed, wanted(rng_seed)).encode()).collect()
}

/// The lowest number of programs in which each bug is found as expected. A single one could be chance.
const LEAST: usize = 3;
/// The number of violations after which the test stops, if the expected one is among them.
const ENOUGH: usize = 48;

/// Returns the fingerprint of a violation. Asserts that a violation is marked as drawn exactly if its oracle derives its
/// questions from the checksum of the input.
fn fingerprint(failure: &Failure) -> String {
    let violation = &failure.violation;
    let drawn = ["window", "io", "snapshots", "hostile"].contains(&violation.oracle);
    assert_eq!(violation.drawn, drawn, "{violation}");
    violation.fingerprint()
}

/// Returns the fingerprints of the violations, one for each program that has a violation.
fn found<E: Engine>(engine: E, inputs: &[Vec<u8>], expected: &str) -> Vec<String> {
    let mut harness = Harness::new(engine);
    let mut found = Vec::new();
    let mut seen = false;
    for input in inputs {
        if let Err(failure) = harness.run(input, Checks::AtCheckpoints) {
            found.push(fingerprint(&failure));
            seen |= found.last().is_some_and(|told| told.starts_with(expected));
        }
        if seen && found.len() >= ENOUGH {
            break;
        }
    }
    found
}

fn cases() -> impl Iterator<Item = &'static Case> {
    extents::CASES.iter().chain(walks::CASES).chain(points::CASES).chain(snapshots::CASES)
}

#[test]
fn the_walker_passes_the_programs_that_engines_with_bugs_fail() {
    for inputs in [inputs(), chains::inputs()] {
        assert_eq!(found(Walker::default(), &inputs, ""), Vec::<String>::new());
        // Without a fault, the wrapper itself adds no bug.
        assert_eq!(found(Faulty::new(planted::Fault::NONE), &inputs, ""), Vec::<String>::new());
    }
}

#[test]
fn every_planted_bug_is_found_by_its_oracle() {
    judge(cases(), &inputs());
}

#[test]
fn every_planted_bug_of_chains_is_found() {
    judge(chains::CASES.iter(), &chains::inputs());
}

#[test]
fn every_planted_bug_of_damaged_images_is_found() {
    let seeds = hostile_seeds();
    for case in hostile::CASES {
        let mut found = BTreeSet::new();
        for seed in &seeds {
            let run = Hostile::new(Faulty::new(case.fault)).run(seed, Checks::AtCheckpoints);
            found.extend(run.err().map(|failure| fingerprint(&failure)));
        }
        let expected =
            |fingerprint: &str| case.fingerprints.iter().any(|it| fingerprint.starts_with(it));
        let first = found.iter().any(|it| it.starts_with(case.fingerprints[0]));
        assert!(first && found.iter().all(|it| expected(it)), "{}: {found:?}", case.name);
    }
}

#[test]
fn the_seeds_of_hostile_have_every_outcome() {
    let mut hostile = Hostile::new(Faulty::new(Fault::NONE));
    let (mut walked, mut refused, mut failed) = (0, 0, 0);
    for seed in hostile_seeds() {
        let outcome = hostile.run(&seed, Checks::AtCheckpoints).unwrap();
        assert_eq!(
            outcome.effective,
            outcome.operations,
            "{}",
            hostile.pipeline().unwrap().program()
        );
        refused += outcome.refused;
        failed += outcome.failed;
        walked += outcome.images - outcome.refused - outcome.failed;
    }
    assert!(walked > 5 && refused > 2 && failed > 2, "{walked} {refused} {failed}");
}

/// Returns the committed seeds: the inputs that have a text.
fn hostile_seeds() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let texts = fs::read_dir(corpus.join("text/hostile")).unwrap();
    let mut names: Vec<_> =
        texts.map(|text| text.unwrap().path().file_stem().unwrap().to_owned()).collect();
    names.sort();
    names.iter().map(|name| fs::read(corpus.join("hostile").join(name)).unwrap()).collect()
}

fn judge(cases: impl Iterator<Item = &'static Case>, inputs: &[Vec<u8>]) {
    let mut missed = Vec::new();
    for case in cases {
        let found = found(Faulty::new(case.fault), inputs, case.fingerprints[0]);
        let first = found.iter().filter(|told| told.starts_with(case.fingerprints[0])).count();
        let known = |told: &&String| case.fingerprints.iter().any(|one| told.starts_with(one));
        let other: BTreeSet<_> = found.iter().filter(|told| !known(told)).collect();
        if first < LEAST || !other.is_empty() {
            let (name, expected, all) = (case.name, case.fingerprints, BTreeSet::from_iter(&found));
            missed.push(format!("{name}: expected {expected:?}, found {first} times, {all:#?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_oracle_has_a_bug_that_it_finds() {
    let oracle = |case: &'static Case| case.fingerprints[0].split(':').next().unwrap_or_default();
    let found: BTreeSet<_> = cases().map(oracle).collect();
    // An engine cannot falsify the image. tests/planted_bytes.rs plants the bugs in refcounts.
    let expected = [
        "bounds",
        "data",
        "flags",
        "io",
        "lookup",
        "maximal",
        "model",
        "partition",
        "snapshots",
        "window",
    ];
    assert_eq!(found, BTreeSet::from(expected));
}
