//! Known findings are set aside: the oracle that meets one records it and the run goes on, in every target that asks an
//! engine; a known panic ends its run.

use qcowfuzz::harness::MetFinding;
use qcowfuzz::harness::engine::status::GuestStatus;
use test_support::prelude::*;

const PROGRAM: &str = "image version=3 cluster_bits=9 refcount_order=4 features=none size=64<<9+0 rng_seed=0 \
                       blocks=append table=append tolerance=0\nwrite at=start+4 clusters=1\n";

/// An implementation with two bugs: our walker, except that all look-ups find a hole and all reads fail.
#[derive(Clone, Default)]
struct TwoBugs;

impl Change for TwoBugs {
    fn status(&mut self, _: &mut Inner, _: GuestOffset) -> Answer<GuestRun> {
        Ok(GuestRun { length_bytes: 1, status: GuestStatus::Hole })
    }

    fn read(&mut self, _: &mut Inner, _: GuestOffset, _: &mut [u8]) -> Answer {
        Err(EngineError::untyped("broken"))
    }
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
                Implementation::from(Changed::walker(TwoBugs)).knowing(known(&fingerprints));
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
        let implementation = Implementation::from(Changed::walker(TwoBugs))
            .knowing(known(std::slice::from_ref(&all)));
        let mut target = kind.create(&implementation, FileNames::default(), no_observer());
        target.run(&input, Checks::AtCheckpoints).unwrap();
        assert_eq!(target.met(), [MetFinding { known: all, seen: fingerprints }]);
    }
}
