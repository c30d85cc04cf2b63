//! The implementation that a command runs in place of our walker: that of `examples/command.rs`, with every verb; the
//! second one of `--against`; and the crate that `new-engine` makes for one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use qcowfuzz::harness::Checks;
use qcowfuzz::programs::Program;

use crate::engine_command::{pipes, with_programs};
use crate::support::{built_example, error_line, qcowfuzz, small_writer, text};

const FINGERPRINT: &str = "model: kind, zero-plain → unallocated";

/// The command of the example.
static COMMAND: LazyLock<PathBuf> = LazyLock::new(|| built_example("command"));

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
    let state = small(dir, &["corpus", "show", "corpus/map_extents"]);
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

#[test]
fn replay_prints_the_changes_of_folding() {
    let dir = tempfile::tempdir().unwrap();
    let image = "image version=3 cluster_bits=16 refcount_order=4 features=extended_l2 size=1<<16+0 rng_seed=0 \
                 blocks=append table=append tolerance=0\n";
    let overlay =
        "overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=same";
    let operations = format!(
        "write at=start+0 clusters=1\n{overlay}\ncompress at=start+0 clusters=1 shape=text skew=packed\n"
    );
    fs::write(dir.path().join("text"), format!("{image}{operations}")).unwrap();
    assert!(small(dir.path(), &["asm", "text", "-o", "input"]).status.success());
    let replayed = small(dir.path(), &["replay", "input"]);
    let lines = printed(&replayed, 0);
    let folded = lines.split("folded, because the engine does not claim these features:\n").nth(1);
    let changes: Vec<_> = folded.unwrap().lines().take_while(|line| !line.is_empty()).collect();
    assert!(changes[0].contains("features=extended_l2") && changes[0].contains("→ image version"));
    assert!(changes.contains(&&*format!("  {overlay} → removed")), "{lines}");
    assert!(!changes.iter().any(|line| line.contains("  write at=start+0")), "{lines}");
    // Our walker claims all features.
    let replayed = qcowfuzz(dir.path(), &["replay", "input"]);
    assert!(!text(&replayed.stdout).contains("folded"));
}

/// A file that lists the bug of the example, in both forms, and a finding that does not occur.
const KNOWN: &str = "[[finding]]\nfingerprint = 'model: kind, zero-allocated → normal'\nreason = 'The same.'\n\
                     [[finding]]\nfingerprint = 'model: kind, zero-plain → unallocated'\nreason = 'A test.'\n\
                     link = 'https://example.org/1'\n\
                     [[finding]]\nfingerprint = 'panic: nothing, at_all'\nreason = 'Another.'\n";

#[test]
fn known_findings_are_set_aside_by_every_verb() {
    let dir = with_finding();
    let dir = dir.path();
    fs::write(dir.join("known.toml"), KNOWN).unwrap();
    let known = ["--known", "known.toml"];
    let run = |arguments: &[&str]| small(dir, &[arguments, &known].concat());
    // The option reaches the workers.
    let fuzz = ["fuzz", "--runs", "3000", "--jobs", "2", "--dir", "again"];
    let summary = run(&fuzz);
    let lines = printed(&summary, 0);
    assert!(lines.contains(&format!("known: {FINGERPRINT}\n  ")), "{lines}");
    assert!(lines.contains(" times; A test.\n  https://example.org/1\n"), "{lines}");
    let gone = "known, but it did not occur: panic: nothing, at_all\nfound: nothing new\n";
    assert!(lines.ends_with(gone), "{lines}");
    assert_eq!(fs::read_dir(dir.join("again/artifacts/map_extents")).unwrap().count(), 0);
    let summary = run(&[&fuzz[..], &["--json", "--restart"]].concat());
    let summary: serde_json::Value = serde_json::from_str(printed(&summary, 0)).unwrap();
    assert_eq!(
        (&summary["found"], &summary["known"][2]["times"]),
        (&serde_json::json!([]), &0.into())
    );
    assert!(summary["known"][1]["times"].as_u64().unwrap() > 1, "{summary}");
    // Replay names it, and finds nothing new.
    let replayed = run(&["replay", "input"]);
    let lines = printed(&replayed, 0);
    assert!(
        lines.starts_with("ok\n") && lines.contains(&format!("\nknown: {FINGERPRINT}\n")),
        "{lines}"
    );
    let replayed = run(&["replay", "--brief", "input"]);
    assert_eq!(printed(&replayed, 0), "input: ok; known findings: 1\n");
    // Triage lists it apart.
    let triaged = run(&["triage", "artifacts/map_extents"]);
    let lines = printed(&triaged, 0);
    assert!(
        lines.contains(" 0 bugs, 0 of them new\n") && lines.contains("set aside: model: "),
        "{lines}"
    );
    // The campaign may have found both bugs before it ended.
    let gone = lines.split_once("set aside, but in no input any more: ").unwrap().1;
    assert!(gone.contains("panic: nothing, at_all\n"), "{lines}");
    // It can still be shrunk, and explained.
    assert!(printed(&run(&["minimize", "input", "-o", "small"]), 0).starts_with(FINGERPRINT));
    assert_eq!(Program::decode(&fs::read(dir.join("small")).unwrap()).operations.len(), 1);
    let test = run(&["regress", "small"]);
    assert!(printed(&test, 0).contains(&format!("let bug = \"{FINGERPRINT}\"")));
    assert!(run(&["bundle", "small", "-o", "bug.tar"]).status.success());
    assert!(run(&["report", "small", "--html", "page.html"]).status.success());
}

/// A `*` in a known finding hides which findings occurred. The summary lists them.
#[test]
fn a_campaign_lists_the_fingerprints_of_a_known_finding() {
    let dir = tempfile::tempdir().unwrap();
    let known = "[[finding]]\nfingerprint = 'model: kind, *'\nreason = 'A test.'\n";
    fs::write(dir.path().join("known.toml"), known).unwrap();
    let fuzz = ["fuzz", "--runs", "3000", "--jobs", "1", "--json", "--known", "known.toml"];
    let ran = small(dir.path(), &fuzz);
    let summary: serde_json::Value = serde_json::from_str(printed(&ran, 0)).unwrap();
    let known = &summary["known"][0];
    let seen = known["seen"].as_array().unwrap();
    let fingerprints: Vec<_> = seen.iter().map(|it| it["fingerprint"].as_str().unwrap()).collect();
    assert_eq!(fingerprints, ["model: kind, zero-allocated → normal", FINGERPRINT]);
    // A run may meet both.
    let [one, other, all] =
        [&seen[0], &seen[1], known].map(|counted| counted["times"].as_u64().unwrap());
    assert!(one > 0 && other > 0 && one.max(other) <= all && all <= one + other, "{known}");
}

#[test]
fn known_findings_that_cannot_be_used_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("wrong.toml"), KNOWN.replace("reason = 'Another.'", "")).unwrap();
    fs::write(dir.path().join("input"), "").unwrap();
    fs::create_dir(dir.path().join("folder")).unwrap();
    for (verb, file, message) in [
        (
            "replay",
            "wrong.toml",
            "wrong.toml: line 8: missing field `reason`; expected [[finding]] with",
        ),
        ("replay", "none.toml", "none.toml: No such file"),
        (
            "replay",
            "folder",
            "folder: is a folder, expected a file of known findings; only 'triage' reads",
        ),
        ("map", "wrong.toml", "--known: 'map' runs no inputs, expected a command that does"),
    ] {
        let ran = small(dir.path(), &[verb, "input", "--known", file]);
        let line = text(&ran.stderr);
        assert_eq!((ran.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains(message), "{line}");
    }
}

/// Fuzzes one program, whose later operations hide a finding. The artifact ends with the operation at fault, so that it
/// needs no option.
fn finds_hidden(rng_seed: u16, options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let program = format!(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=4<<16+0 rng_seed={rng_seed} \
         blocks=append table=append tolerance=0\nzero at=start+1 clusters=1 keep=no\n"
    );
    let hidden = format!("{program}write at=start+1 clusters=1\nwrite at=start+0 clusters=1\n");
    fs::create_dir_all(dir.join("corpus/map_extents")).unwrap();
    fs::write(dir.join("program.txt"), hidden).unwrap();
    let seed = "corpus/map_extents/seed";
    assert!(qcowfuzz(dir, &["asm", "program.txt", "-o", seed]).status.success());
    let replayed = small(dir, &["replay", seed]);
    match options {
        // The draw does not depend on the command.
        [] => assert!(printed(&replayed, 1).contains(FINGERPRINT)),
        _ => assert!(printed(&replayed, 0).starts_with("ok\n")),
    }
    let fuzz = [&["fuzz", "--runs", "1", "--jobs", "1"], options].concat();
    let summary = small(dir, &fuzz);
    assert!(printed(&summary, 1).contains(FINGERPRINT), "{}", text(&summary.stdout));
    let artifacts = fs::read_dir(dir.join("artifacts/map_extents")).unwrap();
    let inputs = artifacts.map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let programs: Vec<_> = inputs.map(|path| Program::decode(&fs::read(path).unwrap())).collect();
    assert!(programs.iter().any(|it| it.to_string() == program), "{programs:?}");
}

#[test]
fn check_each_finds_what_later_operations_hide() {
    finds_hidden(0, &["--check-each"]);
}

#[test]
fn a_drawn_program_shows_what_later_operations_hide() {
    let drawn = (0..100).find(|&it| Checks::Drawn.of_seed(it) == Checks::AfterChanges);
    finds_hidden(drawn.unwrap(), &[]);
}

#[test]
fn a_claim_can_be_dropped_for_one_command() {
    let dir = tempfile::tempdir().unwrap();
    let cuts = include_str!("../../corpus/text/writes/killed_process.txt");
    fs::write(dir.path().join("cuts.txt"), cuts).unwrap();
    assert!(qcowfuzz(dir.path(), &["asm", "cuts.txt", "-o", "cuts"]).status.success());
    let replay = ["replay", "--target", "writes", "cuts"];
    let replayed = small_writer(dir.path(), &replay);
    let all = printed(&replayed, 0);
    assert!(all.contains("sync kind=kill") && !all.contains(" → "), "{all}");
    let without = [&replay[..], &["--without", "power cuts"]].concat();
    let replayed = small_writer(dir.path(), &without);
    let folded = printed(&replayed, 0);
    assert!(folded.contains("sync kind=kill choice="), "{folded}");
    assert!(folded.contains(" → sync kind=flush choice="), "{folded}");
    for (arguments, expected) in [
        (&["replay", "cuts", "--without", "colours"][..], "expected a feature, found 'colours'"),
        (&["disasm", "cuts", "--without", "power cuts"], "--without: 'disasm' runs no inputs"),
    ] {
        let ran = qcowfuzz(dir.path(), arguments);
        assert_eq!(ran.status.code(), Some(2));
        assert!(text(&ran.stderr).contains(expected), "{}", text(&ran.stderr));
    }
}

/// The target `writes` would find nothing in an implementation that declares that it does not write.
#[test]
fn an_implementation_that_does_not_write_is_refused_by_the_target_that_writes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir_all(dir.join("corpus/writes")).unwrap();
    fs::write(dir.join("corpus/writes/input"), Program::default().encode()).unwrap();
    let input = "corpus/writes/input";
    let verbs: [&[&str]; 10] = [
        &["fuzz", "--runs", "1"],
        &["replay", input],
        &["minimize", input, "-o", "small"],
        &["report", input, "--html", "page.html"],
        &["regress", input],
        &["bundle", input, "-o", "bug.tar"],
        &["triage", "corpus/writes"],
        &["corpus", "show", "corpus/writes"],
        &["corpus", "diff", "corpus/writes", "corpus/writes"],
        &["corpus", "prune", "corpus/writes", "-o", "smaller"],
    ];
    for verb in verbs {
        let ran = qcowfuzz(dir, &[verb, &["--target", "writes"]].concat());
        let expected = "--target writes: 'map_extents' does not write images, expected an engine that writes, in the \
                        command of your own crate (docs/engines.md)";
        assert_eq!((ran.status.code(), error_line(&ran)), (Some(2), expected), "{verb:?}");
    }
    // The folder names the target.
    let triaged = qcowfuzz(dir, &["triage", "corpus/writes"]);
    assert_eq!(triaged.status.code(), Some(2));
    let written = small_writer(dir, &["replay", "--brief", "--target", "writes", input]);
    assert!(printed(&written, 0).contains(": ok"), "{}", text(&written.stdout));
    // The report about a campaign runs nothing.
    let report = qcowfuzz(dir, &["corpus", "campaign", "--target", "writes"]);
    assert!(!text(&report.stderr).contains("does not write"), "{}", text(&report.stderr));
}

#[test]
fn the_self_test_asks_the_implementation() {
    let dir = tempfile::tempdir().unwrap();
    let own = qcowfuzz(dir.path(), &["selftest"]);
    let reader = "\n121 answers ok, 0 wrong, 0 images skipped\n\
                  accesses of a reader: the same in every run; declared: feedback\n";
    assert!(printed(&own, 0).ends_with(reader), "{}", text(&own.stdout));
    let writer = small_writer(dir.path(), &["selftest"]);
    let both = format!("{reader}accesses of a writer: the same in every run; declared: feedback\n");
    assert!(printed(&writer, 0).ends_with(&both), "{}", text(&writer.stdout));
    let example = small(dir.path(), &["selftest", "--programs"]);
    let table = printed(&example, 1);
    let has = |line: &str| assert!(table.contains(line), "{line}\n{table}");
    has("\nzeros                     size                                ok\n");
    has("WRONG: no known mistake of an adapter: probably a bug of the implementation\n");
    has(" model: kind, zero-allocated → normal\n");
    has(" skipped: not claimed: an external data file\n");
    has("\n    zero at=start+5 clusters=1 keep=no\n");
}

#[test]
fn a_crate_has_its_name_and_the_path_of_the_checkout() {
    let dir = tempfile::tempdir().unwrap();
    // An empty folder is as good as a new one.
    fs::create_dir(dir.path().join("my-reader")).unwrap();
    let made = qcowfuzz(dir.path(), &["new-engine", "my-reader"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let read = |path: &str| fs::read_to_string(dir.path().join("my-reader").join(path)).unwrap();
    let checkout = format!("path = \"{}\"", env!("CARGO_MANIFEST_DIR"));
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        assert!(read(manifest).contains(&checkout), "{}", read(manifest));
    }
    assert!(read("fuzz/Cargo.toml").contains("\nmy-reader = { path = \"..\""));
    assert!(read(".clusterfuzzlite/Dockerfile").contains("WORKDIR $SRC/my-reader\n"));
    for target in ["map_extents", "hostile", "raw_image"] {
        let seeds = dir.path().join("my-reader/fuzz/corpus").join(target);
        assert!(fs::read_dir(seeds).unwrap().count() >= 10, "{target}");
    }
    // The harness accepts the seeds.
    let seeds =
        ["replay", "my-reader/corpus/map_extents/zeros", "my-reader/corpus/map_extents/zstd"];
    assert_eq!(qcowfuzz(dir.path(), &seeds).status.code(), Some(0));
}

#[test]
fn folders_that_are_in_use_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("used")).unwrap();
    fs::write(dir.path().join("used/notes"), "mine").unwrap();
    fs::write(dir.path().join("file"), "mine").unwrap();
    let refused = |name: &str, line: &str| {
        let output = qcowfuzz(dir.path(), &["new-engine", name]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert_eq!(error_line(&output), line);
    };
    refused("used", "used: not empty, expected a new or an empty folder");
    refused("file", "file: Not a directory (os error 20), expected a new or an empty folder");
    let name = "expected a folder whose name is that of a new crate, such as my-reader";
    refused("2nd", &format!("2nd: {name}"));
    refused("qcowfuzz", &format!("qcowfuzz: {name}"));
    let there = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!((there(dir.path()), there(&dir.path().join("used"))), (2, 1));
    assert_eq!(fs::read_to_string(dir.path().join("used/notes")).unwrap(), "mine");
}

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
