//! `docs/crash.md` tells the truth: its commands are run, and print what stands there. For that the command must have
//! the canary in it: `scripts/from-crash` builds it, and says where it is in `QCOWFUZZ_CANARY`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// A command of the document, and what stands below it.
struct Told {
    command: String,
    output: String,
}

/// The commands in the indented blocks: those behind a `$ `.
fn told(document: &str) -> Vec<Told> {
    let mut all: Vec<Told> = Vec::new();
    let mut open = false;
    for line in document.lines() {
        let indented = line.strip_prefix("    ");
        match (indented, indented.and_then(|line| line.strip_prefix("$ "))) {
            (_, Some(command)) => {
                all.push(Told { command: command.to_string(), output: String::new() });
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
    all.iter_mut().for_each(|told| told.output = told.output.trim_end().to_string());
    all
}

/// Without what another machine says otherwise: how long it took.
fn steady(output: &str) -> String {
    let line = |line: &str| match line.split_once(" tried in ") {
        Some((before, _)) => before.to_string(),
        None => line.to_string(),
    };
    output.trim_end().lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_document_has_commands() {
    let document = include_str!("../docs/crash.md");
    let commands: Vec<_> = told(document).into_iter().map(|told| told.command).collect();
    let verbs = ["triage", "minimize", "replay", "report", "regress", "bundle"];
    for verb in verbs {
        assert!(commands.iter().any(|it| it.starts_with(&format!("qcowfuzz {verb} "))), "{verb}");
    }
    let blocks = "text\n\n    $ one\n    1\n\n    2\n    $ two\n\nmore\n\n    no command\n";
    let told: Vec<_> = told(blocks).into_iter().map(|it| (it.command, it.output)).collect();
    assert_eq!(
        told,
        [("one".to_string(), "1\n\n2".to_string()), ("two".to_string(), String::new())]
    );
}

#[test]
fn every_command_prints_what_stands_below_it() {
    let Some(canary) = std::env::var_os("QCOWFUZZ_CANARY") else {
        eprintln!("skipped: QCOWFUZZ_CANARY is not set; scripts/from-crash sets it");
        return;
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["bin", "artifacts/map_extents", "tests/regressions"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    symlink(canary, at("bin/qcowfuzz")).unwrap();
    for entry in fs::read_dir(root.join("tests/crash")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, at("artifacts/map_extents").join(path.file_name().unwrap())).unwrap();
    }
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    for Told { command, output } in told(include_str!("../docs/crash.md")) {
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(dir.path()).env("PATH", &path);
        let done = shell.output().unwrap();
        assert!(done.stderr.is_empty(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        let printed = String::from_utf8(done.stdout).unwrap();
        assert_eq!(steady(&printed), steady(&output), "{command}");
    }
    // A regression that only a planted bug can show.
    let text = root.join("tests/regressions/one_bug_had_two_names.txt");
    let mut named = Command::new("sh");
    named.args([
        "-c",
        "qcowfuzz asm \"$1\" -o two_names && qcowfuzz replay --brief two_names",
        "sh",
    ]);
    let named = named.arg(text).current_dir(dir.path()).env("PATH", &path).output().unwrap();
    let expected = "two_names: model: kind, zero-allocated → zero-plain\n";
    assert_eq!(String::from_utf8(named.stdout).unwrap(), expected);
    // The same input, the same archive.
    let mut again = Command::new(at("bin/qcowfuzz"));
    again.args(["bundle", "small", "-o", "again/zeros.tar"]).current_dir(dir.path());
    fs::create_dir(at("again")).unwrap();
    assert!(again.status().unwrap().success());
    assert!(fs::read(at("zeros.tar")).unwrap() == fs::read(at("again/zeros.tar")).unwrap());
    // What was written is there, and whole.
    assert!(fs::read_to_string(at("small.html")).unwrap().ends_with("</html>"));
}
