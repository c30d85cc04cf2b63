//! Known findings are set aside: the oracle that meets one records it and the run goes on, in every target that asks an
//! engine; a known panic ends its run.

use qcowfuzz::disk::extent::{Visitor, Window};
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::harness::cases::implementation::{Implementation, no_observer};
use qcowfuzz::harness::engine::status::{GuestRun, GuestStatus};
use qcowfuzz::harness::engine::{Engine, EngineError, Facts, OpenDisk, Opened};
use qcowfuzz::harness::files::chain::Chain;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, Harness, KnownFinding, KnownFindings, MetFinding, Walker};
use qcowfuzz::images::FileNames;
use qcowfuzz::programs::text::assemble;

const PROGRAM: &str = "image version=3 cluster_bits=9 refcount_order=4 features=none size=64<<9+0 rng_seed=0 \
                       blocks=append table=append tolerance=0\nwrite at=start+4 clusters=1\n";

/// An implementation with two bugs: our walker, except that all look-ups find a hole and all reads fail.
#[derive(Clone, Default)]
struct TwoBugs(Walker);

struct TwoBugsDisk<'s>(Box<dyn OpenDisk + 's>);

impl Engine for TwoBugs {
    fn facts(&self) -> Facts {
        Facts::new("two bugs")
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        Ok(Box::new(TwoBugsDisk(self.0.open(chain)?)))
    }
}

impl OpenDisk for TwoBugsDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.virtual_size_bytes()
    }

    fn status(&mut self, _guest: GuestOffset) -> Result<GuestRun, EngineError> {
        Ok(GuestRun { length_bytes: 1, status: GuestStatus::Hole })
    }

    fn read(&mut self, _guest: GuestOffset, _into: &mut [u8]) -> Result<(), EngineError> {
        Err(EngineError::untyped("broken"))
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        self.0.map(window, visitor)
    }
}

fn known(fingerprints: &[String]) -> KnownFindings {
    let finding = |fingerprint: &String| KnownFinding {
        fingerprint: fingerprint.clone(),
        reason: "a test".to_string(),
        ..KnownFinding::default()
    };
    KnownFindings::new(fingerprints.iter().map(finding))
}

/// Returns known findings that a run met, each with a fingerprint of its own.
fn each_alone(fingerprints: &[String]) -> Vec<MetFinding> {
    let met = |it: &String| MetFinding { known: it.clone(), seen: vec![it.clone()] };
    fingerprints.iter().map(met).collect()
}

/// Returns an input of `kind` that shows neither bug.
fn empty(kind: TargetKind) -> Vec<u8> {
    let program = PROGRAM.lines().next().unwrap().replace("size=64<<9+0", "size=0<<9+0");
    if kind.runs_programs() { assemble(&program).unwrap().encode() } else { Vec::new() }
}

/// Returns the input of `kind` with the program or its image.
fn input(kind: TargetKind) -> Vec<u8> {
    let program = assemble(PROGRAM).unwrap().encode();
    if kind.runs_programs() {
        return program;
    }
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&program);
    let mut bytes = vec![0; usize::try_from(image.length_bytes()).unwrap()];
    image.read_at(HostOffset::ZERO, &mut bytes).unwrap();
    bytes
}

#[test]
fn every_target_sets_known_findings_aside_and_goes_on() {
    for kind in [TargetKind::MapExtents, TargetKind::Hostile, TargetKind::RawImage] {
        let (input, mut fingerprints) = (input(kind), Vec::new());
        let mut target = loop {
            let implementation =
                Implementation::from(TwoBugs::default()).knowing(known(&fingerprints));
            let mut target = kind.create(&implementation, FileNames::default(), no_observer());
            match target.run(&input, Checks::AtCheckpoints) {
                Ok(_) => break target,
                Err(failure) => {
                    // The findings so far did not hide this one.
                    assert_eq!(target.met(), each_alone(&fingerprints), "{}", kind.name());
                    fingerprints.push(failure.violation.fingerprint());
                }
            }
            assert!(fingerprints.len() < 10, "{fingerprints:?}");
        };
        let of = |oracle: &str| fingerprints.iter().any(|it| it.starts_with(oracle));
        assert!(of("lookup: ") && of("data: "), "{}: {fingerprints:?}", kind.name());
        assert_eq!(target.met(), each_alone(&fingerprints));
        // An engine is asked nothing about an empty disk, and does not open an empty file. The next run begins anew.
        target.run(&empty(kind), Checks::AtCheckpoints).unwrap();
        assert_eq!(target.met(), [], "{}", kind.name());
        // A known finding may have several fingerprints.
        let all = "*: *".to_string();
        let implementation =
            Implementation::from(TwoBugs::default()).knowing(known(std::slice::from_ref(&all)));
        let mut target = kind.create(&implementation, FileNames::default(), no_observer());
        target.run(&input, Checks::AtCheckpoints).unwrap();
        assert_eq!(target.met(), [MetFinding { known: all, seen: fingerprints }]);
    }
}
