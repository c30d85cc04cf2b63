//! `triage` of folders whose inputs show nothing. `cargo xtask from-crash` runs it with a planted bug, and
//! `cargo xtask survivor` runs it on inputs that end their process.

use std::fs;
use std::path::Path;

use crate::support::{qcowfuzz, text};

fn corpus(target: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

#[test]
fn inputs_that_show_nothing_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("refcounts");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(".gitkeep"), "").unwrap();
    fs::copy(corpus("refcounts").join("order_4"), folder.join("crash-1")).unwrap();
    fs::write(folder.join("crash-0"), "").unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "refcounts"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let start = "refcounts: 2 inputs, 0 bugs, 0 of them new\n\nno violation any more: 2 inputs\n";
    assert!(out.starts_with(start), "{out}");
    assert!(out.contains("       0 bytes  refcounts/crash-0\n"), "{out}");
    // The folder's name gives the target.
    let output = qcowfuzz(dir.path(), &["triage", "--json", "refcounts"]);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["target"], &printed["inputs"]), (&"refcounts".into(), &2.into()));
    assert_eq!(printed["nothing"][0]["path"], "refcounts/crash-0");
}

#[test]
fn inputs_that_cannot_be_run_or_read_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "missing"]);
    assert_eq!(output.status.code(), Some(2));
    let folder = dir.path().join("artifacts");
    fs::create_dir_all(&folder).unwrap();
    fs::File::create(folder.join("long")).unwrap().set_len(100 << 20).unwrap();
    fs::write(folder.join("short"), "").unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts"]);
    assert_eq!(output.status.code(), Some(2));
    let lines: Vec<_> = text(&output.stderr).lines().collect();
    let long = "artifacts/long: is too long for a fuzz target, expected at most 1048576 bytes";
    assert_eq!(lines[0], format!("qcowfuzz: {long}"));
    assert_eq!(lines[1], "qcowfuzz: artifacts: 1 of the files could not be run");
    assert!(text(&output.stdout).starts_with("artifacts: 1 input, 0 bugs"));
    // A file among the known bugs that does not describe one.
    fs::remove_file(folder.join("long")).unwrap();
    fs::create_dir(dir.path().join("known")).unwrap();
    fs::write(dir.path().join("known/bug.txt"), "image version=3\n").unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts", "--known", "known"]);
    assert_eq!(output.status.code(), Some(2));
    let line = "qcowfuzz: known/bug.txt: line 1: no comment, expected '; ' and the fingerprint";
    assert!(text(&output.stderr).starts_with(line), "{}", text(&output.stderr));
}

#[test]
fn long_programs_are_no_hangs() {
    // The output about one program is longer than the buffer of a pipe.
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("artifacts");
    fs::create_dir(&folder).unwrap();
    let mut long = qcowfuzz::programs::generate::generate(1, WANTED);
    long.operations = long.operations.repeat(1000);
    fs::write(folder.join("long"), long.encode()).unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts", "--timeout", "120"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("no violation any more: 1 input\n"));
    let output = qcowfuzz(dir.path(), &["report", "artifacts/long", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

const WANTED: qcowfuzz::programs::generate::GenerateSettings =
    qcowfuzz::programs::generate::GenerateSettings { operations: 3, compressed: false };

#[test]
fn a_folder_of_known_bugs_that_is_named_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("artifacts")).unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts", "--known", "missing"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("qcowfuzz: missing: No such file"));
    assert_eq!(qcowfuzz(dir.path(), &["triage", "artifacts"]).status.code(), Some(0));
}
