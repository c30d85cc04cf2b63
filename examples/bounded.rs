//! A bounded run of a target in one process: all inputs of a folder, then children of them that the embedded loop
//! breeds. Prints the fingerprint of the first violation or panic, and exits with 1. Our walker is under test, with the
//! small writer of the tests, for the target `writes`.
//!
//! `cargo run --release --example bounded map_extents corpus/map_extents 1000`
//!
//! `cargo xtask mutants` runs it to find out whether a target notices a mutant, and `cargo xtask coverage` to find out
//! which lines the seeds reach.

use std::error::Error;
use std::fs;
use std::process::exit;
use std::rc::Rc;

use qcowfuzz::findings::PanicNote;
use qcowfuzz::fuzzing::corpus::Folder;
use qcowfuzz::fuzzing::embedded::{FuzzSettings, Fuzzer, RunReply, Subject};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::engine::claims::Claims;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Harness};
use qcowfuzz::images::FileNames;

/// A target whose first violation ends the process.
struct Bounded {
    target: Harness,
    recorder: Rc<Recorder>,
}

impl Subject for Bounded {
    fn run(&mut self, input: &[u8]) -> RunReply {
        match self.target.run(input, Checks::AtCheckpoints) {
            Ok(outcome) => RunReply::Sound(outcome),
            Err(failure) => report(&failure.violation.fingerprint()),
        }
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}

fn report(fingerprint: &str) -> ! {
    println!("{fingerprint}");
    exit(1);
}

fn main() -> Result<(), Box<dyn Error>> {
    std::panic::set_hook(Box::new(|panic| report(&PanicNote::of(panic).fingerprint())));
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [target, seeds, runs] = arguments.as_slice() else {
        return Err("expected a target, a folder of inputs, and a number of runs".into());
    };
    let kind = TargetKind::named(target).ok_or("expected a target")?;
    let runs: u64 = runs.parse()?;
    let recorder = Rc::<Recorder>::default();
    let target =
        kind.create(&small_writer::implementation(None), FileNames::default(), recorder.clone());
    // The loop adds its finds to its corpus.
    let work = tempfile::tempdir()?;
    let folder = |name: &str| Folder::new(work.path().join(name), work.path().join("scratch"));
    let corpus = folder("corpus")?;
    for seed in fs::read_dir(seeds)? {
        corpus.add("", &fs::read(seed?.path())?)?;
    }
    let build = "bounded".to_string();
    let inputs = kind.definition().inputs;
    let (limits, claims) = (kind.limits(), Claims::ALL);
    let settings = FuzzSettings { rng_seed: 1, inputs, limits, claims, max_operations: 60, build };
    let subject = Bounded { target, recorder };
    let mut fuzzer = Fuzzer::begin(subject, settings, corpus, folder("artifacts")?)?;
    for _ in 0..runs {
        fuzzer.step()?;
    }
    // The loop itself finds runs that are not the same twice.
    if let Some((fingerprint, _)) = fuzzer.found().iter().next() {
        report(fingerprint);
    }
    Ok(())
}
