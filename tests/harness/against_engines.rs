//! Any engine as a second opinion finds a planted fault of each kind of answer, on either side, with a fingerprint of
//! its own. All other findings are set aside.

use qcowfuzz::harness::engine::questions::QuestionKind;
use qcowfuzz::harness::{KnownFinding, Outcome};
use qcowfuzz::programs::generate::generate_writes;
use test_support::prelude::*;

use test_support::faulty::{Fault, comparable, first_finding, program};

/// Faults of the engine under test, and the findings.
const OURS: [(Fault, &str); 12] = [
    (Fault::LostData, "against: map: kind, normal → unallocated"),
    (Fault::Displaced, "against: map: offset, normal → normal"),
    (Fault::Longer, "against: size, the other's → larger"),
    (Fault::OtherByte, "against: data, normal → other bytes"),
    (Fault::Refuses, "against: open, opened → refused (planted)"),
    (Fault::FailedWalk, "against: walk, an answer → an error (planted)"),
    (Fault::FailedReads, "against: data, an answer → an error"),
    (Fault::NoMapAndWrongStatus, "against: kind, normal → unallocated"),
    (Fault::OneSnapshotMore, "against: info: snapshots, the other's → different"),
    (Fault::FindsErrors, "against: check, nothing → errors"),
    (Fault::OtherByteInSnapshot, "against snapshot: data, normal → other bytes"),
    (Fault::RefusesSnapshots, "against snapshot: open, opened → refused (planted)"),
];

/// Faults of the other engine, and the findings.
const THEIRS: [(Fault, &str); 9] = [
    (Fault::LostData, "against: map: kind, unallocated → normal"),
    (Fault::Longer, "against: size, the other's → smaller"),
    (Fault::OtherByte, "against: data, normal → other bytes"),
    (Fault::Refuses, "against: open, refused → opened (planted)"),
    (Fault::FailedWalk, "against: walk, an error → an answer (planted)"),
    (Fault::FailedReads, "against: data, an error → unallocated"),
    (Fault::NoMapAndWrongStatus, "against: kind, unallocated → normal"),
    (Fault::OtherByteInSnapshot, "against snapshot: data, normal → other bytes"),
    (Fault::RefusesSnapshots, "against snapshot: open, refused → opened (planted)"),
];

/// The number of generated programs of each target.
const PROGRAMS: u64 = 40;

fn faulty(fault: Fault) -> Implementation {
    Changed::writer(fault).into()
}

/// Returns the program with a snapshot.
fn with_snapshot() -> Vec<u8> {
    program("snapshot\nwrite at=start+30 clusters=1\n")
}

/// Returns the first finding of the comparison of two walkers with faults.
fn found(ours: Fault, theirs: Fault, kind: TargetKind, input: &[u8]) -> Option<String> {
    let both = |known| faulty(ours).knowing(known).against_engine(faulty(theirs));
    first_finding(both, kind, input, "against")
}

/// Runs an input without a finding.
fn sound(both: &Implementation, kind: TargetKind, input: &[u8]) -> Outcome {
    let mut target = kind.create(both, FileNames::default(), no_observer());
    target.run(input, Checks::AtCheckpoints).unwrap()
}

#[test]
fn a_fault_of_either_side_has_its_own_fingerprint() {
    let (input, kind) = (with_snapshot(), TargetKind::MapExtents);
    assert_eq!(found(Fault::None, Fault::None, kind, &input), None);
    for (fault, fingerprint) in OURS {
        let found = found(fault, Fault::None, kind, &input);
        assert_eq!(found.as_deref(), Some(fingerprint), "{fault:?}");
    }
    for (fault, fingerprint) in THEIRS {
        let found = found(Fault::None, fault, kind, &input);
        assert_eq!(found.as_deref(), Some(fingerprint), "{fault:?}");
    }
}

#[test]
fn a_known_difference_hides_no_other() {
    // The same fault shows in the active disk and in the snapshot.
    let fingerprint = "against: data, normal → other bytes".to_string();
    let reason = "planted".to_string();
    let set_aside =
        KnownFindings::new([KnownFinding { fingerprint, reason, ..KnownFinding::default() }]);
    let both = |known: KnownFindings| {
        let known = known.and(&set_aside);
        faulty(Fault::OtherByte).knowing(known).against_engine(faulty(Fault::None))
    };
    let found = first_finding(both, TargetKind::MapExtents, &with_snapshot(), "against");
    assert_eq!(found.as_deref(), Some("against snapshot: data, normal → other bytes"));
}

#[test]
fn the_walker_agrees_with_itself() {
    let both =
        small_writer::implementation(None).against_engine(small_writer::implementation(None));
    for kind in [TargetKind::MapExtents, TargetKind::Hostile, TargetKind::Writes] {
        let (mut compared, mut not_compared) = (0, 0);
        for rng_seed in 0..PROGRAMS {
            let program = match kind {
                TargetKind::Writes => comparable(generate_writes(rng_seed, 24)),
                _ => generate_any(rng_seed, 24),
            };
            let outcome = sound(&both, kind, &program.encode());
            compared += outcome.second.compared;
            not_compared += outcome.second.not_compared;
        }
        assert!(
            compared >= PROGRAMS as usize && not_compared * 10 < compared,
            "{compared} {not_compared}"
        );
    }
}

#[test]
fn an_answer_that_one_side_lacks_is_reported() {
    let both = Implementation::our_walker().against_engine(faulty(Fault::NoMap));
    let outcome = sound(&both, TargetKind::MapExtents, &with_snapshot());
    let second = outcome.second;
    assert!(second.compared > 0 && second.not_compared == 0);
    assert!(second.unanswered.has(QuestionKind::Map));
    assert!(!second.unanswered.has(QuestionKind::Status));
}

/// A program with requests.
const WRITES: &str = "sync kind=flush choice=0\nwrite at=start+30 clusters=2\n";

#[test]
fn disks_that_both_have_written_are_compared() {
    let input = program(WRITES);
    let kind = TargetKind::Writes;
    assert_eq!(found(Fault::None, Fault::None, kind, &input), None);
    for (fault, fingerprint) in [
        (Fault::WritesOtherByte, "against written: data, normal → other bytes"),
        (Fault::FailedWrites, "against written: requests, an error → an answer (planted)"),
        // The file that the engine leaves is an image like any other.
        (Fault::OtherByte, "against: data, normal → other bytes"),
        (Fault::Longer, "against: size, the other's → smaller"),
    ] {
        let found = found(Fault::None, fault, kind, &input);
        assert_eq!(found.as_deref(), Some(fingerprint), "{fault:?}");
    }
}

#[test]
fn files_of_any_content_are_compared_where_both_answer() {
    let mut builder = TargetKind::MapExtents.judging(qcowfuzz::harness::Walker::default());
    let image = builder.build(&program(""));
    let mut file = vec![0; usize::try_from(image.length_bytes()).unwrap()];
    image.read_at(HostOffset::ZERO, &mut file).unwrap();
    let kind = TargetKind::RawImage;
    let found = |ours, theirs| found(ours, theirs, kind, &file);
    assert_eq!(found(Fault::None, Fault::None), None);
    let fingerprint = "against: data, normal → other bytes";
    assert_eq!(found(Fault::None, Fault::OtherByte).as_deref(), Some(fingerprint));
    let fingerprint = "against: map: kind, unallocated → normal";
    assert_eq!(found(Fault::None, Fault::LostData).as_deref(), Some(fingerprint));
    // The file may be damaged, so an error is no difference.
    for fault in [Fault::Refuses, Fault::FailedWalk, Fault::FailedReads] {
        assert_eq!(found(Fault::None, fault), None, "{fault:?}");
        assert_eq!(found(fault, Fault::None), None, "{fault:?}");
    }
}
