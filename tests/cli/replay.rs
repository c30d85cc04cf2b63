//! `replay` of each target, over its committed seeds, and of programs of any content; `disasm`, `asm` and `export`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Damaged, error_line, qcowfuzz, qemu_img, small_program, text, with_image};

/// Returns the committed seeds of a target by name. They have a text; the fuzzer's finds in the same folder have none.
fn seeds(target: &str) -> Vec<String> {
    let texts = corpus("text").join(target);
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_string();
    let mut names: Vec<_> =
        fs::read_dir(texts).unwrap().map(|entry| stem(entry.unwrap().path())).collect();
    names.sort();
    assert!(names.len() > 3);
    names
}

fn corpus(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(folder)
}

/// Replays all seeds of a target, and returns a JSON object for each.
fn replay_seeds(target: &str, options: &[&str]) -> Vec<serde_json::Value> {
    let names = seeds(target);
    let mut arguments = vec!["replay", "--json", "--target", target];
    arguments.extend(options);
    arguments.extend(names.iter().map(String::as_str));
    let output = qcowfuzz(&corpus(target), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = text(&output.stdout).lines();
    let printed: Vec<serde_json::Value> =
        lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(printed.iter().map(|report| report["input"].as_str().unwrap()).eq(names.iter()));
    assert!(
        printed.iter().all(|report| report["target"] == target && report.get("detail").is_none())
    );
    printed
}

/// Returns the program in the output, without comments.
fn program_in(printed: &str) -> String {
    let (_, program) = printed.split_once("\n\n").unwrap();
    let program = program.split("\n\n").next().unwrap();
    qcowfuzz::programs::text::assemble(program).unwrap().to_string()
}

#[test]
fn seeds_of_refcounts_are_replayed() {
    let briefs = replay_seeds("refcounts", &[]);
    let each = replay_seeds("refcounts", &["--check-each"]);
    for (brief, each) in briefs.iter().zip(&each) {
        assert_eq!((&brief["verdict"], &each["verdict"]), (&"ok".into(), &"ok".into()));
        assert_eq!(each["images"], each["operations"], "{each}");
        assert!(brief["images"].as_u64() < each["images"].as_u64(), "{brief}");
    }
    let dir = corpus("refcounts");
    let output = qcowfuzz(&dir, &["replay", "--target", "refcounts", "order_4"]);
    let out = text(&output.stdout);
    assert!(out.starts_with("ok\norder_4: "), "{out}");
    assert_eq!(program_in(out), text(&qcowfuzz(&dir, &["disasm", "order_4"]).stdout));
}

#[test]
fn each_target_has_its_own_limits() {
    // Targets that walk images limit the length of the file of this seed.
    let dir = tempfile::tempdir().unwrap();
    let seed = corpus("refcounts").join("full_table");
    let dumped = |target: &str| {
        let seed = seed.to_str().unwrap();
        let output =
            qcowfuzz(dir.path(), &["replay", "--target", target, seed, "--dump-image", target]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        fs::metadata(dir.path().join(target)).unwrap().len()
    };
    assert!(dumped("refcounts") > dumped("map_extents"));
}

#[test]
fn the_image_of_refcounts_is_dumped() {
    let dir = tempfile::tempdir().unwrap();
    let seed = corpus("refcounts").join("order_4");
    let arguments =
        ["replay", "--target", "refcounts", seed.to_str().unwrap(), "--dump-image", "dumped"];
    let output = qcowfuzz(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let check = qcowfuzz(dir.path(), &["check", "dumped"]);
    assert_eq!(check.status.code(), Some(0), "{}", text(&check.stderr));
}

#[test]
fn files_are_walked_or_not() {
    let mut verdicts = BTreeSet::new();
    for printed in replay_seeds("raw_image", &[]) {
        verdicts.insert(printed["verdict"].as_str().unwrap().to_string());
        assert!(
            printed.get("program").is_none() && printed.get("operations").is_none(),
            "{printed}"
        );
    }
    assert!(verdicts.iter().eq(["failed", "refused", "walked"]), "{verdicts:?}");
    let dir = with_image();
    let mut damaged = Damaged::new(dir.path());
    damaged.save(dir.path(), "whole");
    // A cluster off its boundary.
    let entry = damaged.l2() + 8 * 5;
    damaged.put(entry, &(1u64 << 63 | 0x5_0200).to_be_bytes());
    damaged.save(dir.path(), "damaged");
    fs::write(dir.path().join("text"), "no image").unwrap();
    let replay = ["replay", "--target", "raw_image"];
    let output = qcowfuzz(dir.path(), &[&replay[..], &["whole", "damaged", "text"]].concat());
    assert_eq!(output.status.code(), Some(0));
    let lines = "whole: walked\ndamaged: walk failed\ntext: refused\n";
    assert_eq!(text(&output.stdout), format!("{lines}3 inputs, 0 with a violation\n"));
    for (name, out) in [
        ("whole", "walked\nwhole: the file was walked to its end, or to the limit of a run\n"),
        ("damaged", "walk failed\ndamaged: the file was opened, and walking it failed\n"),
        ("text", "refused\ntext: the file was not opened\n"),
    ] {
        let output = qcowfuzz(dir.path(), &[&replay[..], &[name]].concat());
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).starts_with(out), "{}", text(&output.stdout));
    }
}

#[test]
fn options_for_programs_are_refused_for_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "no image").unwrap();
    for options in [&["--check-each"][..], &["--dump-image", "dumped"]] {
        let arguments = [&["replay", "--target", "raw_image", "file"][..], options].concat();
        let output = qcowfuzz(dir.path(), &arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let rest = "raw_image reads image files, expected a target whose inputs are programs";
        assert_eq!(error_line(&output), format!("{}: {rest}", options[0]));
    }
    assert!(!dir.path().join("dumped").exists());
}

#[test]
fn events_are_printed_for_one_input() {
    let dir = corpus("map_extents");
    let output = qcowfuzz(&dir, &["replay", "--events", "chain_raw"]);
    assert_eq!(output.status.code(), Some(0));
    let out = text(&output.stdout);
    let (events, whole) = out.strip_prefix("events:\n").unwrap().split_once("\n\n").unwrap();
    assert_eq!(whole, text(&qcowfuzz(&dir, &["replay", "chain_raw"]).stdout));
    let line = |line: &str| assert!(events.lines().any(|logged| logged.trim() == line), "{events}");
    line("open  start → header → backing");
    line("rare  a raw layer");
    line("emit  start → normal ×3 → compressed ×2 → normal → unallocated");
    let output = qcowfuzz(&dir, &["replay", "--events", "chain_raw", "windows"]);
    assert_eq!(output.status.code(), Some(2));
    let refused = "--events: found several inputs, expected one";
    assert_eq!(error_line(&output), refused);
}

/// A stack overflow ends the process. A small stack stands for a deep recursion of the code under test.
#[test]
fn an_input_that_ends_its_process_leaves_its_events() {
    let dir = corpus("map_extents");
    let program = env!("CARGO_BIN_EXE_qcowfuzz");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 260 && exec \"$0\" replay --events chain_raw", program]);
    let output = command.current_dir(&dir).output().unwrap();
    assert_eq!(output.status.code(), None, "{output:?}");
    assert!(
        text(&output.stdout).starts_with("events:\n           build  start → normal"),
        "{output:?}"
    );
}

#[test]
fn a_judgement_alone_is_brief() {
    let dir = corpus("map_extents");
    let output = qcowfuzz(&dir, &["replay", "--brief", "chain_raw"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "chain_raw: ok\n"));
    let output = qcowfuzz(&dir, &["replay", "--brief", "--json", "chain_raw"]);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["verdict"], "ok");
    assert!(printed.get("files").is_none() && printed.get("steps").is_none(), "{printed}");
}

#[test]
fn an_input_that_is_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::File::create(dir.path().join("long")).unwrap().set_len(100 << 20).unwrap();
    let output = qcowfuzz(dir.path(), &["replay", "long"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let long = "long: is too long for a fuzz target, expected at most 1048576 bytes";
    assert_eq!(error_line(&output), long);
}

#[test]
fn an_explanation_has_what_each_question_asks_for() {
    let dir = corpus("map_extents");
    let output = qcowfuzz(&dir, &["replay", "chain_raw"]);
    let out = text(&output.stdout);
    for line in [
        "; #0 at 20: 0000020002000000",
        // A layer that became a raw file: its extents have no host offsets.
        "    ; guest 0x2000+0x3000 data\n",
        "    ; guest 0x0+0x10000 subclusters at host 0x30000+0x10000\n",
        "image, 1 layer down: 458752 bytes, clusters of 65536",
        "         0x30000        1 × data  by #4, #5",
        "raw file, 2 layers down: 286797 bytes, clusters of 4096",
        "          0x2000        3 × data  by #0",
        "read by the walker: L2 table 1 of 1, L1 table 1 of 1, header 19 of 19",
        "compressed at 0xc2ee, 8 sectors more  by #8",
        "vitals: ",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(!out.contains("<--"), "nothing was found: {out}");
}

#[test]
fn damage_is_explained() {
    let dir = corpus("hostile");
    let replayed = |seed: &str| {
        let output = qcowfuzz(&dir, &["replay", "--target", "hostile", seed]);
        assert_eq!(output.status.code(), Some(0));
        text(&output.stdout).to_string()
    };
    let out = replayed("l2_points_elsewhere");
    for line in [
        "    ; on L2 table at host 0x20008\n",
        "        before the damage                           the walker\n",
        "\ndamaged:\n",
        "\nread by the walker before the damage: ",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    let damaged = out.lines().find(|line| line.contains("0x20010 L2 table 8000")).unwrap();
    assert!(damaged.contains(" → ") && damaged.contains(": COPIED, "), "{damaged}");
    assert!(replayed("cut_short").contains("\n  cut to 1536 bytes\n"));
}

/// The choices of an image without a program, whose recipe names the tools of QEMU.
#[test]
fn a_recipe_is_shown_by_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    if qemu_img(dir.path(), &["--version"]).is_none() {
        return;
    }
    fs::write(dir.path().join("choices"), [60; 64]).unwrap();
    let target = ["--target", "recipes"];
    let replayed = qcowfuzz(dir.path(), &[&["replay", "choices"][..], &target].concat());
    let out = text(&replayed.stdout);
    assert_eq!(replayed.status.code(), Some(0), "{out}{}", text(&replayed.stderr));
    assert!(out.starts_with("ok\nchoices: QEMU carried out the recipe\n"), "{out}");
    assert!(out.contains("\n# create\nqemu-img create -q "), "{out}");
    let page = ["report", "choices", "--html", "page.html"];
    assert!(qcowfuzz(dir.path(), &[&page[..], &target].concat()).status.success());
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    assert!(page.contains("qemu-img create -q "));
    let options = [&["replay", "choices", "--check-each"][..], &target].concat();
    let refused = qcowfuzz(dir.path(), &options);
    let rest = "recipes carries out recipes, expected a target whose inputs are programs";
    assert_eq!(error_line(&refused), format!("--check-each: {rest}"));
    // The loop has mutations for the choices.
    let fuzz = ["fuzz", "--runs", "10", "--jobs", "1", "--json"];
    let fuzzed = qcowfuzz(dir.path(), &[&fuzz[..], &target].concat());
    assert_eq!(fuzzed.status.code(), Some(0), "{}", text(&fuzzed.stdout));
    let summary: serde_json::Value = serde_json::from_slice(&fuzzed.stdout).unwrap();
    assert_eq!(summary["target"], "recipes", "{summary}");
    assert!(summary["compared"].as_u64().unwrap() > 10, "{summary}");
}

#[test]
fn programs_of_any_content_are_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let contents: [&[u8]; 4] =
        [b"", b"\xff\xff\xff", b"some text, not a program at all", &[0; 5000]];
    for (number, content) in contents.iter().enumerate() {
        fs::write(dir.path().join(number.to_string()), content).unwrap();
        let name = number.to_string();
        let output = qcowfuzz(dir.path(), &["replay", "--check-each", &name]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let out = text(&output.stdout);
        assert!(out.starts_with("ok\n"), "{out}");
        let disasm = qcowfuzz(dir.path(), &["disasm", &name]);
        assert_eq!(program_in(out), text(&disasm.stdout));
    }
    let output = qcowfuzz(dir.path(), &["replay", "0", "1", "2"]);
    assert_eq!(text(&output.stdout), "0: ok\n1: ok\n2: ok\n3 inputs, 0 with a violation\n");
    let output = qcowfuzz(dir.path(), &["replay", "--json", "0", "2"]);
    let lines: Vec<serde_json::Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["input"], "2");
    assert_eq!(lines[1]["target"], "map_extents");
    assert_eq!(lines[1]["verdict"], "ok");
    assert_eq!(lines[1]["images"], 1);
}

#[test]
fn replay_dumps_the_image_that_was_built() {
    let dir = with_image();
    let arguments = ["replay", "program", "--dump-image", "dumped.qcow2"];
    assert!(qcowfuzz(dir.path(), &arguments).status.success());
    let dumped = fs::read(dir.path().join("dumped.qcow2")).unwrap();
    assert_eq!(dumped, fs::read(dir.path().join("disk.qcow2")).unwrap());
    let again = qcowfuzz(dir.path(), &arguments);
    assert_eq!(again.status.code(), Some(2));
    assert!(error_line(&again).starts_with("dumped.qcow2: the file exists"));
    let forced = [&arguments[..], &["--force"]].concat();
    assert!(qcowfuzz(dir.path(), &forced).status.success());
    let several = ["replay", "program", "program", "--dump-image", "other.qcow2"];
    assert_eq!(qcowfuzz(dir.path(), &several).status.code(), Some(2));
    assert!(!dir.path().join("other.qcow2").exists());
}

#[test]
fn text_and_bytes_turn_into_each_other() {
    let dir = with_image();
    let disasm = qcowfuzz(dir.path(), &["disasm", "program"]);
    fs::write(dir.path().join("text"), &disasm.stdout).unwrap();
    assert!(qcowfuzz(dir.path(), &["asm", "text", "-o", "again"]).status.success());
    let bytes = |name: &str| fs::read(dir.path().join(name)).unwrap();
    assert_eq!(bytes("program"), bytes("again"));
    // Also from standard input.
    let mut child = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"))
        .args(["asm", "-", "-o", "piped"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), &disasm.stdout).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(bytes("program"), bytes("piped"));
    fs::write(dir.path().join("bad"), "write at=start+0 clusters=1\n").unwrap();
    let output = qcowfuzz(dir.path(), &["asm", "bad", "-o", "out"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(error_line(&output), "bad: line 1: 'write' before the image line");
    fs::write(dir.path().join("bad"), b"image \xff").unwrap();
    let output = qcowfuzz(dir.path(), &["asm", "bad", "-o", "out"]);
    assert_eq!(error_line(&output), "bad: invalid UTF-8 at byte 6, expected the text of a program");
    assert!(!dir.path().join("out").exists());
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_behind() {
    let dir = with_image();
    let before = fs::read(dir.path().join("disk.qcow2")).unwrap();
    for arguments in
        [&["export", "program", "-o", "program"], &["asm", "program", "-o", "disk.qcow2"]]
    {
        let output = qcowfuzz(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(2));
        error_line(&output);
    }
    fs::create_dir(dir.path().join("directory")).unwrap();
    for target in ["nowhere/disk.qcow2", "directory"] {
        let output = qcowfuzz(dir.path(), &["export", "program", "-o", target, "--force"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(error_line(&output).starts_with(target));
    }
    assert_eq!(fs::read(dir.path().join("disk.qcow2")).unwrap(), before);
    assert_eq!(fs::read(dir.path().join("program")).unwrap(), small_program());
    let mut names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["directory", "disk.qcow2", "program"]);
}
