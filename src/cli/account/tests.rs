//! What is told of made-up findings.

use qcowfuzz::oracles::Violation;

use super::*;
use qcowfuzz::harness::{Checks, Failure};
use qcowfuzz::images::FileNames;
use qcowfuzz::panics::PanicNote;
use qcowfuzz::vm::generate::{Wanted, generate};

/// What is told of a program of three operations, had `found` come out.
fn report(target: Target, found: &Found) -> Report {
    let mut runner = Runner::new(target, FileNames::default(), &());
    let program = generate(1, Wanted { operations: 3, compressed: false });
    let ran = runner.run_guarded(&program.encode(), Checks::AtCheckpoints);
    assert!(matches!(ran, Found::Nothing(_) | Found::File(_)), "{ran:?}");
    Report::new(Path::new("input"), target, &runner, found)
}

fn violation(oracle: &'static str) -> Violation {
    Violation {
        oracle,
        field: "kind",
        expected: "normal",
        actual: "unallocated",
        detail: "where".to_string(),
    }
}

fn failure(oracle: &'static str) -> Found {
    Found::Failure(Box::new(Failure { violation: violation(oracle), operations_run: 2 }))
}

fn panicked() -> Found {
    let detail = "src/map/walk.rs:7:1: index out of bounds".to_string();
    Found::Panic(PanicNote { file: "src/map/walk.rs".to_string(), detail })
}

fn json(report: &Report) -> serde_json::Value {
    let mut json = Vec::new();
    report.json(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn whole(report: &Report) -> String {
    let mut out = Vec::new();
    report.whole(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_violation_is_told_fingerprint_first_and_marked_in_the_program() {
    let mut report = report(Target::MapExtents, &failure("model"));
    assert_eq!(report.verdict, Verdict::Violation);
    let told = whole(&report);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], "model: kind, normal → unallocated");
    assert_eq!(lines[1], "input: found after 2 of 3 operations");
    assert_eq!(lines[2], "where");
    // Line 4 is the image's; the second operation is marked, and no other.
    let marked: Vec<_> = (0..).zip(&lines).filter(|(_, line)| line.contains("<--")).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(marked[0].0, 6);
    // The mark is a comment: the text is still the program.
    let text = lines[4..].join("\n");
    let assembled = qcowfuzz::vm::text::assemble(&text).unwrap();
    assert_eq!(Some(assembled.to_string()), report.program);
    // The walker gave what was expected, so there is nothing more; now it did not.
    let record = Record::empty(5);
    report.first_difference = Some(Difference { extent: 3, expected: Some(record), actual: None });
    let told = whole(&report);
    assert!(told.contains("first difference, extent 3:\n  expected {\"start\":5,"), "{told}");
    assert!(told.ends_with("  actual   no extent\n"), "{told}");
}

#[test]
fn differences_are_found_where_the_lists_differ() {
    use qcowfuzz::extent::Mapping;
    use qcowfuzz::qcow2::units::GuestOffset;
    let at = |start, length_bytes| Extent {
        start: GuestOffset::new(start),
        length_bytes,
        mapping: Mapping::HOLE,
    };
    assert!(difference(&[at(0, 5)], &[at(0, 5)]).is_none());
    let first = difference(&[at(0, 5), at(5, 1)], &[at(0, 5), at(5, 2)]).unwrap();
    assert_eq!(first.extent, 1);
    let missing = difference(&[at(0, 5), at(5, 1)], &[at(0, 5)]).unwrap();
    assert!(missing.extent == 1 && missing.actual.is_none() && missing.expected.is_some());
}

#[test]
fn a_violation_of_refcounts_has_a_program_and_no_extents() {
    // Even an oracle of walks has no lists here.
    let report = report(Target::Refcounts, &failure("model"));
    let told = whole(&report);
    assert!(told.starts_with("model: kind, normal → unallocated\ninput: found after 2 of 3 "));
    assert!(told.lines().nth(6).unwrap().ends_with(" ; <-- found after this"), "{told}");
    assert_eq!(told.lines().count(), 8, "{told}");
    let json = json(&report);
    assert_eq!((&json["target"], &json["verdict"]), (&"refcounts".into(), &"violation".into()));
    assert_eq!(json["operations_run"], 2);
    assert!(json.get("first_difference").is_none());
}

#[test]
fn a_violation_in_a_file_is_told_without_a_program() {
    let report = report(Target::RawImage, &Found::Violation(Box::new(violation("lookup"))));
    let told = whole(&report);
    assert_eq!(told, "lookup: kind, normal → unallocated\ninput: found in this file\nwhere\n");
    let expected = serde_json::json!({
        "input": "input", "target": "raw_image", "verdict": "violation",
        "fingerprint": "lookup: kind, normal → unallocated", "detail": "where",
    });
    assert_eq!(json(&report), expected);
}

#[test]
fn a_panic_is_a_violation() {
    let program = "panic: src/map/walk.rs\ninput: found in a program of 3 operations\n";
    let file = "panic: src/map/walk.rs\ninput: found in this file\n";
    for (target, start) in
        [(Target::MapExtents, program), (Target::Refcounts, program), (Target::RawImage, file)]
    {
        let report = report(target, &panicked());
        assert_eq!(report.verdict, Verdict::Violation);
        let told = whole(&report);
        assert!(told.starts_with(start), "{told}");
        assert!(told.contains("\nsrc/map/walk.rs:7:1: index out of bounds\n"), "{told}");
        let json = json(&report);
        assert_eq!(json["fingerprint"], "panic: src/map/walk.rs");
        assert_eq!(json["verdict"], "violation");
    }
}
