//! Reports of made-up findings.

use std::rc::Rc;

use crate::disk::image_format::ImageFormat;
use crate::findings::panics::PanicNote;
use crate::findings::report::log::Log;
use crate::findings::runner::tests::violation;
use crate::harness::Checks;
use crate::harness::cases::implementation::Implementation;
use crate::images::files::FileNames;
use crate::programs::generate::{GenerateSettings, generate};
use crate::programs::text::assemble;

use super::*;

/// Returns the report of a program of three operations whose run ended as `ran`.
fn report(target: TargetKind, ran: &Ran) -> Report {
    let log: Rc<Log> = Rc::default();
    let mut runner =
        Runner::new(&Implementation::our_walker(), target, FileNames::default(), log.clone());
    let input = generate(1, GenerateSettings { operations: 3, compressed: false }).encode();
    let sound = runner.run(&input, Checks::default());
    assert!(matches!(sound, Ran::Sound(_)), "{sound:?}");
    let mut report = Report::new(Path::new("input"), target, &runner, ran);
    report.program = runner.pipeline().map(|it| it.program().to_string());
    report.evidence = Evidence::gather(target, &input, &runner, &log, &FileNames::default());
    report.operations_run.into_iter().for_each(|run| report.evidence.mark(run));
    report
}

fn panicked() -> Ran {
    let detail = "src/map/walk.rs:7:1: index out of bounds".to_string();
    let [file, function] = ["src/map/walk.rs", "piece"].map(str::to_string);
    let crate_name = "qcowfuzz".to_string();
    Ran::Panic(PanicNote { crate_name, file, function, detail, ..PanicNote::default() })
}

fn json(report: &Report) -> serde_json::Value {
    let mut json = Vec::new();
    report.json(&mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn whole(report: &Report) -> String {
    let mut out = Vec::new();
    report.text(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_report_begins_with_the_fingerprint_and_marks_the_operation() {
    let mut report = report(TargetKind::MapExtents, &violation("model", false));
    assert_eq!(report.verdict, Verdict::Violation);
    let printed = whole(&report);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[0], "model: kind, normal → unallocated");
    assert_eq!(lines[1], "input: found after 2 of 3 operations");
    assert_eq!(lines[2], "where");
    // Only the second operation is marked. In this test, the third has run too.
    let marked: Vec<_> = lines.iter().filter(|line| line.contains("<--")).collect();
    assert_eq!(marked.len(), 1);
    assert!(marked[0].contains("; #1 at 28: ") && marked[0].ends_with(" <-- found after this"));
    // The remarks are comments, so the text still assembles to the program.
    let (text, _) = printed.split_once("\n\nimage: ").unwrap();
    let text = text.split_once("\n\n").unwrap().1;
    let assembled = crate::programs::text::assemble(text).unwrap();
    assert_eq!(Some(assembled.to_string()), report.program);
    // The walker's extents are correct so far, so there is no difference. The next lines plant one.
    assert!(!printed.contains("first difference"));
    report.evidence.actual.pop();
    report.evidence.first_difference = Some(report.evidence.actual.len());
    let printed = whole(&report);
    let line = printed.lines().find(|line| line.starts_with('>')).unwrap();
    assert!(line.ends_with("  —"), "{printed}");
}

#[test]
fn a_report_says_who_writes_such_images() {
    let image = |base: &str, operations: &str| {
        format!(
            "image version=3 cluster_bits=12 refcount_order=4 features=none size=8<<12+0 rng_seed=0 \
             blocks=append table=append tolerance=0{base}\n{operations}"
        )
    };
    let writers = |target: TargetKind, text: &str| {
        let observer: Rc<Log> = Rc::default();
        let implementation = Implementation::our_walker();
        let mut runner = Runner::new(&implementation, target, FileNames::default(), observer);
        runner.run(&assemble(text).unwrap().encode(), Checks::default());
        Report::new(Path::new("input"), target, &runner, &violation("model", false)).writers
    };
    let (valid, hostile) = (TargetKind::MapExtents, TargetKind::Hostile);
    let plain = image("", "write at=start+0 clusters=1");
    let by_qemu = "QEMU writes all of their features";
    assert_eq!(writers(valid, &plain).as_deref(), Some(by_qemu));
    assert_eq!(writers(hostile, &plain).as_deref(), Some(by_qemu));
    let base = ImageFormat::with_extents().next().unwrap().name();
    let extent = image(&format!(" base={base}"), "extent kind=se_sparse length=1<<1 lead=0");
    let others = writers(valid, &extent).unwrap();
    assert!(others.starts_with("QEMU does not write seSparse "), "{others}");
    let cut = format!("{plain}\ntruncate depth=0 cut=1<<0");
    let expected = "nothing writes them; the program damages the image";
    assert_eq!(writers(hostile, &cut).as_deref(), Some(expected));
    assert_eq!(writers(TargetKind::RawImage, &plain), None);
}

#[test]
fn a_violation_of_refcounts_has_a_program_and_no_extents() {
    // The report has no lists of extents, even if the fingerprint names an oracle of walks.
    let report = report(TargetKind::Refcounts, &violation("model", false));
    let printed = whole(&report);
    assert!(printed.starts_with("model: kind, normal → unallocated\ninput: found after 2 of 3 "));
    assert!(
        printed.contains(" <-- found after this\n") && !printed.contains("read by"),
        "{printed}"
    );
    let json = json(&report);
    assert_eq!((&json["target"], &json["verdict"]), (&"refcounts".into(), &"violation".into()));
    assert_eq!(json["operations_run"], 2);
    assert!(
        json.get("first_difference").is_none() && json["actual"].as_array().unwrap().is_empty()
    );
}

#[test]
fn a_panic_is_a_violation() {
    let program = "panic: qcowfuzz, piece\ninput: found after 3 of 3 operations\n";
    let file = "panic: qcowfuzz, piece\ninput: found in this file\n";
    for (target, start) in [
        (TargetKind::MapExtents, program),
        (TargetKind::Refcounts, program),
        (TargetKind::RawImage, file),
    ] {
        let report = report(target, &panicked());
        assert_eq!(report.verdict, Verdict::Violation);
        let printed = whole(&report);
        assert!(printed.starts_with(start), "{printed}");
        assert!(printed.contains("\nsrc/map/walk.rs:7:1: index out of bounds\n"), "{printed}");
        let json = json(&report);
        assert_eq!(json["fingerprint"], "panic: qcowfuzz, piece");
        assert_eq!(json["verdict"], "violation");
    }
}
