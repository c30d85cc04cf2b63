//! `--against` and `--against-command`: the implementations that they name, and the verbs that take them.
//! `tests/against_engines.rs` plants faults in every kind of answer.

use std::fs;

use crate::engine_command::{pipes, with_programs};
use crate::support::{error_line, qcowfuzz, text};

#[test]
fn a_difference_is_found_by_every_verb() {
    let dir = with_programs();
    // Our walker is right, and the other implementation calls zeros a hole.
    let other = format!("--against-command={}", pipes("hole"));
    let run = |arguments: &[&str]| qcowfuzz(dir.path(), &[arguments, &[&*other]].concat());
    let fingerprint = "against: map: kind, unallocated → zero-plain";
    let replayed = run(&["replay", "--brief", "empty", "zeros"]);
    let out = text(&replayed.stdout);
    assert_eq!(replayed.status.code(), Some(1), "{out}{}", text(&replayed.stderr));
    assert!(out.contains("2 inputs, 1 with a violation") && out.contains(fingerprint), "{out}");
    let fuzzed = run(&["fuzz", "--runs=2000", "--jobs=1", "--until-found", "--json"]);
    assert_eq!(fuzzed.status.code(), Some(1), "{}", text(&fuzzed.stderr));
    let summary: serde_json::Value = serde_json::from_slice(&fuzzed.stdout).unwrap();
    assert!(summary["compared"].as_u64().unwrap() > 0, "{summary}");
    let triaged = run(&["triage", "artifacts/map_extents"]);
    assert_eq!(triaged.status.code(), Some(1), "{}", text(&triaged.stdout));
    let minimized = run(&["minimize", "zeros", "-o", "small"]);
    assert!(minimized.status.success(), "{}", text(&minimized.stderr));
    assert!(text(&minimized.stdout).contains(fingerprint));
    assert_eq!(run(&["replay", "small"]).status.code(), Some(1));
    assert_eq!(qcowfuzz(dir.path(), &["replay", "small"]).status.code(), Some(0));
    assert!(run(&["report", "small", "--html", "page.html"]).status.success());
    assert!(run(&["bundle", "small", "-o", "bug.tar.gz"]).status.success());
    assert!(run(&["regress", "small", "--story", "zeros are a hole"]).status.success());
    assert_eq!(run(&["corpus", "show", "artifacts/map_extents"]).status.code(), Some(1));
}

#[test]
fn the_end_of_the_other_process_is_a_finding() {
    let dir = with_programs();
    let other = pipes("abort");
    let ran = qcowfuzz(dir.path(), &["replay", "zeros", "--against-command", &other]);
    let fingerprint = "against: end, an answer → signal: 6 (SIGABRT)";
    assert!(text(&ran.stdout).starts_with(fingerprint), "{}", text(&ran.stdout));
}

#[test]
fn an_implementation_in_the_executable_is_named() {
    let dir = with_programs();
    let engine = pipes("");
    let fuzz = ["fuzz", "--runs=200", "--jobs=1", "--against=map_extents", "--engine-command"];
    let ran = qcowfuzz(dir.path(), &[&fuzz[..], &[&*engine]].concat());
    assert_eq!(ran.status.code(), Some(0), "{}{}", text(&ran.stdout), text(&ran.stderr));
    assert!(text(&ran.stdout).contains("map_extents judged "), "{}", text(&ran.stdout));
    // The walker answers all questions about reading.
    assert!(!text(&ran.stdout).contains("map_extents has no answer"), "{}", text(&ran.stdout));
}

#[test]
fn options_that_cannot_be_used_are_one_line() {
    let dir = with_programs();
    fs::write(dir.path().join("file"), "no image").unwrap();
    for (arguments, expected) in [
        (
            &["replay", "empty", "--against=nosuch"][..],
            "--against: found 'nosuch', expected one of: qemu, map_extents",
        ),
        (
            &["replay", "empty", "--against=map_extents", "--against-command=cat"],
            "--against-command: found --against, too, expected one of them",
        ),
        (&["fuzz", "--runs=1", "--against-command=exit 3"], "--against-command: "),
        (
            &["info", "file", "--against-command=cat"],
            "--against-command: 'info' runs no inputs, expected a command that does",
        ),
        (
            &["replay", "empty", "--target=refcounts", "--against=map_extents"],
            "--against: found the target refcounts, expected one whose images an implementation reads",
        ),
    ] {
        let ran = qcowfuzz(dir.path(), arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {}", text(&ran.stdout));
        assert!(error_line(&ran).starts_with(expected), "{}", error_line(&ran));
    }
}
