//! The embedded loop finds planted faults from an empty corpus.

use std::rc::Rc;

use qcowfuzz::findings::runner::Finding;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::fuzzing::corpus::Folder;
use qcowfuzz::fuzzing::embedded::{FuzzSettings, Fuzzer, RunReply, Subject};
use qcowfuzz::fuzzing::feedback::Recorder;
use qcowfuzz::harness::cases::target::Inputs;
use qcowfuzz::harness::engine::status::GuestStatus;
use test_support::prelude::*;

struct Planted {
    harness: Harness,
    recorder: Rc<Recorder>,
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

/// Runs the loop on our walker with a fault until it has found something, at most `most` runs. Returns the number of
/// runs and what was found.
pub fn until_found<C: Change + Clone + 'static>(
    change: C,
    rng_seed: u64,
    most: u64,
) -> (u64, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| Folder::new(dir.path().join(name), dir.path().join("s")).unwrap();
    let (inputs, limits, claims) = (Inputs::Programs, Limits::WALKED, Claims::ALL);
    let build = "a test".to_string();
    let settings = FuzzSettings { rng_seed, inputs, limits, claims, max_operations: 60, build };
    let recorder: Rc<Recorder> = Rc::default();
    let engine = Changed { change, engine: Walker::observed(recorder.clone()) };
    let subject = Planted { harness: Harness::observed(engine, recorder.clone()), recorder };
    let mut fuzzer =
        Fuzzer::begin(subject, settings, folder("corpus"), folder("artifacts")).unwrap();
    while fuzzer.found().is_empty() && fuzzer.runs() < most {
        fuzzer.step().unwrap();
    }
    (fuzzer.runs(), fuzzer.found().iter().map(|(name, _)| name.to_string()).collect())
}

/// Reads whole clusters, and fails if the file ends inside one. QEMU, and every walk that stops at the end of the file,
/// reads zeros there.
#[derive(Clone, Default)]
struct WholeClusters {
    file_bytes: u64,
    cluster_bytes: u64,
}

impl Change for WholeClusters {
    fn opened(&self, _: Opening, chain: &Chain, _: &mut Inner) -> Answer<Self> {
        let header = match chain.format() {
            ImageFormat::Qcow2 => Header::read(chain.image())?,
            _ => return Ok(Self { file_bytes: u64::MAX, cluster_bytes: 1 }),
        };
        let cluster_bytes = header.geometry.cluster_size.bytes();
        Ok(Self { file_bytes: chain.image().length_bytes(), cluster_bytes })
    }

    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answer {
        // At the end of the disk, there is no status, and an empty read has an answer.
        if let Ok(run) = disk.status(guest)
            && let GuestStatus::Exact(Mapping {
                data: true,
                compressed: false,
                depth: 0,
                offset,
                ..
            }) = run.status
            && let Some(host) = offset
            && host.get() / self.cluster_bytes * self.cluster_bytes + self.cluster_bytes
                > self.file_bytes
        {
            return Err(EngineError::untyped("short read"));
        }
        disk.read(guest, into)
    }
}

#[test]
fn a_short_read_at_the_end_of_the_file_is_found_from_nothing() {
    for rng_seed in 1..6 {
        let (runs, found) = until_found(WholeClusters::default(), rng_seed, 5000);
        println!("seed {rng_seed}: {runs} runs");
        assert_eq!(found, ["data: normal, an answer → an error (short read)"], "seed {rng_seed}");
    }
}
