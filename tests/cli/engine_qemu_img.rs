//! `--engine-qemu-img`: our own command and qemu-img as the programs, and scripts that change an answer of our command,
//! each of which the harness must find.

use std::fs;
use std::path::Path;
use std::process::Output;

use qcowfuzz::programs::text::assemble;

use crate::support::{error_line, qcowfuzz, qemu_img, text};

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
fn replayed(dir: &Path, verb: &str, change: &str) -> Output {
    let wrapper = dir.join("wrapper");
    let line = format!("sh {} {verb} '{}'", wrapper.display(), change.replace('\'', r"'\''"));
    qcowfuzz(dir, &["--engine-qemu-img", &line, "replay", "--brief", "program"])
}

#[test]
fn a_changed_answer_is_found() {
    let dir = with_program();
    let right = replayed(dir.path(), "none", "");
    assert_eq!(right.status.code(), Some(0), "{}{}", text(&right.stdout), text(&right.stderr));
    let mut others = Vec::new();
    for (verb, change, fingerprint) in FAULTS {
        let ran = replayed(dir.path(), verb, change);
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
    let ran = replayed(dir.path(), "convert", "exec sleep 1000");
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
