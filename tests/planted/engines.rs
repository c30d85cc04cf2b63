//! Each oracle can fail: engines with one planted bug each run generated programs. The oracle that exists for the bug
//! finds it, reports the expected fingerprint, and finds nothing else.

use test_support::planted;
use test_support::prelude::*;

use qcowfuzz::harness::{Failure, Outcome};
use test_support::planted::refusals::AsIfSound;
use test_support::planted::{
    Case, Fault, Faulty, broken, broken_formats, chains, extents, hostile, points, snapshots, walks,
};

/// The number of programs: each pair of a cluster size and a refcount order three times.
const PROGRAMS: u64 = 3 * 91;
/// The number of programs with compressed clusters on a large disk. Few runs look inside of these.
const COMPRESSED_PROGRAMS: u64 = 48;

fn inputs() -> Vec<Vec<u8>> {
    // The bugs of chains have programs of their own.
    let is_of_one_image = |operation: &Operation| operation.class() != Class::Overlays;
    let program = |rng_seed| {
        let mut program = generate_any(rng_seed, 32);
        program.operations.retain(is_of_one_image);
        program.encode()
    };
    let others = (0..COMPRESSED_PROGRAMS).map(compressed).chain((17..=21).map(deep));
    (0..PROGRAMS).map(program).chain(others).collect()
}

/// Returns a program with data behind the first 64 KiB of clusters of this size.
fn deep(cluster_bits: u32) -> Vec<u8> {
    let text = format!(
        "image version=3 cluster_bits={cluster_bits} refcount_order=4 features=none size=40<<{cluster_bits}+0 \
         rng_seed=0 blocks=append table=append tolerance=0\n\
         write_data at=start+3 clusters=5 content=deep value=0\n"
    );
    assemble(&text).unwrap().encode()
}

/// Returns a program that fills a disk with compressed clusters. It is never compared whole.
fn compressed(rng_seed: u64) -> Vec<u8> {
    let text = format!(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=32<<16+0 rng_seed={rng_seed} \
         blocks=append table=append tolerance=0\ncompress at=start+0 clusters=16 shape=text skew=packed\n\
         compress at=start+16 clusters=16 shape=text skew=packed\n"
    );
    assemble(&text).unwrap().encode()
}

/// The lowest number of programs in which each bug is found as expected. A single one could be chance.
const LEAST: usize = 3;
/// The number of violations after which the test stops, if the expected one is among them.
const ENOUGH: usize = 48;

/// Returns the fingerprint of the violation that `run` finds in a program. Runs the program with another checksum, too:
/// only violations that are marked as drawn may differ.
fn fingerprint(
    input: &[u8],
    mut run: impl FnMut(&[u8]) -> Result<Outcome, Box<Failure>>,
) -> Option<String> {
    let failure = run(input).err()?;
    // An incomplete record has no meaning.
    let again = run(&[input, &[0]].concat()).err();
    let mut found = [Some(&failure), again.as_ref()].into_iter().flatten();
    if !found.any(|failure| failure.violation.drawn) {
        let rule =
            "an oracle whose questions depend on the checksum of the input has `Oracle::drawn`";
        assert_eq!(Some(&failure), again.as_ref(), "{rule}");
    }
    Some(failure.violation.fingerprint())
}

/// Returns the fingerprints of the violations, one for each program that has a violation.
fn found(engine: impl Engine + 'static, inputs: &[Vec<u8>], expected: &str) -> Vec<String> {
    let mut harness = Harness::new(engine);
    let mut found = Vec::new();
    let mut seen = false;
    for input in inputs {
        if let Some(name) = fingerprint(input, |input| harness.run(input, Checks::AtCheckpoints)) {
            seen |= name.starts_with(expected);
            found.push(name);
        }
        if seen && found.len() >= ENOUGH {
            break;
        }
    }
    found
}

fn cases() -> impl Iterator<Item = &'static Case> {
    let walks = walks::CASES.iter().chain(walks::CASES_OF_PARTS);
    extents::CASES.iter().chain(walks).chain(points::CASES).chain(snapshots::CASES)
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
        let found = found_by(case, TargetKind::Hostile, &seeds);
        let first = found.iter().any(|it| it.starts_with(case.fingerprints[0]));
        assert!(first, "{}: {found:?}", case.name);
    }
}

/// Walks of parts are judged on damaged images, also if the whole walk fails, on files without a program, and on images
/// that the engine has written.
#[test]
fn every_planted_bug_of_walks_of_parts_is_found_by_all_targets_that_walk() {
    let mut target = TargetKind::Hostile.judging(Walker::default());
    let (mut failing, mut walked) = (hostile_seeds(), Vec::new());
    failing.retain(|seed| {
        let is_failing = target.run(seed, Checks::AtCheckpoints).unwrap().failed > 0;
        walked.extend((!is_failing).then(|| seed.clone()));
        is_failing
    });
    let (files, mut writes) = (corpus::inputs("raw_image"), corpus::inputs("writes"));
    // After an error of the file, the oracle has another name.
    let fails =
        |one: &Operation| matches!(one, Operation::FailFile { .. } | Operation::Device { .. });
    writes.retain(|seed| !Program::decode(seed).operations.iter().any(fails));
    for case in walks::CASES_OF_PARTS {
        let hostile = [&walked, &failing].map(|seeds| (TargetKind::Hostile, seeds));
        let others = [(TargetKind::RawImage, &files), (TargetKind::Writes, &writes)];
        for (target, seeds) in hostile.into_iter().chain(others) {
            let found = found_by(case, target, seeds);
            assert!(!found.is_empty(), "{}: {}", case.name, target.name());
        }
    }
}

/// Returns the fingerprints with which a target finds a bug, all of them expected.
fn found_by(case: &Case, target: TargetKind, seeds: &[Vec<u8>]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for seed in seeds {
        let mut target = target.judging(Faulty::new(case.fault));
        found.extend(fingerprint(seed, |seed| target.run(seed, Checks::AtCheckpoints)));
    }
    let expected =
        |fingerprint: &str| case.fingerprints.iter().any(|it| fingerprint.starts_with(it));
    assert!(found.iter().all(|it| expected(it)), "{}: {found:?}", case.name);
    found
}

#[test]
fn an_engine_that_reads_through_damage_is_found_by_refusal() {
    for case in broken::cases() {
        let mut own = TargetKind::Hostile.judging(Walker::default());
        let program = case.program();
        let outcome = own.run(&program.encode(), Checks::AtCheckpoints);
        let outcome = outcome.unwrap_or_else(|found| panic!("{}: {found:?}", case.rule));
        assert_eq!(outcome.refused + outcome.failed, 1, "{}", case.rule);
        let mut planted = TargetKind::Hostile.judging(AsIfSound::new(&case.sound()));
        let found =
            fingerprint(&program.encode(), |input| planted.run(input, Checks::AtCheckpoints));
        let expected = format!("refusal: {}, refused → an answer", case.rule);
        assert_eq!(found, Some(expected), "{program}");
        // The image without the damage is no finding.
        let sound = case.sound();
        planted.run(&sound.encode(), Checks::AtCheckpoints).unwrap();
    }
}

#[test]
fn an_engine_that_reads_through_damage_of_other_formats_is_found_by_refusal() {
    let mut faults = Vec::new();
    for case in broken_formats::format_cases() {
        for program in case.programs() {
            let mut own = TargetKind::Hostile.judging(Walker::default());
            let outcome = own.run(&program.encode(), Checks::AtCheckpoints);
            if let Err(found) = outcome {
                faults.push(format!("{}: {}\n{program}", case.rule, found.violation));
                continue;
            }
            let sound = broken_formats::sound(&program);
            let mut planted = TargetKind::Hostile.judging(AsIfSound::new(&sound));
            let found =
                fingerprint(&program.encode(), |input| planted.run(input, Checks::AtCheckpoints));
            let expected = format!("refusal: {}, refused → an answer", case.rule);
            if found.as_ref() != Some(&expected) {
                faults.push(format!("{}: {found:?}\n{program}", case.rule));
            }
            // The image without the damage is no finding.
            if let Err(found) = planted.run(&sound.encode(), Checks::AtCheckpoints) {
                faults.push(format!("{}: {}\n{sound}", case.rule, found.violation));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_engine_that_reads_a_file_that_breaks_a_rule_is_found_by_refusal() {
    for case in broken_formats::byte_cases() {
        for sound in case.programs() {
            let bytes = case.changed(&sound);
            let mut own = TargetKind::RawImage.judging(Walker::default());
            assert_eq!(own.run(&bytes, Checks::AtCheckpoints).unwrap().refused, 1, "{sound}");
            let mut planted = TargetKind::RawImage.judging(AsIfSound::new(&sound));
            let found = fingerprint(&bytes, |input| planted.run(input, Checks::AtCheckpoints));
            let expected = format!("refusal: {}, refused → an answer", case.rule);
            assert_eq!(found, Some(expected), "{sound}");
        }
    }
}

#[test]
fn the_seeds_of_hostile_have_every_outcome() {
    let mut hostile = TargetKind::Hostile.judging(Faulty::new(Fault::NONE));
    let (mut walked, mut refused, mut failed) = (0, 0, 0);
    for seed in hostile_seeds() {
        let outcome = hostile.run(&seed, Checks::AtCheckpoints).unwrap();
        assert_eq!(outcome.effective, outcome.operations, "{}", hostile.pipeline().program());
        refused += outcome.refused;
        failed += outcome.failed;
        walked += outcome.images - outcome.refused - outcome.failed;
    }
    assert!(walked > 5 && refused > 2 && failed > 2, "{walked} {refused} {failed}");
}

fn hostile_seeds() -> Vec<Vec<u8>> {
    corpus::inputs("hostile")
}

fn judge(cases: impl Iterator<Item = &'static Case>, inputs: &[Vec<u8>]) {
    let mut missed = Vec::new();
    for case in cases {
        let found = found(Faulty::new(case.fault), inputs, case.fingerprints[0]);
        let first = found.iter().filter(|name| name.starts_with(case.fingerprints[0])).count();
        let known = |name: &&String| case.fingerprints.iter().any(|one| name.starts_with(one));
        let other: BTreeSet<_> = found.iter().filter(|name| !known(name)).collect();
        if first < LEAST || !other.is_empty() {
            let (name, expected, all) = (case.name, case.fingerprints, BTreeSet::from_iter(&found));
            missed.push(format!("{name}: expected {expected:?}, found {first} times, {all:#?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// The page lists bugs of each oracle. `tests/docs.rs` checks that the page has every oracle, and that the bugs exist.
#[test]
fn the_oracle_that_the_page_names_finds_the_bug() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/oracles.md")).unwrap();
    let all: Vec<_> = cases().chain(chains::CASES).collect();
    let mut listed = BTreeSet::new();
    for section in page.split("\n## ").skip(1) {
        let oracle = section.lines().next().unwrap();
        let Some((_, bugs)) = section.split_once("\nPlanted: ") else { continue };
        for bug in bugs.split('"').skip(1).step_by(2).map(|bug| bug.replace('\n', " ")) {
            let Some(case) = all.iter().find(|case| case.name == bug) else { continue };
            let own = |it: &&str| it.starts_with(&format!("{oracle}: "));
            assert!(case.fingerprints.iter().any(own), "{bug}: docs/oracles.md says {oracle}");
            listed.insert(oracle);
        }
    }
    let finds = |case: &&Case| case.fingerprints[0].split(':').next().unwrap();
    assert_eq!(listed, all.iter().map(finds).collect(), "oracles with a bug in docs/oracles.md");
}
