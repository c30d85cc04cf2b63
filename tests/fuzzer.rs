//! The embedded loop as a library: the inputs that it keeps, the findings that it reports, and the detection of
//! subjects whose results vary.

#![cfg(feature = "fuzzer")]

use std::cell::Cell;
use std::rc::Rc;
use test_support::prelude::*;

use qcowfuzz::disk::observer::{Observer, Rare};
use qcowfuzz::findings::runner::Finding;
use qcowfuzz::fuzzing::corpus::Folder;
use qcowfuzz::fuzzing::embedded::{FuzzSettings, Fuzzer, RunReply, Subject};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::Outcome;
use qcowfuzz::harness::cases::target::Inputs;
use qcowfuzz::internal::base::files;
use qcowfuzz::internal::fuzzing::embedded::state::CampaignState;

/// Changes the result of a run. The parameters are the input, the recorder, the answer and the number of earlier runs.
type Change = fn(&[u8], &Recorder, RunReply, u64) -> RunReply;

/// Our walker, with changed results.
struct Changed {
    harness: Harness,
    recorder: Rc<Recorder>,
    change: Change,
    runs: u64,
}

impl Changed {
    fn new(change: Change) -> Self {
        let recorder: Rc<Recorder> = Rc::default();
        let harness = Harness::observed(Walker::observed(recorder.clone()), recorder.clone());
        Self { harness, recorder, change, runs: 0 }
    }
}

impl Subject for Changed {
    fn run(&mut self, input: &[u8]) -> RunReply {
        let outcome = self.harness.run(input, Checks::AtCheckpoints).unwrap();
        self.runs += 1;
        (self.change)(input, &self.recorder, RunReply::Sound(outcome), self.runs)
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}

fn settings() -> FuzzSettings {
    let build = "a test".to_string();
    let (inputs, limits, claims) = (Inputs::Programs, Limits::WALKED, Claims::ALL);
    FuzzSettings { rng_seed: 2, inputs, limits, claims, max_operations: 60, build }
}

fn folder(dir: &Path, name: &str) -> Folder {
    Folder::new(dir.join(name), dir.join("scratch")).unwrap()
}

fn begin(dir: &Path, change: Change) -> Fuzzer<Changed> {
    let (corpus, artifacts) = (folder(dir, "corpus"), folder(dir, "artifacts"));
    Fuzzer::begin(Changed::new(change), settings(), corpus, artifacts).unwrap()
}

fn fingerprints(fuzzer: &Fuzzer<Changed>) -> Vec<&str> {
    fuzzer.found().iter().map(|(fingerprint, _)| fingerprint).collect()
}

fn as_it_is(_: &[u8], _: &Recorder, answer: RunReply, _: u64) -> RunReply {
    answer
}

#[test]
fn subjects_whose_results_vary_are_found() {
    let cases: [(Change, &str); 3] = [
        (
            |_, recorder, answer, runs| {
                // The result changes once, after some runs.
                (0..runs / 256).for_each(|_| recorder.rare(Rare::NoHole));
                answer
            },
            "determinism: counters, the same → others",
        ),
        (
            |_, recorder, answer, runs| {
                // A counter that depends on the runs before.
                (0..runs / 64 % 2).for_each(|_| recorder.rare(Rare::NoHole));
                answer
            },
            "determinism: counters, the same → others",
        ),
        (
            |_, _, _, runs| {
                RunReply::Sound(Outcome { images: runs as usize / 64 % 2, ..Outcome::default() })
            },
            "determinism: answer, the same → others",
        ),
    ];
    for (change, fingerprint) in cases {
        let dir = tempfile::tempdir().unwrap();
        let mut fuzzer = begin(dir.path(), change);
        (0..600).for_each(|_| fuzzer.step().unwrap());
        assert_eq!(fingerprints(&fuzzer), [fingerprint]);
        assert!(fuzzer.found().iter().all(|(_, found)| found.times > 1));
        assert!(!files::list(&dir.path().join("artifacts")).unwrap().is_empty());
    }
}

#[test]
fn files_that_vary_are_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    let mut fuzzer = begin(dir.path(), |_, recorder, answer, runs| {
        (0..runs % 2).for_each(|_| recorder.rare(Rare::NoHole));
        let RunReply::Sound(outcome) = answer else { return answer };
        RunReply::Sound(Outcome { varies: true, images: runs as usize % 2, ..outcome })
    });
    (0..600).for_each(|_| fuzzer.step().unwrap());
    assert_eq!(fingerprints(&fuzzer), Vec::<&str>::new());
}

#[test]
fn the_first_and_each_shorter_input_of_a_bug_is_written() {
    /// Reports one bug for programs of many operations, and another for programs of one or two.
    fn bugs(input: &[u8], _: &Recorder, answer: RunReply, _: u64) -> RunReply {
        let found = |fingerprint: &str| {
            let (fingerprint, detail) = (fingerprint.to_string(), input.len().to_string());
            RunReply::Found(Finding { fingerprint, detail, guest: None })
        };
        match Program::decode(input).operations.len() {
            1..=2 => found("few"),
            5.. => found("many"),
            _ => answer,
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mut fuzzer = begin(dir.path(), bugs);
    (0..600).for_each(|_| fuzzer.step().unwrap());
    assert_eq!(fingerprints(&fuzzer), ["few", "many"]);
    let written = files::list(&dir.path().join("artifacts")).unwrap();
    let times: u64 = fuzzer.found().iter().map(|(_, found)| found.times).sum();
    assert!(written.len() < 20 && times > 50, "{} files, {times} times", written.len());
    for (_, found) in fuzzer.found().iter() {
        let input = files::read(&dir.path().join("artifacts").join(&found.file), 1000).unwrap();
        assert_eq!((input.len(), &found.detail), (found.shortest_bytes, &input.len().to_string()));
    }
    // Inputs that show a bug do not become parents.
    for path in files::list(&dir.path().join("corpus")).unwrap() {
        let input = files::read(&path, 1000).unwrap();
        assert!(matches!(Program::decode(&input).operations.len(), 0 | 3 | 4), "{path:?}");
    }
}

#[test]
fn a_bug_of_nearly_all_programs_does_not_end_the_campaign() {
    let dir = tempfile::tempdir().unwrap();
    let mut fuzzer = begin(dir.path(), |input, _, answer, _| {
        let (fingerprint, detail) = Default::default();
        match Program::decode(input).operations.len() {
            3 => answer,
            _ => RunReply::Found(Finding { fingerprint, detail, guest: None }),
        }
    });
    (0..200).for_each(|_| fuzzer.step().unwrap());
    assert_eq!(fingerprints(&fuzzer), [""]);
    assert!(fuzzer.progress().inputs > 1);
}

#[test]
fn coverage_that_differs_in_another_build_is_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let state = dir.join("state.json");
    let mut fuzzer = begin(dir, as_it_is);
    (0..200).for_each(|_| fuzzer.step().unwrap());
    fuzzer.save(&state, &dir.join("scratch")).unwrap();
    let resumed = |build: &str, change: Change| {
        let (corpus, artifacts) = (folder(dir, "corpus"), folder(dir, "artifacts"));
        let settings = FuzzSettings { build: build.to_string(), ..settings() };
        let state = CampaignState::read(&state).unwrap();
        Fuzzer::resume(Changed::new(change), settings, corpus, artifacts, state).unwrap()
    };
    let other: Change = |_, recorder, answer, _| {
        (0..3).for_each(|_| recorder.rare(Rare::TableMoved));
        answer
    };
    let broken: Change = |input, _, answer, _| {
        let (fingerprint, detail) = ("broken".to_string(), String::new());
        let broken = Program::decode(input).operations.len() > 2;
        if broken { RunReply::Found(Finding { fingerprint, detail, guest: None }) } else { answer }
    };
    let mut found = resumed("another", broken);
    assert_eq!(fingerprints(&found), ["broken"]);
    // An input that fails now does not become a parent.
    let before = found.found().iter().map(|(_, found)| found.times).sum::<u64>();
    assert!(before > 10);
    (0..100).for_each(|_| found.step().unwrap());
    assert!(resumed("a test", as_it_is).found().is_empty());
    assert!(resumed("another", other).found().is_empty());
    let found = resumed("a test", other);
    assert_eq!(fingerprints(&found), ["determinism: counters, the same → others"]);
}

#[test]
fn two_campaigns_on_one_corpus_learn_from_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut one = begin(dir, as_it_is);
    let mut other = begin(dir, as_it_is);
    (0..300).for_each(|_| one.step().unwrap());
    let before = other.progress();
    assert!(other.import().unwrap() > 30);
    let after = other.progress();
    assert!(after.edges >= one.progress().edges && after.edges > before.edges);
    assert_eq!(after.runs, before.runs);
    // No file is read twice.
    assert_eq!(other.import().unwrap(), 0);
}

/// The reading of a corpus ends with the campaign, and the next campaign reads the rest.
#[test]
fn a_campaign_ends_while_it_reads_its_corpus() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = begin(dir.path(), as_it_is);
    (0..300).for_each(|_| one.step().unwrap());
    let folders = || (folder(dir.path(), "corpus"), folder(dir.path(), "artifacts"));
    let (corpus, artifacts) = folders();
    let mut ended = Fuzzer::without_inputs(Changed::new(as_it_is), settings(), corpus, artifacts);
    ended.fill(&|| true).unwrap();
    assert_eq!(ended.progress().inputs, 0);
    let looks = Cell::new(0);
    let is_over = || looks.replace(looks.get() + 1) >= 20;
    ended.fill(&is_over).unwrap();
    let read = ended.progress().inputs;
    assert!((1..=20).contains(&read), "{read}");
    ended.fill(&|| false).unwrap();
    assert_eq!(ended.progress().inputs, begin(dir.path(), as_it_is).progress().inputs);
}

#[test]
fn inputs_get_shorter_and_the_corpus_stays_small() {
    let dir = tempfile::tempdir().unwrap();
    let mut fuzzer = begin(dir.path(), as_it_is);
    (0..2000).for_each(|_| fuzzer.step().unwrap());
    let progress = fuzzer.progress();
    assert_eq!(progress.runs, 2000);
    assert!(progress.inputs < 800 && progress.edges > 200, "{progress:?}");
}

#[test]
fn generated_programs_depend_on_the_seed_and_on_no_input() {
    // Every run is a finding with the name of its input.
    let all: Change = |input, _, _, _| {
        let fingerprint = format!("{:08x}", crc32fast::hash(input));
        RunReply::Found(Finding {
            fingerprint,
            detail: Program::decode(input).to_string(),
            guest: None,
        })
    };
    let generated = |seeds: &[&[u8]]| {
        let dir = tempfile::tempdir().unwrap();
        let corpus = folder(dir.path(), "corpus");
        seeds.iter().for_each(|seed| drop(corpus.add("", seed).unwrap()));
        let mut fuzzer = begin(dir.path(), all);
        let before: Vec<_> = fingerprints(&fuzzer).iter().map(ToString::to_string).collect();
        (0..20).for_each(|_| fuzzer.step_generated().unwrap());
        assert_eq!(fuzzer.runs(), 20);
        let new = fuzzer.found().iter().filter(|(it, _)| !before.iter().any(|old| old == it));
        new.map(|(_, found)| found.detail.clone()).collect::<Vec<_>>()
    };
    let programs = generated(&[]);
    assert_eq!(programs.len(), 20);
    assert_eq!(generated(&[b"another", b"input"]), programs);
    let most = programs.iter().map(|program| program.lines().count()).max();
    assert!(most > Some(12), "{programs:?}");
}
