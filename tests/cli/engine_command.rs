//! Engines in other processes. `--engine-command`: the stand-in of `examples/pipes.rs` behind the line protocol, with
//! the faults that the harness must find or survive. `--engine-qemu-img`: our own command and qemu-img as the programs,
//! and scripts that change an answer of our command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use qcowfuzz::programs::text::assemble;

use crate::support::{built_example, error_line, qcowfuzz, qemu_img, small_program, text};

#[cfg(target_os = "linux")]
use crate::support::{Killed, processes, signal, until};

/// The stand-in.
static PIPES: LazyLock<PathBuf> = LazyLock::new(|| built_example("pipes"));

/// Returns the command of the stand-in with a fault.
pub fn pipes(fault: &str) -> String {
    format!("{} {fault}", PIPES.display())
}

/// Returns a folder with a program that writes zeros, and one that does not.
pub fn with_programs() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("zeros"), small_program()).unwrap();
    fs::write(dir.path().join("empty"), []).unwrap();
    dir
}

/// Replays both programs with the fault.
fn replayed(dir: &Path, fault: &str) -> Output {
    qcowfuzz(dir, &["--engine-command", &pipes(fault), "replay", "--brief", "empty", "zeros"])
}

/// Checks that the second program alone shows this fingerprint.
fn assert_found(fault: &str, fingerprint: &str) {
    let dir = with_programs();
    let output = replayed(dir.path(), fault);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}{}", text(&output.stderr));
    assert!(out.contains("2 inputs, 1 with a violation") && out.contains(fingerprint), "{out}");
}

#[test]
fn right_answers_are_no_finding() {
    let dir = with_programs();
    let output = replayed(dir.path(), "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    let engine = pipes("");
    let run = ["--engine-command", &engine, "fuzz", "--runs", "200", "--jobs", "1", "--json"];
    let campaign = |name| {
        text(&qcowfuzz(dir.path(), &[&run[..], &["--dir", name]].concat()).stdout).to_string()
    };
    let summary: serde_json::Value = serde_json::from_str(&campaign("a")).unwrap();
    assert_eq!((&summary["runs"], &summary["found"]), (&200.into(), &serde_json::json!([])));
    let unanswered = summary["unanswered"].as_array().unwrap();
    let questions: Vec<_> = unanswered.iter().map(|it| it["question"].as_str().unwrap()).collect();
    assert_eq!(questions, ["status", "info", "check"]);
    // The same campaign again: the walk of our walker steers the loop, and the files are others.
    let again: serde_json::Value = serde_json::from_str(&campaign("b")).unwrap();
    assert_eq!(summary["edges"], again["edges"]);
    assert_eq!(summary["inputs"], again["inputs"]);
}

#[test]
fn a_campaign_whose_command_changes_its_claims_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let claims = dir.path().join("claims");
    let engine = pipes(&format!("claims {}", claims.display()));
    let campaign = |more: &str| {
        fs::write(&claims, more).unwrap();
        let run = ["--engine-command", &engine, "fuzz", "--runs", "200", "--jobs", "1", "--json"];
        let output = qcowfuzz(dir.path(), &[&run[..], &["--dir", "a"]].concat());
        let summary: serde_json::Value = serde_json::from_str(text(&output.stdout)).unwrap();
        assert_eq!(summary["found"], serde_json::json!([]), "{}", text(&output.stderr));
    };
    campaign("");
    // The saved inputs have other coverage now. The new claims explain that, and it is no finding.
    campaign("no version 3\n");
}

#[test]
fn wrong_answers_are_found_by_every_verb() {
    assert_found("hole", "unallocated");
    let dir = with_programs();
    let engine = pipes("hole");
    let run = |arguments: &[&str]| {
        qcowfuzz(dir.path(), &[&["--engine-command", &engine], arguments].concat())
    };
    let fuzzed = run(&["fuzz", "--runs", "2000", "--jobs", "1", "--until-found"]);
    assert_eq!(fuzzed.status.code(), Some(1), "{}", text(&fuzzed.stderr));
    let triaged = run(&["triage", "artifacts/map_extents"]);
    assert_eq!(triaged.status.code(), Some(1), "{}", text(&triaged.stdout));
    let minimized = run(&["minimize", "zeros", "-o", "small"]);
    assert!(minimized.status.success(), "{}", text(&minimized.stderr));
    // The runs of isolated processes have the same implementation; our walker finds nothing.
    assert_eq!(run(&["replay", "small"]).status.code(), Some(1));
    assert_eq!(qcowfuzz(dir.path(), &["replay", "small"]).status.code(), Some(0));
    assert!(run(&["report", "small", "--html", "page.html"]).status.success());
    assert!(run(&["bundle", "small", "-o", "bug.tar.gz"]).status.success());
    assert!(run(&["regress", "small", "--story", "zeros are a hole"]).status.success());
}

#[test]
fn ends_are_found_and_named() {
    assert_found("abort", "process: end, an answer → signal: 6 (SIGABRT)");
    assert_found("exit", "process: end, an answer → exit status: 3");
    assert_found("panic", "exit status: 101 (panic: no table at offset _)");
    assert_found("half", "process: end, an answer → exit status: 0");
    assert_found("memory", "memory: allocation, within the limit → beyond");
    assert_found("spin", "process: end, an answer → none");
    assert_found("sleep", "process: end, an answer → none");
}

#[test]
fn errors_do_not_contain_the_temporary_folder() {
    let dir = with_programs();
    // Each of the two runs has a process and a folder of its own.
    let output = replayed(dir.path(), "path");
    let out = text(&output.stdout);
    assert!(out.contains("open: image, an answer → an error (layer._.qcow2)"), "{out}");
    assert!(!out.contains("determinism"), "{out}");
}

#[test]
fn a_process_that_is_killed_once_blames_no_input() {
    let dir = with_programs();
    let mark = dir.path().join("mark");
    let output = replayed(dir.path(), &format!("killed-once {}", mark.display()));
    assert!(mark.exists());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
}

// The test finds the process in /proc.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_computes_ends_with_the_killed_process_that_asks_it() {
    let dir = with_programs();
    let engine = pipes(&format!("spin {}", dir.path().display()));
    // The system ends the process some time after the test has failed.
    let engine = format!("sh -c 'ulimit -t 300; exec {engine}'");
    let mut replay = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    replay.args(["--engine-command", &engine, "replay", "zeros"]).current_dir(dir.path());
    let mut replay = Killed(replay.spawn().unwrap());
    let command_line = format!("\0spin\0{}\0", dir.path().display());
    let engines = || processes(|_, command| command.ends_with(&command_line));
    // The parent of a process, and the CPU time of a process in ticks.
    let parent_and_ticks = |process: &String| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        Some((fields.nth(1)?.to_string(), fields.nth(9)?.parse::<u32>().ok()?))
    };
    let mut parent = String::new();
    // Before it computes, it notices the end of its input.
    until("the engine does not compute", || {
        let found = engines().first().and_then(parent_and_ticks);
        found.filter(|(_, ticks)| *ticks > 20).map(|found| parent = found.0).is_some()
    });
    signal("-KILL", &parent);
    let _ = replay.0.kill();
    replay.0.wait().unwrap();
    until("the engine outlives the process that asks it", || engines().is_empty());
}

#[test]
fn lines_that_are_no_answers_end_the_command() {
    let dir = with_programs();
    for (fault, expected) in [
        ("garbage", "expected ok, unsupported, failed, io or error, found 'what?'"),
        ("long", "expected lines of at most 65536 bytes, found a longer one"),
    ] {
        let output = replayed(dir.path(), fault);
        assert_eq!(output.status.code(), Some(2));
        let line = error_line(&output);
        assert!(line.starts_with("--engine-command: ") && line.contains(expected), "{line}");
        // In a campaign, no input is to blame either.
        let engine = pipes(fault);
        let fuzz = ["--engine-command", &engine, "fuzz", "--runs", "2000", "--jobs", "1"];
        let output = qcowfuzz(dir.path(), &[&fuzz[..], &["--dir", fault]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        assert!(error_line(&output).contains(expected), "{}", text(&output.stderr));
        let output = qcowfuzz(dir.path(), &["--engine-command", &engine, "selftest"]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        assert!(error_line(&output).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn the_self_test_names_the_end_of_a_process() {
    let dir = with_programs();
    let output = qcowfuzz(dir.path(), &["--engine-command", &pipes("abort"), "selftest"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}{}", text(&output.stderr));
    assert!(out.contains("signal: 6 (SIGABRT)"), "{out}");
}

#[test]
fn commands_that_do_not_start_are_one_line() {
    let dir = with_programs();
    for (command, expected) in [
        ("./no-such-command", "(exit status: 127)"),
        ("echo hello", "expected the first line 'qcowfuzz-engine 1', found 'hello'"),
        ("true", "expected the line 'ready', found the end (exit status: 0)"),
        ("printf 'qcowfuzz-engine 1\\nno L3\\n'", "expected a feature, found 'L3'"),
    ] {
        for verb in ["replay", "triage"] {
            let output = qcowfuzz(dir.path(), &["--engine-command", command, verb, "."]);
            assert_eq!(output.status.code(), Some(2), "{command}");
            let line = error_line(&output);
            assert!(line.contains(command) && line.contains(expected), "{line}");
        }
    }
}

/// Our own command, which has the command line of qemu-img without snapshots.
const OURS: &str = env!("CARGO_BIN_EXE_qcowfuzz");

/// Runs our command. The first argument is a verb, and the second a command that changes what the verb prints.
const WRAPPER: &str = r#"
verb=$1 change=$2
shift 2
case "$1" in
"$verb") eval "$change" ;;
*) "$OURS" "$@" ;;
esac
"#;

/// A verb, the change of its answer, and the fingerprint.
const FAULTS: [(&str, &str, &str); 10] = [
    (
        "map",
        r#""$OURS" "$@" | sed 's/"offset": [0-9]*/"offset": 655360000/'"#,
        "model: offset, normal → normal",
    ),
    (
        "map",
        r#""$OURS" "$@" | sed 's/"zero": false, "data": true/"zero": true, "data": false/'"#,
        "model: kind, normal → zero-allocated",
    ),
    ("map", "echo '[]'", "partition: end, the window's end → short of it"),
    ("map", "kill -SEGV $$", "process: end, an answer → signal: 11 (SIGSEGV)"),
    ("map", "echo 'map: no' >&2; exit 1", "walk: image, an answer → an error (map: no)"),
    (
        "info",
        r#""$OURS" "$@" | sed 's/"snapshots"/"others"/'"#,
        "info: snapshots, as meant → different",
    ),
    ("info", "exit 3", "process: end, an answer → exit status: 3"),
    (
        "check",
        r#""$OURS" "$@" | sed 's/"check-errors": 0/"check-errors": 0, "leaks": 2/'"#,
        "info: check, nothing → leaks",
    ),
    ("check", r#""$OURS" "$@"; exit 2"#, "info: check, nothing → errors"),
    (
        "convert",
        r#""$OURS" "$@" && printf X | dd of=converted bs=1 seek=65537 conv=notrunc 2>/dev/null"#,
        "data: ",
    ),
];

/// Returns a program whose runs ask for a check: the checksum of the input decides that.
fn checked_program() -> Vec<u8> {
    let programs = (0..).map(|seed| {
        let text = format!(
            "image version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+0 rng_seed={seed} \
             blocks=append table=append tolerance=0\n\
             write at=start+1 clusters=1\nsnapshot\nwrite at=start+4 clusters=2\n\
             zero at=start+8 clusters=1 keep=no\n"
        );
        assemble(&text).unwrap().encode()
    });
    programs.take(512).find(|input| crc32fast::hash(input).is_multiple_of(32)).unwrap()
}

fn with_program() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("program"), checked_program()).unwrap();
    fs::write(dir.path().join("wrapper"), format!("OURS='{OURS}'{WRAPPER}")).unwrap();
    dir
}

/// Replays the program with our command, of which one answer is changed.
fn replayed_after(dir: &Path, verb: &str, change: &str) -> Output {
    let wrapper = dir.join("wrapper");
    let line = format!("sh {} {verb} '{}'", wrapper.display(), change.replace('\'', r"'\''"));
    qcowfuzz(dir, &["--engine-qemu-img", &line, "replay", "--brief", "program"])
}

#[test]
fn a_changed_answer_is_found() {
    let dir = with_program();
    let right = replayed_after(dir.path(), "none", "");
    assert_eq!(right.status.code(), Some(0), "{}{}", text(&right.stdout), text(&right.stderr));
    let mut others = Vec::new();
    for (verb, change, fingerprint) in FAULTS {
        let ran = replayed_after(dir.path(), verb, change);
        let out = text(&ran.stdout);
        if ran.status.code() != Some(1) || !out.contains(fingerprint) {
            others.push(format!("{verb}: {change}: {out}{}", text(&ran.stderr)));
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
}

#[test]
fn a_program_that_does_not_end_is_stopped() {
    let dir = with_program();
    let ran = replayed_after(dir.path(), "convert", "exec sleep 1000");
    let out = text(&ran.stdout);
    assert_eq!(ran.status.code(), Some(1), "{out}{}", text(&ran.stderr));
    assert!(out.contains("process: end, an answer → none"), "{out}");
}

#[test]
fn a_program_that_cannot_be_run_is_no_finding() {
    let dir = with_program();
    let ran = qcowfuzz(dir.path(), &["--engine-qemu-img", "/nosuch", "replay", "program"]);
    assert_eq!(ran.status.code(), Some(2));
    let line = error_line(&ran);
    assert!(line.starts_with("--engine-qemu-img: /nosuch: cannot be run: "), "{line}");
    let both = ["--engine-qemu-img=x", "--engine-command=x", "replay", "program"];
    assert_eq!(qcowfuzz(dir.path(), &both).status.code(), Some(2));
}

/// A campaign starts workers with the same program, and its state belongs to that program.
#[test]
fn a_campaign_has_a_program() {
    let dir = with_program();
    let campaign = |line: &str| {
        let run =
            ["fuzz", "--runs=2", "--jobs=1", "--generated", "--json", "--engine-qemu-img", line];
        let ran = qcowfuzz(dir.path(), &run);
        assert_eq!(ran.status.code(), Some(0), "{}{}", text(&ran.stdout), text(&ran.stderr));
        serde_json::from_slice::<serde_json::Value>(&ran.stdout).unwrap()
    };
    let unanswered = campaign(OURS)["unanswered"].to_string();
    assert!(unanswered.contains("status") && unanswered.contains("snapshots"), "{unanswered}");
}

#[test]
fn qemu_img_has_no_finding() {
    let dir = with_program();
    if qemu_img(dir.path(), &["--version"]).is_none() {
        return;
    }
    let run = ["--engine-qemu-img=qemu-img", "replay", "--brief", "program"];
    let ran = qcowfuzz(dir.path(), &run);
    assert_eq!(ran.status.code(), Some(0), "{}{}", text(&ran.stdout), text(&ran.stderr));
}
