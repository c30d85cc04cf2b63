//! Disks of more than 4 GiB in VHD, VHDX and VMDK images: their cost, and engines that keep 32 bits of a guest offset.

mod narrow;

use std::rc::Rc;

use narrow::{CASES, LargeCase, Narrow, NarrowEngine};
use qcowfuzz::findings::runner::Finding;
use qcowfuzz::fuzzing::corpus::Folder;
use qcowfuzz::fuzzing::embedded::{FuzzSettings, Fuzzer, RunReply, Subject};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::cases::target::Inputs;
use test_support::prelude::*;

#[test]
fn engines_with_narrow_guest_offsets_are_found() {
    for case in CASES {
        for text in case.programs() {
            let input = assemble(&text).unwrap().encode();
            let mut own = Harness::new(Walker::default());
            let run = own.run(&input, Checks::AtCheckpoints);
            let outcome = run.unwrap_or_else(|found| panic!("{}\n{text}", found.violation));
            assert_eq!(outcome.effective, 2, "{text}");
            let mut planted = Harness::new(Changed::walker(NarrowEngine::of(case)));
            let found = planted.run(&input, Checks::AtCheckpoints).unwrap_err();
            let found = found.violation.fingerprint();
            assert!(found.starts_with(case.fingerprint), "{:?}: {found}\n{text}", case.narrow);
        }
    }
}

struct Planted {
    harness: Harness,
    recorder: Rc<Recorder>,
}

impl Planted {
    fn new(case: &LargeCase) -> Self {
        let recorder: Rc<Recorder> = Rc::default();
        let walker = Walker::observed(recorder.clone());
        let engine = Changed { change: NarrowEngine::of(case), engine: walker };
        Self { harness: Harness::observed(engine, recorder.clone()), recorder }
    }
}

impl Subject for Planted {
    fn run(&mut self, input: &[u8]) -> RunReply {
        match self.harness.run(input, Checks::AtCheckpoints) {
            Ok(outcome) => RunReply::Sound(outcome),
            Err(failure) => RunReply::Found(Finding {
                guest: None,
                fingerprint: failure.violation.fingerprint(),
                detail: String::new(),
            }),
        }
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}

/// The runs of the embedded loop within which each bug of reading is found from an empty corpus.
const RUNS: u64 = 12_000;

#[test]
fn the_embedded_loop_finds_narrow_guest_offsets_from_nothing() {
    for case in CASES.iter().filter(|case| case.narrow == Narrow::Read) {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| Folder::new(dir.path().join(name), dir.path().join("s")).unwrap();
        let (inputs, limits, claims) = (Inputs::Programs, Limits::WALKED, Claims::ALL);
        let build = "a test".to_string();
        let settings =
            FuzzSettings { rng_seed: 1, inputs, limits, claims, max_operations: 60, build };
        let (corpus, artifacts) = (folder("corpus"), folder("artifacts"));
        let mut fuzzer = Fuzzer::begin(Planted::new(case), settings, corpus, artifacts).unwrap();
        let mut runs = 0;
        while fuzzer.found().iter().next().is_none() && runs < RUNS {
            fuzzer.step().unwrap();
            runs += 1;
        }
        let found: Vec<_> = fuzzer.found().iter().map(|(name, _)| name.to_string()).collect();
        println!("{:?}: {runs} runs, {found:?}", case.format);
        let is_expected = |name: &String| name.starts_with("data: ");
        assert!(!found.is_empty() && found.iter().all(is_expected), "{found:?}");
    }
}

/// A disk costs what its program wrote and the tables that readers have to read. The empty part of a VHD table consists
/// of shared bytes.
#[test]
fn a_large_disk_takes_little_memory() {
    for (base, most_bytes) in [
        ("cluster_bits=21 size=1020<<31+0 base=large_vpc", 8 << 10),
        ("cluster_bits=9 size=32<<40+0 base=large_vhdx", 160 << 10),
        // The directory names all tables of 20 GiB, but not of 1 TiB.
        ("cluster_bits=16 size=20<<30+0 base=large_vmdk", 16 << 10),
        ("cluster_bits=16 size=1<<40+0 base=large_vmdk", 32 << 10),
        ("cluster_bits=16 size=1<<40+0 base=large_vmdk form=160", 16 << 10),
        ("cluster_bits=16 size=1<<40+0 base=large_vmdk form=24", 32 << 10),
    ] {
        let text = format!(
            "image version=3 refcount_order=4 features=none rng_seed=0 blocks=append table=append tolerance=0 \
             {base}\nwrite at=part+40000 clusters=1\nwrite at=end-0 clusters=1\n"
        );
        let mut harness = Harness::new(Walker::default());
        harness.run(&assemble(&text).unwrap().encode(), Checks::AtCheckpoints).unwrap();
        let layers = harness.images().layers();
        // Shared bytes, which the image refers to, count once for all images of a process.
        let owned: usize = layers.map(|layer| layer.image.owned_bytes()).sum();
        assert!(owned < most_bytes, "{base}: {owned}");
    }
}
