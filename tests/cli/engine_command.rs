//! Engines in other processes. `--engine-command`: the stand-in of `examples/pipes.rs` behind the line protocol, with
//! the faults that the harness must find or survive. `--engine-qemu-img`: our own command and qemu-img as the programs,
//! and scripts that change an answer of our command.

use std::sync::LazyLock;

use test_support::prelude::*;

use crate::support::{
    Folder, Killed, OURS, Ran, built_example, names_in, processes, signal, small_program, until,
};

/// The stand-in.
static PIPES: LazyLock<PathBuf> = LazyLock::new(|| built_example("pipes"));

/// Returns the command of the stand-in with a fault.
pub fn pipes(fault: &str) -> String {
    format!("{} {fault}", PIPES.display())
}

/// Returns a folder with a program that writes zeros, and one that does not.
pub fn with_programs() -> Folder {
    Folder::of([("zeros", &small_program()), ("empty", b"")])
}

/// Runs our command with the stand-in with this fault.
fn run_with(dir: &Folder, fault: &str, words: &str) -> Ran {
    let engine = pipes(fault);
    let words: Vec<&str> = words.split(' ').collect();
    dir.run(&[&["--engine-command", &engine], &words[..]].concat()[..])
}

/// Replays both programs with the fault.
fn replayed(dir: &Folder, fault: &str) -> Ran {
    run_with(dir, fault, "replay --brief empty zeros")
}

/// Checks that the second program alone shows this fingerprint.
fn assert_found(fault: &str, fingerprint: &str) {
    replayed(&with_programs(), fault).exits(1).has("2 inputs, 1 with a violation").has(fingerprint);
}

#[test]
fn right_answers_are_no_finding() {
    let dir = with_programs();
    replayed(&dir, "").ok();
    let fuzz = "fuzz --runs 200 --jobs 1 --json --dir";
    let summary = run_with(&dir, "", &format!("{fuzz} a")).json();
    assert_eq!((&summary["runs"], &summary["found"]), (&200.into(), &serde_json::json!([])));
    let unanswered = summary["unanswered"].as_array().unwrap();
    let questions: Vec<_> = unanswered.iter().map(|it| it["question"].as_str().unwrap()).collect();
    assert_eq!(questions, ["status", "info", "check"]);
    // The same campaign again: the walk of our walker steers the loop, and the files are others.
    let again = run_with(&dir, "", &format!("{fuzz} b")).json();
    assert_eq!(summary["edges"], again["edges"]);
    assert_eq!(summary["inputs"], again["inputs"]);
}

#[test]
fn a_campaign_whose_command_changes_its_claims_goes_on() {
    let dir = Folder::new();
    let fault = format!("claims {}", dir.join("claims").display());
    // The saved inputs have other coverage with the new claims. These explain that, and it is no finding.
    for claims in ["", "no version 3\n"] {
        dir.write("claims", claims);
        let summary = run_with(&dir, &fault, "fuzz --runs 200 --jobs 1 --json --dir a").json();
        assert_eq!(summary["found"], serde_json::json!([]));
    }
}

#[test]
fn wrong_answers_are_found_by_every_verb() {
    assert_found("hole", "unallocated");
    let dir = with_programs();
    let run = |words| run_with(&dir, "hole", words);
    run("fuzz --runs 2000 --jobs 1 --until-found").exits(1);
    run("triage artifacts/map_extents").exits(1);
    run("minimize zeros -o small").ok();
    // The runs of isolated processes have the same implementation; our walker finds nothing.
    run("replay small").exits(1);
    dir.run("replay small").ok();
    run("report small --html page.html").ok();
    run("bundle small -o bug.tar.gz").ok();
    // The test judges the same command, and the archive was tried.
    run("regress small --story zeros_are_a_hole").ok().has("EngineCommand::start(\"");
}

#[test]
fn a_finding_is_known_for_images_with_its_features() {
    let dir = with_programs();
    for (feature, code) in [("version 3", 0), ("version 2", 1)] {
        let known = format!(
            "[[finding]]\nfingerprint = '*: *'\nreason = 'A bug.'\nfeatures = ['{feature}']\n"
        );
        dir.write("known.toml", known);
        run_with(&dir, "hole", "replay --brief --known known.toml zeros").exits(code);
    }
}

#[test]
fn ends_are_found_and_named() {
    let ends = rows(
        "abort | process: end, an answer → signal: 6 (SIGABRT)
         exit | process: end, an answer → exit status: 3
         panic | exit status: 101 (panic: no table at offset _)
         half | process: end, an answer → exit status: 0
         memory | memory: allocation, within the limit → beyond
         spin | process: end, an answer → none
         sleep | process: end, an answer → none",
    );
    // Most of the time is waiting.
    std::thread::scope(|scope| {
        for [fault, fingerprint] in ends {
            scope.spawn(move || assert_found(fault, fingerprint));
        }
    });
}

#[test]
fn errors_do_not_contain_the_temporary_folder() {
    // Each of the two runs has a process and a folder of its own.
    let found = "open: image, an answer → an error (layer._.qcow2)";
    let ran = replayed(&with_programs(), "path").has(found);
    assert!(!ran.out.contains("determinism"), "{}", ran.out);
}

#[test]
fn a_process_that_is_killed_once_blames_no_input() {
    let dir = with_programs();
    replayed(&dir, &format!("killed-once {}", dir.join("mark").display())).ok();
    assert!(dir.join("mark").exists());
}

// The test finds the process in /proc.
#[cfg(target_os = "linux")]
#[test]
fn a_process_that_computes_ends_with_the_killed_process_that_asks_it() {
    let dir = with_programs();
    let engine = pipes(&format!("spin {}", dir.display()));
    // The system ends the process some time after the test has failed.
    let engine = format!("sh -c 'ulimit -t 300; exec {engine}'");
    let mut replay = dir.start(&["--engine-command", &engine, "replay", "zeros"]);
    let command_line = format!("\0spin\0{}\0", dir.display());
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
    replay.kill();
    until("the engine outlives the process that asks it", || engines().is_empty());
}

/// An answer outside of the protocol, such as a negative size, belongs to its input, and the campaign goes on.
#[test]
fn wrong_answers_are_findings_of_their_inputs() {
    for [fault, fingerprint] in rows(
        "garbage | (the answer to open: expected ok, unsupported, failed, io or error, found _)
         negative | (the answer to open: expected ok SIZE, found _)
         long | (expected lines of at most _ bytes, found a longer one)",
    ) {
        let fingerprint =
            format!("process: answer, within the protocol → outside of it {fingerprint}");
        assert_found(fault, &fingerprint);
        let words = format!("fuzz --runs 300 --jobs 1 --json --dir {fault}");
        let summary = run_with(&with_programs(), fault, &words).exits(1).json();
        assert_eq!(summary["runs"], 300);
        assert_eq!(summary["found"][0]["fingerprint"], fingerprint);
    }
    let expected = "expected ok, unsupported, failed, io or error, found 'what?'";
    run_with(&with_programs(), "garbage", "selftest").exits(1).has(expected);
}

#[test]
fn the_self_test_names_the_end_of_a_process() {
    run_with(&with_programs(), "abort", "selftest").exits(1).has("signal: 6 (SIGABRT)");
}

#[test]
fn commands_that_do_not_start_are_one_line() {
    let dir = with_programs();
    for [command, expected] in rows(
        "./no-such-command | (exit status: 127)
         echo hello | expected the first line 'qcowfuzz-engine 1', found 'hello'
         true | expected the line 'ready', found the end (exit status: 0)
         printf 'qcowfuzz-engine 1\\nno L3\\n' | expected a feature, found 'L3'",
    ) {
        for verb in ["replay", "triage"] {
            let ran = dir.run(&["--engine-command", command, verb, "."]).exits(2);
            assert!(ran.line().contains(command) && ran.line().contains(expected), "{ran:?}");
        }
    }
}

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
        r#" | sed 's/"offset": [0-9]*/"offset": 655360000/'"#,
        "model: offset, normal → normal",
    ),
    (
        "map",
        r#" | sed 's/"zero": false, "data": true/"zero": true, "data": false/'"#,
        "model: kind, normal → zero-allocated",
    ),
    ("map", "> /dev/null; echo '[]'", "partition: end, the window's end → short of it"),
    ("map", "; kill -SEGV $$", "process: end, an answer → signal: 11 (SIGSEGV)"),
    (
        "map",
        "> /dev/null; echo 'map: no' >&2; exit 1",
        "walk: image, an answer → an error (map: no)",
    ),
    ("info", r#" | sed 's/"snapshots"/"others"/'"#, "info: snapshots, as meant → different"),
    ("info", "> /dev/null; exit 3", "process: end, an answer → exit status: 3"),
    (
        "check",
        r#" | sed 's/"check-errors": 0/"check-errors": 0, "leaks": 2/'"#,
        "info: check, nothing → leaks",
    ),
    ("check", "; exit 2", "info: check, nothing → errors"),
    (
        "convert",
        " && printf X | dd of=converted bs=1 seek=65537 conv=notrunc 2>/dev/null",
        "data: ",
    ),
];

/// Returns a program whose runs ask for a check: the checksum of the input decides that.
fn checked_program() -> Vec<u8> {
    let operations = "write at=start+1 clusters=1\nsnapshot\nwrite at=start+4 clusters=2\n\
                      zero at=start+8 clusters=1 keep=no\n";
    let programs = (0..512).map(|seed| lines::encoded(&format!("rng_seed={seed}"), operations));
    programs.into_iter().find(|input| crc32fast::hash(input).is_multiple_of(32)).unwrap()
}

fn with_program() -> Folder {
    let wrapper = format!("OURS='{OURS}'{WRAPPER}");
    Folder::of([("program", &checked_program()), ("wrapper", wrapper.as_bytes())])
}

/// Replays the program with our command, of which one answer is changed.
fn replayed_after(dir: &Folder, verb: &str, change: &str) -> Ran {
    let wrapper = dir.join("wrapper");
    let line = format!("sh {} {verb} '{}'", wrapper.display(), change.replace('\'', r"'\''"));
    dir.run(&["--engine-qemu-img", &line, "replay", "--brief", "program"])
}

#[test]
fn a_changed_answer_is_found() {
    let dir = with_program();
    replayed_after(&dir, "none", "").ok();
    for (verb, change, fingerprint) in FAULTS {
        replayed_after(&dir, verb, &format!("\"$OURS\" \"$@\"{change}")).exits(1).has(fingerprint);
    }
}

#[test]
fn a_program_that_does_not_end_is_stopped() {
    let ran = replayed_after(&with_program(), "convert", "exec sleep 1000");
    ran.exits(1).has("process: end, an answer → none");
}

#[test]
fn a_program_that_cannot_be_run_is_no_finding() {
    let dir = with_program();
    let start = "--engine-qemu-img: /nosuch: cannot be run: ";
    dir.run("--engine-qemu-img /nosuch replay program").fails(2, start);
    dir.run("--engine-qemu-img=x --engine-command=x replay program").exits(2);
}

/// A campaign starts workers with the same program, and its state belongs to that program.
#[test]
fn a_campaign_has_a_program() {
    let run = "fuzz --runs=2 --jobs=1 --generated --json --engine-qemu-img";
    let summary = with_program().run(&format!("{run} {OURS}")).ok().json();
    let unanswered = summary["unanswered"].to_string();
    assert!(unanswered.contains("status") && unanswered.contains("snapshots"), "{unanswered}");
}

#[test]
fn qemu_img_has_no_finding() {
    let dir = with_program();
    if dir.qemu_img("--version").is_some() {
        dir.run("--engine-qemu-img=qemu-img replay --brief program").ok();
    }
}

/// Engines that open paths get their files in temporary folders.
#[test]
fn a_command_leaves_no_folder_however_it_ends() {
    let dir = with_programs();
    let temporary = dir.join("temporary");
    fs::create_dir(&temporary).unwrap();
    let engine = pipes("");
    let command = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command =
            dir.command(OURS, &[&["--engine-command", &engine], &words[..]].concat()[..]);
        command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let none_is_left = || until("a folder is left", || names_in(&temporary).is_empty());
    for finished in ["replay --brief empty zeros", "fuzz --runs 50 --jobs 2 --dir a"] {
        assert!(command(finished).status().unwrap().success());
        none_is_left();
    }
    for sent in ["-KILL", "-INT", "-TERM"] {
        let mut running = Killed(command("fuzz --jobs 2 --dir a").spawn().unwrap());
        until("no folder was made", || names_in(&temporary).len() >= 2);
        signal(sent, &running.0.id().to_string());
        running.0.wait().unwrap();
        none_is_left();
    }
}
