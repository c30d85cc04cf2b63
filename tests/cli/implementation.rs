//! The command of `examples/command.rs`: every verb runs inputs with the implementation of that example, and not with
//! our walker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use qcowfuzz::programs::Program;

use crate::support::{qcowfuzz, text};

const FINGERPRINT: &str = "model: kind, zero-plain → unallocated";

/// The command of the example. `cargo test --test cli` does not build it, so this does.
static COMMAND: LazyLock<PathBuf> = LazyLock::new(|| {
    let build = ["build", "--quiet", "--example", "command", "--message-format=json"];
    let mut cargo = Command::new(env!("CARGO"));
    let built = cargo.args(build).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(built.status.success(), "{}", text(&built.stderr));
    let messages = text(&built.stdout).lines();
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_example = message["target"]["name"] == "command";
        message["executable"].as_str().filter(|_| is_example).map(PathBuf::from)
    };
    messages.filter_map(executable).next().unwrap()
});

/// Runs the command of the example in `dir`.
fn small(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(&*COMMAND);
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

/// Returns what the command prints. It must exit with `code`.
fn printed(output: &Output, code: i32) -> &str {
    assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Returns a folder with `input`, an input that shows the bug of the example.
fn with_finding() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let ran = small(dir.path(), &["fuzz", "--runs", "3000", "--jobs", "1", "--until-found"]);
    assert!(printed(&ran, 1).contains(FINGERPRINT), "{}", text(&ran.stdout));
    let folder = dir.path().join("artifacts/map_extents");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let shows = |path: &Path| {
        text(&small(dir.path(), &["replay", path.to_str().unwrap()]).stdout).contains(FINGERPRINT)
    };
    let input = paths.into_iter().find(|path| path.is_file() && shows(path)).unwrap();
    fs::copy(input, dir.path().join("input")).unwrap();
    dir
}

#[test]
fn every_verb_runs_inputs_with_the_implementation() {
    let dir = with_finding();
    let dir = dir.path();
    // Our walker does not have the bug.
    assert_eq!(qcowfuzz(dir, &["replay", "input"]).status.code(), Some(0));
    let minimized = small(dir, &["minimize", "input", "-o", "small"]);
    assert!(printed(&minimized, 0).contains(FINGERPRINT));
    let program = Program::decode(&fs::read(dir.join("small")).unwrap());
    assert_eq!(program.operations.len(), 1, "{program}");
    // The evidence has the answers of the implementation.
    let replayed = small(dir, &["replay", "small"]);
    assert!(printed(&replayed, 1).contains(FINGERPRINT), "{}", text(&replayed.stdout));
    assert!(text(&replayed.stdout).contains("unallocated"));
    let triaged = small(dir, &["triage", "artifacts/map_extents"]);
    assert!(printed(&triaged, 1).contains(FINGERPRINT));
    let regression = small(dir, &["regress", "small", "--story", "the reader ignores zeros"]);
    assert!(printed(&regression, 0).contains(FINGERPRINT));
    assert!(small(dir, &["report", "small", "--html", "page.html"]).status.success());
    assert!(
        fs::read_to_string(dir.join("page.html")).unwrap().contains("zero-plain → unallocated")
    );
    let packed = small(dir, &["bundle", "small", "-o", "bug.tar.gz"]);
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    let state = small(dir, &["state", "show", "corpus/map_extents"]);
    assert!(printed(&state, 0).contains("inputs"));
}

#[test]
fn what_the_loop_saves_is_folded() {
    let dir = with_finding();
    for folder in ["corpus/map_extents", "artifacts/map_extents"] {
        let entries = fs::read_dir(dir.path().join(folder)).unwrap();
        let files: Vec<_> =
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
        assert!(!files.is_empty());
        for path in files {
            let program = Program::decode(&fs::read(&path).unwrap()).to_string();
            // The reader claims neither of these.
            assert!(!program.contains("overlay") && !program.contains("extended_l2"), "{program}");
            assert!(!program.contains("data_in=file"), "{program}");
        }
    }
}
