//! A known panic ends the run and not the campaign: in the runner, in the embedded loop, and under the panic hook of
//! the libFuzzer targets, where an unknown one still ends the process with its crash state.

use std::os::unix::process::ExitStatusExt;
use std::rc::Rc;
use test_support::prelude::*;

use qcowfuzz::findings::PanicNotes;
use qcowfuzz::findings::runner::{Ran, Runner};
use qcowfuzz::fuzzing::corpus::Folder;
use qcowfuzz::fuzzing::embedded::{FuzzSettings, Fuzzer, RunReply, Subject};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::fuzzing::libfuzzer;
use qcowfuzz::harness::MetFinding;
use qcowfuzz::harness::cases::target::Inputs;

/// The crate of the function is that of this test.
const FINGERPRINT: &str = "panic: known_panics, reads_nothing";

/// Two panics in the way of reads.
#[derive(Clone, Default)]
struct Panics;

/// Panics at disks of an odd number of sectors. If it were inlined, or contained an inlined
/// function, the fingerprint would lack the crate.
#[inline(never)]
fn reads_nothing(sectors: u64) {
    assert!(sectors & 1 == 0, "known");
}

/// Panics at some other disks.
#[inline(never)]
fn reads_no_end(sectors: u64) {
    assert!(sectors % 7 != 3, "new");
}

/// The sizes of disks in sectors: one with each panic, and one with none.
const KNOWN: u64 = 65;
const NEW: u64 = 66;
const SOUND: u64 = 64;

impl Change for Panics {
    fn facts(&self, facts: Facts) -> Facts {
        let known = format!("[[finding]]\nfingerprint = '{FINGERPRINT}'\nreason = 'a test'\n");
        Facts { known: KnownFindings::parse(&known).unwrap(), ..facts }
    }

    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answer {
        let sectors = disk.virtual_size_bytes() / 512;
        reads_no_end(sectors);
        reads_nothing(sectors);
        disk.read(guest, into)
    }
}

/// Returns a program with a disk of this size.
fn disk_of(sectors: u64) -> Vec<u8> {
    let text = format!(
        "image version=3 cluster_bits=9 refcount_order=4 features=none size={sectors}<<9+0 rng_seed=0 blocks=append \
         table=append tolerance=0\nwrite at=start+4 clusters=1\n"
    );
    assemble(&text).unwrap().encode()
}

/// The subject of the embedded loop.
struct PanicsSubject(Runner, Rc<Recorder>);

impl Subject for PanicsSubject {
    fn run(&mut self, input: &[u8]) -> RunReply {
        match self.0.run(input, Checks::AtCheckpoints) {
            Ran::Sound(outcome) => RunReply::Sound(outcome),
            Ran::KnownPanic(_) => RunReply::KnownPanic,
            ran => RunReply::Found(ran.finding().unwrap()),
        }
    }

    fn recorder(&self) -> &Recorder {
        &self.1
    }

    fn met(&self) -> &[MetFinding] {
        self.0.met()
    }
}

// One test, because a process has one panic hook.
#[test]
fn the_runner_and_the_loop_count_a_known_panic_and_go_on() {
    let _silence = PanicNotes::take_over();
    let recorder: Rc<Recorder> = Rc::default();
    let kind = TargetKind::MapExtents;
    let mut runner =
        Runner::new(&Changed::walker(Panics).into(), kind, FileNames::default(), recorder.clone());
    let known = runner.run(&disk_of(KNOWN), Checks::AtCheckpoints);
    assert!(matches!(known, Ran::KnownPanic(_)) && known.finding().is_none(), "{known:?}");
    let met = MetFinding { known: FINGERPRINT.to_string(), seen: vec![FINGERPRINT.to_string()] };
    assert_eq!(runner.met(), [met]);
    assert!(matches!(runner.run(&disk_of(SOUND), Checks::AtCheckpoints), Ran::Sound(_)));
    assert_eq!(runner.met(), []);
    let new = runner.run(&disk_of(NEW), Checks::AtCheckpoints).finding().unwrap();
    assert_eq!(new.fingerprint, "panic: known_panics, reads_no_end");

    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| Folder::new(dir.path().join(name), dir.path().join("scratch"));
    let settings = FuzzSettings {
        rng_seed: 1,
        inputs: Inputs::Programs,
        limits: Limits::WALKED,
        claims: Claims::ALL,
        max_operations: 60,
        build: String::new(),
    };
    let subject = PanicsSubject(runner, recorder);
    let (corpus, artifacts) = (folder("corpus").unwrap(), folder("artifacts").unwrap());
    let mut fuzzer = Fuzzer::begin(subject, settings, corpus, artifacts).unwrap();
    for _ in 0..3000 {
        fuzzer.step().unwrap();
    }
    let found: Vec<_> = fuzzer.found().iter().map(|(fingerprint, _)| fingerprint).collect();
    assert_eq!(found, [new.fingerprint]);
    assert!(fuzzer.found().times_known(FINGERPRINT) > 20, "{:?}", fuzzer.found());
    // A run that was not judged to its end is not kept.
    assert!(fuzzer.progress().inputs > 1);
    for input in std::fs::read_dir(dir.path().join("corpus")).unwrap() {
        let input = std::fs::read(input.unwrap().path()).unwrap();
        assert!(matches!(fuzzer.subject().run(&input), RunReply::Sound(_)));
    }
}

/// The process of the next test, which its own panic hook ends.
#[test]
#[ignore = "the next test runs this one in a process of its own"]
fn process_with_the_hook_of_libfuzzer() {
    libfuzzer::name_panics();
    let run = |sectors| {
        libfuzzer::run_with(Changed::<Panics>::default, TargetKind::MapExtents, &disk_of(sectors))
    };
    for _ in 0..3 {
        assert!(run(KNOWN).unwrap().images == 0);
        // The target begins anew.
        assert_eq!(run(SOUND).unwrap().images, 1);
    }
    println!("survived");
    libfuzzer::report(run(NEW));
    println!("not reached");
}

/// Runs the process above with the file that `QCOWFUZZ_KNOWN` names, if there is one. Returns its signal, its exit code
/// and what it prints.
fn run_the_process(known: Option<&Path>) -> (Option<i32>, Option<i32>, String, String) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "--ignored", "--nocapture", "process_with_the_hook_of_libfuzzer"]);
    child.env_remove("QCOWFUZZ_KNOWN").envs(known.map(|path| ("QCOWFUZZ_KNOWN", path)));
    let ran = child.output().unwrap();
    let [out, error] =
        [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (ran.status.signal(), ran.status.code(), out, error)
}

/// The fingerprint of the panic that the engine does not know.
const NEW_FINGERPRINT: &str = "panic: known_panics, reads_no_end";

#[test]
fn only_unknown_panics_end_a_process_of_libfuzzer() {
    let (signal, _, out, error) = run_the_process(None);
    assert_eq!(signal, Some(6), "{out}{error}");
    assert!(out.contains("survived") && !out.contains("not reached"), "{out}");
    // Once, although three runs meet it.
    let printed = format!("known finding: {FINGERPRINT}\n{NEW_FINGERPRINT}\n");
    assert!(
        error.starts_with(&printed) && error.contains("The crash state of this bug"),
        "{error}"
    );
}

#[test]
fn a_file_adds_known_findings_to_a_process_of_libfuzzer() {
    let dir = tempfile::tempdir().unwrap();
    let known = dir.path().join("known.toml");
    let finding = format!("[[finding]]\nfingerprint = '{NEW_FINGERPRINT}'\nreason = 'a test'\n");
    std::fs::write(&known, finding).unwrap();
    let (_, code, out, error) = run_the_process(Some(&known));
    assert!(code == Some(0) && out.contains("not reached"), "{out}{error}");
    assert!(error.contains(&format!("known finding: {NEW_FINGERPRINT}\n")), "{error}");

    std::fs::write(&known, "[[finding]]\n").unwrap();
    let (_, code, _, error) = run_the_process(Some(&known));
    let line = format!("QCOWFUZZ_KNOWN: {}: line 1: ", known.display());
    assert!(code == Some(2) && error.starts_with(&line) && error.contains("expected"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}
