//! The implementation that a command runs in place of our walker: that of `examples/command.rs`, with every verb; the
//! second one of `--against`; and the crate that `new-engine` makes for one.

use std::sync::LazyLock;

use test_support::prelude::*;

use crate::engine_command::{pipes, with_programs};
use crate::support::{Folder, Ran, built_example, corpus, names_in};

const FINGERPRINT: &str = "model: kind, zero-plain → unallocated";

/// The command of the example.
static COMMAND: LazyLock<PathBuf> = LazyLock::new(|| built_example("command"));

/// Runs the command of the example in `dir`.
fn small(dir: &Folder, words: &str) -> Ran {
    Ran::of(&mut dir.command(&*COMMAND, words))
}

/// Returns the files directly in a folder.
fn files_in(dir: &Path) -> Vec<PathBuf> {
    names_in(dir).iter().map(|name| dir.join(name)).filter(|path| path.is_file()).collect()
}

/// Returns a folder with `input`, an input that shows the bug of the example.
fn with_finding() -> Folder {
    let dir = Folder::new();
    small(&dir, "fuzz --runs 3000 --jobs 1 --until-found").exits(1).has(FINGERPRINT);
    let shows = |path: &&PathBuf| {
        small(&dir, &format!("replay {}", path.display())).out.contains(FINGERPRINT)
    };
    let paths = files_in(&dir.join("artifacts/map_extents"));
    fs::copy(paths.iter().find(shows).unwrap(), dir.join("input")).unwrap();
    dir
}

#[test]
fn every_verb_runs_inputs_with_the_implementation() {
    let dir = with_finding();
    // Our walker does not have the bug.
    dir.run("replay input").ok();
    small(&dir, "minimize input -o small").ok().has(FINGERPRINT);
    let program = Program::decode(&dir.read("small"));
    assert_eq!(program.operations.len(), 1, "{program}");
    // The evidence has the answers of the implementation.
    small(&dir, "replay small").exits(1).has(FINGERPRINT).has("unallocated");
    small(&dir, "triage artifacts/map_extents").exits(1).has(FINGERPRINT);
    small(&dir, "regress small --story the_reader_ignores_zeros").ok().has(FINGERPRINT);
    small(&dir, "report small --html page.html").ok();
    assert!(dir.read_text("page.html").contains("zero-plain → unallocated"));
    small(&dir, "bundle small -o bug.tar.gz").ok();
    small(&dir, "corpus show corpus/map_extents").ok().has("inputs");
}

#[test]
fn what_the_loop_saves_is_folded() {
    let dir = with_finding();
    for folder in ["corpus/map_extents", "artifacts/map_extents"] {
        let files = files_in(&dir.join(folder));
        assert!(!files.is_empty());
        for path in files {
            let program = Program::decode(&fs::read(&path).unwrap()).to_string();
            // The reader claims none of these.
            for feature in ["overlay", "extended_l2", "data_in=file"] {
                assert!(!program.contains(feature), "{program}");
            }
        }
    }
}

#[test]
fn replay_prints_the_changes_of_folding() {
    let overlay =
        "overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=same";
    let operations = format!(
        "write at=start+0 clusters=1\n{overlay}\ncompress at=start+0 clusters=1 shape=text skew=packed\n"
    );
    let text = lines::image("features=extended_l2 size=1<<16+0") + &operations;
    let dir = Folder::of([("text", text.as_bytes())]);
    small(&dir, "asm text -o input").ok();
    let printed = small(&dir, "replay input").ok().out;
    let folded =
        printed.split("folded, because the engine does not claim these features:\n").nth(1);
    let changes: Vec<_> = folded.unwrap().lines().take_while(|line| !line.is_empty()).collect();
    assert!(changes[0].contains("features=extended_l2") && changes[0].contains("→ image version"));
    assert!(changes.contains(&&*format!("  {overlay} → removed")), "{printed}");
    assert!(!changes.iter().any(|line| line.contains("  write at=start+0")), "{printed}");
    // Our walker claims all features.
    assert!(!dir.run("replay input").out.contains("folded"));
}

/// The program of an input shows its bug only after folding, which removes the overlay and makes the clusters smaller.
/// All evidence is about the program after that, and shows the bug with the claims and without them.
#[test]
fn evidence_is_about_the_program_that_was_judged() {
    let overlay = "overlay version=3 cluster_bits=16 refcount_order=4 features=none data_in=image size=same\n";
    let text = lines::image("size=4<<16+0")
        + "write at=start+0 clusters=4\n"
        + overlay
        + "zero at=start+1 clusters=1 keep=no\n";
    let dir = Folder::of([("text", text.as_bytes())]);
    dir.run("asm text -o input").ok();
    let judged = |words: &str| {
        let words: Vec<_> = words.split(' ').chain(["--without", "clusters of 64 KiB"]).collect();
        Ran::of(&mut dir.command(&*COMMAND, &words[..]))
    };
    let folded = judged("disasm input").ok().out;
    assert!(!folded.contains("overlay") && !folded.contains("cluster_bits=16"), "{folded}");
    // Folding the text again changes nothing.
    dir.write("folded", &folded);
    dir.run("asm folded -o folded.input").ok();
    assert_eq!(judged("disasm folded.input").ok().out, folded);

    let shown = judged("replay input").exits(1).has(FINGERPRINT);
    let dump = judged("replay input --dump-image dumped.qcow2").exits(1);
    assert_eq!(dump.out.lines().next(), shown.out.lines().next());
    judged("export input -o exported.qcow2 --fill").ok();
    assert_eq!(dir.read("exported.qcow2"), dir.read("dumped.qcow2"));

    judged("minimize input -o small").ok().has(FINGERPRINT);
    judged("bundle input -o bug.tar").ok();
    Ran::of(&mut dir.command("tar", "xf bug.tar")).ok();
    assert_eq!(dir.run("disasm bug-bundle/input").ok().out, folded);
    judged("regress input --text").ok().has(&folded);
    for evidence in ["small", "bug-bundle/input"] {
        let program = dir.run(&*format!("disasm {evidence}")).ok().out;
        assert_eq!(judged(&format!("disasm {evidence}")).ok().out, program);
        judged(&format!("replay {evidence}")).exits(1).has(FINGERPRINT);
        small(&dir, &format!("replay {evidence}")).exits(1).has(FINGERPRINT);
    }
}

/// A file that lists the bug of the example, in both forms, and a finding that does not occur.
const KNOWN: &str = "[[finding]]\nfingerprint = 'model: kind, zero-allocated → normal'\nreason = 'The same.'\n\
                     [[finding]]\nfingerprint = 'model: kind, zero-plain → unallocated'\nreason = 'A test.'\n\
                     link = 'https://example.org/1'\n\
                     [[finding]]\nfingerprint = 'panic: nothing, at_all'\nreason = 'Another.'\n";

#[test]
fn known_findings_are_set_aside_by_every_verb() {
    let dir = with_finding();
    dir.write("known.toml", KNOWN);
    let run = |words: &str| small(&dir, &format!("{words} --known known.toml")).ok();
    // The option reaches the workers.
    let fuzz = "fuzz --runs 3000 --jobs 2 --dir again";
    let summary = run(fuzz).has(&format!("known: {FINGERPRINT}\n  "));
    let summary = summary.has(" times; A test.\n  https://example.org/1\n");
    let gone = "known, but it did not occur: panic: nothing, at_all\nfound: nothing new\n";
    assert!(summary.out.ends_with(gone), "{summary:?}");
    assert_eq!(names_in(&dir.join("again/artifacts/map_extents")).len(), 0);
    let summary = run(&format!("{fuzz} --json --restart")).json();
    let nothing = (&serde_json::json!([]), &0.into());
    assert_eq!((&summary["found"], &summary["known"][2]["times"]), nothing);
    assert!(summary["known"][1]["times"].as_u64().unwrap() > 1, "{summary}");
    // Replay names it, and finds nothing new.
    run("replay input").begins("ok\n").has(&format!("\nknown: {FINGERPRINT}\n"));
    assert_eq!(run("replay --brief input").out, "input: ok; known findings: 1\n");
    let shown = small(&dir, "replay --brief --show-known input --known known.toml").exits(1);
    assert_eq!(shown.out, format!("input: {FINGERPRINT}\n"));
    // Triage lists it apart.
    let triaged = run("triage artifacts/map_extents");
    let triaged = triaged.has(" 0 fingerprints, 0 of them new\n").has("set aside: model: ");
    // The campaign may have found both bugs before it ended.
    let gone = triaged.out.split_once("set aside, but in no input any more: ").unwrap().1;
    assert!(gone.contains("panic: nothing, at_all\n"), "{triaged:?}");
    // It can still be shrunk, and explained.
    run("minimize input -o small").begins(FINGERPRINT);
    assert_eq!(Program::decode(&dir.read("small")).operations.len(), 1);
    run("regress small").has(&format!("let bug = \"{FINGERPRINT}\""));
    run("bundle small -o bug.tar");
    run("report small --html page.html");
}

/// A `*` in a known finding hides which findings occurred. The summary lists them.
#[test]
fn a_campaign_lists_the_fingerprints_of_a_known_finding() {
    let known = "[[finding]]\nfingerprint = 'model: kind, *'\nreason = 'A test.'\n";
    let dir = Folder::of([("known.toml", known.as_bytes())]);
    let summary = small(&dir, "fuzz --runs 3000 --jobs 1 --json --known known.toml").ok().json();
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
    let wrong = KNOWN.replace("reason = 'Another.'", "");
    let dir = Folder::of([("wrong.toml", wrong.as_bytes()), ("input", b"")]);
    fs::create_dir(dir.join("folder")).unwrap();
    for [verb, file, message] in rows(
        "replay | wrong.toml | wrong.toml: line 9: missing field `reason`, expected why the finding is a bug
         replay | none.toml | none.toml: No such file
         replay | folder | folder: is a folder, expected a file of known findings; only 'triage' reads
         map | wrong.toml | --known: 'map' runs no inputs, expected a command that does",
    ) {
        let ran = small(&dir, &format!("{verb} input --known {file}")).exits(2);
        assert!(ran.err.lines().count() == 1 && ran.err.contains(message), "{ran:?}");
    }
}

/// Fuzzes one program, whose later operations hide a finding. The artifact ends with the operation at fault, so that it
/// needs no option.
fn finds_hidden(rng_seed: u16, option: &str) {
    let operands = format!("size=4<<16+0 rng_seed={rng_seed}");
    let program = lines::image(&operands) + "zero at=start+1 clusters=1 keep=no\n";
    let hidden = format!("{program}write at=start+1 clusters=1\nwrite at=start+0 clusters=1\n");
    let dir = Folder::of([("program.txt", hidden.as_bytes())]);
    fs::create_dir_all(dir.join("corpus/map_extents")).unwrap();
    dir.run("asm program.txt -o corpus/map_extents/seed").ok();
    let replayed = small(&dir, "replay corpus/map_extents/seed");
    match option {
        // The draw does not depend on the command.
        "" => replayed.exits(1).has(FINGERPRINT),
        _ => replayed.ok().begins("ok\n"),
    };
    small(&dir, &format!("fuzz --runs 1 --jobs 1 {option}")).exits(1).has(FINGERPRINT);
    let inputs = files_in(&dir.join("artifacts/map_extents"));
    let programs: Vec<_> =
        inputs.iter().map(|path| Program::decode(&fs::read(path).unwrap())).collect();
    assert!(programs.iter().any(|it| it.to_string() == program), "{programs:?}");
}

#[test]
fn check_each_finds_what_later_operations_hide() {
    finds_hidden(0, "--check-each");
}

#[test]
fn a_drawn_program_shows_what_later_operations_hide() {
    let drawn = (0..100).find(|&it| Checks::Drawn.of_seed(it) == Checks::AfterChanges);
    finds_hidden(drawn.unwrap(), "");
}

#[test]
fn a_claim_can_be_dropped_for_one_command() {
    let dir = Folder::new();
    fs::copy(corpus("text/writes/killed_process.txt"), dir.join("cuts.txt")).unwrap();
    dir.run("asm cuts.txt -o cuts").ok();
    let replay = "replay --target writes cuts";
    let all = dir.small_writer(replay).ok().has("sync kind=kill");
    assert!(!all.out.contains(" → "), "{all:?}");
    let mut without: Vec<&str> = replay.split(' ').collect();
    without.extend(["--without", "power cuts"]);
    let folded = dir.small_writer(&without[..]).ok();
    folded.has("sync kind=kill choice=").has(" → sync kind=flush choice=");
    for (words, expected) in [
        (["replay", "cuts", "--without", "colours"], "expected a feature, found 'colours'"),
        (["info", "cuts", "--without", "power cuts"], "--without: 'info' runs no inputs"),
    ] {
        let ran = dir.run(&words).exits(2);
        assert!(ran.err.contains(expected), "{ran:?}");
    }
}

/// The target `writes` would find nothing in an implementation that declares that it does not write.
#[test]
fn an_implementation_that_does_not_write_is_refused_by_the_target_that_writes() {
    let dir = Folder::new();
    fs::create_dir_all(dir.join("corpus/writes")).unwrap();
    dir.write("corpus/writes/input", Program::default().encode());
    for words in [
        "fuzz --runs 1",
        "replay corpus/writes/input",
        "minimize corpus/writes/input -o small",
        "report corpus/writes/input --html page.html",
        "regress corpus/writes/input",
        "bundle corpus/writes/input -o bug.tar",
        "triage corpus/writes",
        "corpus show corpus/writes",
        "corpus diff corpus/writes corpus/writes",
        "corpus prune corpus/writes -o smaller",
    ] {
        let ran = dir.run(&format!("{words} --target writes")).exits(2);
        let expected = "--target writes: 'map_extents' does not write images, expected an engine that writes, in the \
                        command of your own crate (docs/engines.md)";
        assert_eq!(ran.line(), expected, "{words}");
    }
    // The folder names the target.
    dir.run("triage corpus/writes").exits(2);
    dir.small_writer("replay --brief --target writes corpus/writes/input").ok().has(": ok");
    // The report about a campaign runs nothing.
    let report = dir.run("corpus campaign --target writes");
    assert!(!report.err.contains("does not write"), "{report:?}");
}

#[test]
fn the_self_test_asks_the_implementation() {
    let dir = Folder::new();
    let own = dir.run("selftest").ok();
    let reader = "\n236 answers ok, 0 wrong, 0 images skipped\n\
                  accesses of a reader: the same in every run; declared: feedback\n";
    assert!(own.out.ends_with(reader), "{own:?}");
    let writer = dir.small_writer("selftest").ok();
    let both = format!("{reader}accesses of a writer: the same in every run; declared: feedback\n");
    assert!(writer.out.ends_with(&both), "{writer:?}");
    small(&dir, "selftest --programs")
        .exits(1)
        .has("\nzeros                     size                                ok\n")
        .has("WRONG: no known mistake of an adapter: probably a bug of the implementation\n")
        .has(" model: kind, zero-allocated → normal\n")
        .has(" skipped: not claimed: an external data file\n")
        .has("\n    zero at=start+5 clusters=1 keep=no\n");
}

#[test]
fn a_crate_has_its_name_and_the_path_of_the_checkout() {
    let dir = Folder::new();
    // An empty folder is as good as a new one.
    fs::create_dir(dir.join("my-reader")).unwrap();
    dir.run("new-engine my-reader").ok();
    let checkout = format!("path = \"{}\"", env!("CARGO_MANIFEST_DIR"));
    for (file, part) in [
        ("Cargo.toml", checkout.as_str()),
        ("fuzz/Cargo.toml", &checkout),
        ("fuzz/Cargo.toml", "\nmy-reader = { path = \"..\""),
        (".clusterfuzzlite/Dockerfile", "WORKDIR $SRC/my-reader\n"),
    ] {
        let text = dir.read_text(&format!("my-reader/{file}"));
        assert!(text.contains(part), "{part}: {text}");
    }
    for target in ["map_extents", "hostile", "raw_image"] {
        let seeds = names_in(&dir.join("my-reader/fuzz/corpus").join(target));
        assert!(seeds.len() >= 10, "{target}");
    }
    // The harness accepts the seeds.
    dir.run(
        "replay my-reader/corpus/map_extents/plain_zeros my-reader/corpus/map_extents/zero_kinds",
    )
    .ok();
}

#[test]
fn folders_that_are_in_use_are_refused() {
    let dir = Folder::of([("file", b"mine")]);
    fs::create_dir(dir.join("used")).unwrap();
    dir.write("used/notes", "mine");
    let name = "expected a folder whose name is that of a new crate, such as my-reader";
    for (folder, line) in [
        ("used", "not empty, expected a new or an empty folder"),
        ("file", "Not a directory (os error 20), expected a new or an empty folder"),
        ("2nd", name),
        ("qcowfuzz", name),
    ] {
        let ran = dir.run(&format!("new-engine {folder}")).exits(2);
        assert_eq!(ran.line(), format!("{folder}: {line}"));
    }
    assert_eq!(
        (dir.names(), names_in(&dir.join("used")).len()),
        (vec!["file".into(), "used".into()], 1)
    );
    assert_eq!(dir.read("used/notes"), b"mine");
}

#[test]
fn a_difference_is_found_by_every_verb() {
    let dir = with_programs();
    // Our walker is right, and the other implementation calls zeros a hole.
    let other = format!("--against-command={}", pipes("hole"));
    let run = |words: &str| {
        let words: Vec<&str> = words.split(' ').chain([&*other]).collect();
        dir.run(&words[..])
    };
    let fingerprint = "against: map: kind, unallocated → zero-plain";
    let replayed = run("replay --brief empty zeros").exits(1);
    replayed.has("2 inputs, 1 with a violation").has(fingerprint);
    let summary = run("fuzz --runs=2000 --jobs=1 --until-found --json").exits(1).json();
    assert!(summary["compared"].as_u64().unwrap() > 0, "{summary}");
    run("triage artifacts/map_extents").exits(1);
    run("minimize zeros -o small").ok().has(fingerprint);
    run("replay small").exits(1);
    dir.run("replay small").ok();
    run("report small --html page.html").ok();
    run("bundle small -o bug.tar.gz").ok();
    run("regress small --story zeros_are_a_hole").ok().has(".against_engine(");
    run("corpus show artifacts/map_extents").exits(1);
}

#[test]
fn the_end_of_the_other_process_is_a_finding() {
    let ran = with_programs().run(&["replay", "zeros", "--against-command", &pipes("abort")]);
    ran.begins("against: end, an answer → signal: 6 (SIGABRT)");
}

#[test]
fn an_implementation_that_takes_turns_writes() {
    let ran = with_programs().run("fuzz --target=writes --runs=50 --in-turn=map_extents").exits(2);
    let both = "'map_extents 0.1.0 in turn with map_extents 0.1.0' does not write images";
    assert!(ran.line().contains(both), "{ran:?}");
}

#[test]
fn an_implementation_in_the_executable_is_named() {
    let engine = pipes("");
    let fuzz = ["fuzz", "--runs=200", "--jobs=1", "--against=map_extents", "--engine-command"];
    let ran = with_programs().run(&[&fuzz[..], &[&*engine]].concat()[..]).ok();
    // The walker answers all questions about reading.
    assert!(!ran.has("map_extents judged ").out.contains("map_extents has no answer"));
}

#[test]
fn options_that_cannot_be_used_are_one_line() {
    let dir = with_programs();
    dir.write("file", "no image");
    for [words, expected] in rows(
        "replay empty --in-turn=nosuch | --in-turn: found 'nosuch', expected one of: qemu, map_extents
         replay empty --in-turn=map_extents \
         | --in-turn: found the target map_extents, expected one of: writes, hostile_writes
         replay empty --against=nosuch | --against: found 'nosuch', expected one of: qemu, map_extents
         replay empty --against=map_extents --against-command=cat \
         | --against-command: found --against, too, expected one of them
         fuzz --runs=1 --against-command=false | --against-command:
         info file --against-command=cat | --against-command: 'info' runs no inputs, expected a command that does
         replay empty --target=refcounts --against=map_extents \
         | --against: found the target refcounts, expected one whose images an implementation reads",
    ) {
        let ran = dir.run(words).exits(2);
        assert!(ran.line().starts_with(expected), "{ran:?}");
    }
}
