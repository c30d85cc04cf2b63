//! Runs the commands of `docs/crash.md`, and compares their output with the page. The command must have the canary in
//! it: `cargo xtask from-crash` builds it and names it in `QCOWFUZZ_CANARY`.

use std::os::unix::fs::symlink;
use test_support::prelude::*;

use tempfile::TempDir;

/// The page, which ends with a section about a testcase of ClusterFuzz: its commands run in a folder of their own.
const PAGE: &str = include_str!("../docs/crash.md");

/// Returns the two parts of the page: about the crashes of a campaign, and about a testcase of ClusterFuzz.
fn parts() -> (&'static str, &'static str) {
    PAGE.split_once("\n## A testcase of ClusterFuzz\n").unwrap()
}

/// A command of the document, and the output below it.
struct Example {
    command: String,
    output: String,
}

/// Returns the commands in the indented blocks: the lines that begin with `$ `.
fn examples(document: &str) -> Vec<Example> {
    let mut all: Vec<Example> = Vec::new();
    let mut open = false;
    for line in document.lines() {
        let indented = line.strip_prefix("    ");
        match (indented, indented.and_then(|line| line.strip_prefix("$ "))) {
            (_, Some(command)) => {
                all.push(Example { command: command.to_string(), output: String::new() });
                open = true;
            }
            (None, _) if !line.is_empty() => open = false,
            (indented, None) if open => {
                let output = &mut all.last_mut().unwrap().output;
                output.push_str(indented.unwrap_or_default());
                output.push('\n');
            }
            _ => {}
        }
    }
    all.iter_mut().for_each(|example| example.output = example.output.trim_end().to_string());
    all
}

/// Removes durations, which differ between machines, and the mark of the version that has the bug.
fn steady(output: &str) -> String {
    let line = |line: &str| match line.split_once(" tried in ") {
        Some((before, _)) => before.to_string(),
        None => line.to_string(),
    };
    output.trim_end().lines().map(line).collect::<Vec<_>>().join("\n").replace("+canary", "")
}

#[test]
fn the_document_has_commands() {
    let (document, _) = parts();
    let commands: Vec<_> = examples(document).into_iter().map(|example| example.command).collect();
    let verbs = ["triage", "minimize", "replay", "report", "regress", "bundle"];
    for verb in verbs {
        assert!(commands.iter().any(|it| it.starts_with(&format!("qcowfuzz {verb} "))), "{verb}");
    }
    let blocks = "text\n\n    $ one\n    1\n\n    2\n    $ two\n\nmore\n\n    no command\n";
    let examples: Vec<_> = examples(blocks).into_iter().map(|it| (it.command, it.output)).collect();
    assert_eq!(
        examples,
        [("one".to_string(), "1\n\n2".to_string()), ("two".to_string(), String::new())]
    );
}

/// Returns a folder with the canary's command in `bin/`; `None` if there is no canary.
fn prepared() -> Option<TempDir> {
    let Some(canary) = std::env::var_os("QCOWFUZZ_CANARY") else {
        skipped("QCOWFUZZ_CANARY is not set; cargo xtask from-crash sets it");
        return None;
    };
    let dir = tempfile::tempdir().unwrap();
    for folder in ["bin", "artifacts/map_extents", "tests/regressions"] {
        fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    symlink(canary, dir.path().join("bin/qcowfuzz")).unwrap();
    Some(dir)
}

/// Returns `PATH` with `dir/bin` in front.
fn path(dir: &Path) -> String {
    format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap())
}

/// Runs the commands of a document in `dir`.
fn run_all(document: &str, dir: &Path) {
    for Example { command, output } in examples(document) {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(dir).env("PATH", path(dir));
        let done = shell.output().unwrap();
        assert!(done.stderr.is_empty(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        let printed = String::from_utf8(done.stdout).unwrap();
        assert_eq!(steady(&printed), steady(&output), "{command}");
    }
}

#[test]
fn a_testcase_of_clusterfuzz_becomes_a_regression_test() {
    let (_, document) = parts();
    let commands: Vec<_> = examples(document).into_iter().map(|example| example.command).collect();
    for verb in ["replay", "minimize", "regress", "triage"] {
        assert!(commands.iter().any(|it| it.starts_with(&format!("qcowfuzz {verb} "))), "{verb}");
    }
    let Some(dir) = prepared() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crash = root.join("tests/crash/crash-fb8ec8fba838813296c4fb74aa2c7c6f3b151e7a");
    let testcase = "clusterfuzz-testcase-minimized-map_extents-5733891520462848";
    fs::copy(crash, dir.path().join(testcase)).unwrap();
    run_all(document, dir.path());
    let text = dir.path().join("tests/regressions/testcase_5733891520462848.txt");
    assert!(fs::read_to_string(text).unwrap().starts_with("; model: kind, zero-allocated"));
    finds_with_a_violation_are_not_merged(
        dir.path(),
        &fs::read(dir.path().join(testcase)).unwrap(),
    );
}

/// The merge leaves out a find that shows a violation, because libFuzzer would not start with it. It copies a seed,
/// because a person has named it.
fn finds_with_a_violation_are_not_merged(dir: &Path, crash: &[u8]) {
    let find = qcowfuzz::fuzzing::corpus::name(crash);
    for (folder, name) in [("finds", find.as_str()), ("named", "zeros_lie_somewhere")] {
        fs::create_dir(dir.join(folder)).unwrap();
        fs::write(dir.join(folder).join(name), crash).unwrap();
        let mut merge = Command::new(dir.join("bin/qcowfuzz"));
        merge.args(["corpus", "merge", folder, "-o", "merged"]).current_dir(dir);
        let merged = merge.output().unwrap();
        assert_eq!(merged.status.code(), Some(1));
        let printed = String::from_utf8(merged.stdout).unwrap();
        assert!(printed.ends_with(&format!("{folder}/{name}: shows a violation\n")), "{printed}");
    }
    assert!(!dir.join("merged").join(&find).exists());
    assert_eq!(fs::read(dir.join("merged/zeros_lie_somewhere")).unwrap(), crash);
}

#[test]
fn every_command_prints_the_output_below_it() {
    let Some(dir) = prepared() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let at = |name: &str| dir.path().join(name);
    for entry in fs::read_dir(root.join("tests/crash")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, at("artifacts/map_extents").join(path.file_name().unwrap())).unwrap();
    }
    run_all(parts().0, dir.path());
    // Only a planted bug can make this regression test fail.
    let text = root.join("tests/regressions/one_bug_had_two_names.txt");
    let mut named = Command::new("sh");
    named.args([
        "-c",
        "qcowfuzz asm \"$1\" -o two_names && qcowfuzz replay --brief two_names",
        "sh",
    ]);
    let named =
        named.arg(text).current_dir(dir.path()).env("PATH", path(dir.path())).output().unwrap();
    let expected = "two_names: model: kind, zero-allocated → zero-plain\n";
    assert_eq!(String::from_utf8(named.stdout).unwrap(), expected);
    // The same input gives the same archive.
    let mut again = Command::new(at("bin/qcowfuzz"));
    again.args(["bundle", "small", "-o", "again/zeros.tar"]).current_dir(dir.path());
    fs::create_dir(at("again")).unwrap();
    assert!(again.status().unwrap().success());
    assert!(fs::read(at("zeros.tar")).unwrap() == fs::read(at("again/zeros.tar")).unwrap());
    // The files exist and are complete.
    assert!(fs::read_to_string(at("small.html")).unwrap().ends_with("</html>"));
}
