//! Two writers in turn: a fault of either is found where its turn comes, after a crash, too.

use super::*;
use qcowfuzz::harness::cases::implementation::Expression;

/// Returns the target with two small writers in turn, each of which may have a fault.
fn in_turn(first: Option<WriterFault>, other: Option<WriterFault>) -> Harness {
    let [first, other] = [first, other].map(small_writer::implementation);
    knowing(first.in_turn_with(other), KnownFindings::default())
}

#[test]
fn the_other_writer_has_every_second_turn() {
    let fault = Some(WriterFault::CountNotRaised);
    let write = "write_at at=start+0 inside=0 length=1<<0\n";
    let one = lines::program("cluster_bits=9 size=9<<9+0", write);
    let two = lines::program("cluster_bits=9 size=9<<9+0", &format!("checkpoint\n{write}"));
    for (first, other, program, is_found) in [
        (None, None, &two, false),
        (fault, None, &one, true),
        (None, fault, &one, false),
        (fault, None, &two, false),
        (None, fault, &two, true),
    ] {
        let found = found_in(&mut in_turn(first, other), program);
        assert_eq!(found.is_some(), is_found, "{first:?}, {other:?}: {found:?}");
    }
}

#[test]
fn the_other_writer_goes_on_after_a_crash() {
    let fault = Some(WriterFault::CountNotRaised);
    let mut sound = in_turn(None, None);
    let mut faulty = in_turn(None, fault);
    let crashes: Vec<_> = (0..CRASHES).map(failing::with_crash).collect();
    assert_eq!(crashes.iter().find_map(|program| found_in(&mut sound, program)), None);
    let found: Vec<_> =
        crashes.iter().filter_map(|program| found_in(&mut faulty, program)).collect();
    assert!(found.len() >= LEAST, "{found:?}");
    assert!(found.iter().all(|name| name.starts_with("refcounts: ")), "{found:?}");
}

#[test]
fn a_test_creates_both_writers() {
    let [first, other] = [Implementation::our_walker(), Implementation::our_walker()];
    let expression = first.in_turn_with(other).expression().cloned();
    let Some(Expression::Implementation(text)) = expression else { panic!("{expression:?}") };
    assert_eq!(text.matches("Walker::default()").count(), 2, "{text}");
    assert!(text.contains(".in_turn_with("), "{text}");
}
