//! `replay` of each target, over its committed seeds, and of programs of any content; `disasm`, `asm` and `export`.

use serde_json::Value;
use test_support::prelude::*;

use crate::support::{Damaged, Folder, OURS, Ran, corpus, seeds, small_program};

/// Runs our command in the folder of a target's corpus.
fn run_in(target: &str, words: &str) -> Ran {
    Ran::of(Command::new(OURS).args(words.split(' ')).current_dir(corpus(target)))
}

/// Replays all seeds of a target, and returns a JSON object for each.
fn replay_seeds(target: &str, option: &str) -> Vec<Value> {
    let names = seeds(target);
    let words = format!("replay --json --target {target} {option}{}", names.join(" "));
    let ran = run_in(target, &words).ok();
    let printed: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(printed.iter().map(|report| report["input"].as_str().unwrap()).eq(names.iter()));
    let is_brief = |report: &Value| report["target"] == target && report.get("detail").is_none();
    assert!(printed.iter().all(is_brief));
    printed
}

/// Returns the program in the output, without comments.
fn program_in(printed: &str) -> String {
    let (_, program) = printed.split_once("\n\n").unwrap();
    assemble(program.split("\n\n").next().unwrap()).unwrap().to_string()
}

#[test]
fn seeds_of_refcounts_are_replayed() {
    let briefs = replay_seeds("refcounts", "");
    let each = replay_seeds("refcounts", "--check-each ");
    for (brief, each) in briefs.iter().zip(&each) {
        assert_eq!((&brief["verdict"], &each["verdict"]), (&"ok".into(), &"ok".into()));
        assert_eq!(each["images"], each["operations"], "{each}");
        assert!(brief["images"].as_u64() < each["images"].as_u64(), "{brief}");
    }
    let ran = run_in("refcounts", "replay --target refcounts order_4").begins("ok\norder_4: ");
    assert_eq!(program_in(&ran.out), run_in("refcounts", "disasm order_4").out);
}

#[test]
fn each_target_has_its_own_limits() {
    // Targets that walk images limit the length of the file of this seed.
    let dir = Folder::new();
    fs::copy(corpus("refcounts/full_table"), dir.join("seed")).unwrap();
    let [refcounts, map_extents] = ["refcounts", "map_extents"].map(|target| {
        dir.run(&format!("replay --target {target} seed --dump-image {target}")).ok();
        fs::metadata(dir.join(target)).unwrap().len()
    });
    assert!(refcounts > map_extents);
}

#[test]
fn the_image_of_refcounts_is_dumped() {
    let dir = Folder::new();
    fs::copy(corpus("refcounts/order_4"), dir.join("seed")).unwrap();
    dir.run("replay --target refcounts seed --dump-image dumped").ok();
    dir.run("check dumped").ok();
}

#[test]
fn files_are_walked_or_not() {
    let mut verdicts = BTreeSet::new();
    for printed in replay_seeds("raw_image", "") {
        verdicts.insert(printed["verdict"].as_str().unwrap().to_string());
        let has_program = printed.get("program").is_some() || printed.get("operations").is_some();
        assert!(!has_program, "{printed}");
    }
    assert!(verdicts.iter().eq(["failed", "refused", "walked"]), "{verdicts:?}");
    let dir = Folder::with_image();
    let mut damaged = Damaged::new(&dir);
    dir.write("whole", &damaged.bytes);
    // A cluster off its boundary.
    damaged.put_u64(damaged.l2() + 8 * 5, 1 << 63 | 0x5_0200);
    dir.write("damaged", &damaged.bytes);
    dir.write("text", "no image");
    let ran = dir.run("replay --target raw_image whole damaged text").ok();
    let lines = "whole: walked\ndamaged: walk failed\ntext: refused\n";
    assert_eq!(ran.out, format!("{lines}3 inputs, 0 with a violation\n"));
    for (name, out) in [
        ("whole", "walked\nwhole: the file was walked to its end, or to the limit of a run\n"),
        ("damaged", "walk failed\ndamaged: the file was opened, and walking it failed\n"),
        ("text", "refused\ntext: the file was not opened\n"),
    ] {
        dir.run(&format!("replay --target raw_image {name}")).ok().begins(out);
    }
}

#[test]
fn options_for_programs_are_refused_for_files() {
    let dir = Folder::of([("file", b"no image")]);
    for (option, operand) in [("--check-each", ""), ("--dump-image", "dumped")] {
        let words = format!("replay --target raw_image file {option} {operand}");
        let rest = "raw_image reads image files, expected a target whose inputs are programs";
        assert_eq!(dir.run(&words).fails(2, "").line(), format!("{option}: {rest}"));
    }
    assert!(!dir.join("dumped").exists());
}

#[test]
fn events_are_printed_for_one_input() {
    let ran = run_in("map_extents", "replay --events chain_raw").ok();
    let (events, whole) = ran.out.strip_prefix("events:\n").unwrap().split_once("\n\n").unwrap();
    assert_eq!(whole, run_in("map_extents", "replay chain_raw").out);
    for line in [
        "open  start → header → backing",
        "rare  a raw layer",
        "emit  start → normal ×3 → compressed ×2 → normal → unallocated",
    ] {
        assert!(events.lines().any(|logged| logged.trim() == line), "{line}: {events}");
    }
    let ran = run_in("map_extents", "replay --events chain_raw windows").exits(2);
    assert_eq!(ran.line(), "--events: found several inputs, expected one");
}

/// SIGXFSZ ends the process, as a crash of the code under test would.
#[test]
fn an_input_that_ends_its_process_leaves_its_events() {
    let dir = Folder::new();
    let mut command = Command::new("sh");
    let line =
        "ulimit -c 0 && ulimit -f 0 && exec \"$0\" replay --events chain_raw --dump-image \"$1\"";
    command.args(["-c", line, OURS]).arg(dir.join("image"));
    let ran = Ran::of(command.current_dir(corpus("map_extents")));
    assert_eq!(ran.code, None, "{ran:?}");
    ran.begins("events:\n           build  start → normal");
}

#[test]
fn a_judgement_alone_is_brief() {
    let ran = run_in("map_extents", "replay --brief chain_raw").ok();
    assert_eq!(ran.out, "chain_raw: ok\n");
    let printed = run_in("map_extents", "replay --brief --json chain_raw").json();
    assert_eq!(printed["verdict"], "ok");
    assert!(printed.get("files").is_none() && printed.get("steps").is_none(), "{printed}");
}

#[test]
fn an_input_that_is_too_long_is_refused() {
    let dir = Folder::new();
    dir.write_long("long");
    let long = "long: is too long for a fuzz target, expected at most 1048576 bytes";
    assert_eq!(dir.run("replay long").fails(2, "").line(), long);
}

#[test]
fn an_explanation_has_what_each_question_asks_for() {
    let mut ran = run_in("map_extents", "replay chain_raw");
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
        ran = ran.has(line);
    }
    assert!(!ran.out.contains("<--"), "nothing was found: {}", ran.out);
}

#[test]
fn damage_is_explained() {
    let replayed = |seed: &str| run_in("hostile", &format!("replay --target hostile {seed}")).ok();
    let ran = replayed("l2_points_elsewhere")
        .has("    ; on L2 table at host 0x20008\n")
        .has("        before the damage                           actual\n")
        .has("\ndamaged:\n")
        .has("\nread by the walker before the damage: ");
    let damaged = ran.out.lines().find(|line| line.contains("0x20010 L2 table 8000")).unwrap();
    assert!(damaged.contains(" → ") && damaged.contains(": COPIED, "), "{damaged}");
    replayed("cut_short").has("\n  cut to 1536 bytes\n");
}

/// The choices of an image without a program, whose recipe names the tools of QEMU.
#[test]
fn a_recipe_is_shown_by_every_verb() {
    let dir = Folder::of([("choices", &[60; 64])]);
    if dir.qemu_img("--version").is_none() {
        return;
    }
    let run = |words: &str| dir.run(&format!("{words} --target recipes"));
    let ran = run("replay choices").ok().begins("ok\nchoices: QEMU carried out the recipe\n");
    ran.has("\n# create\nqemu-img create -q ");
    run("report choices --html page.html").ok();
    assert!(dir.read_text("page.html").contains("qemu-img create -q "));
    let rest = "recipes carries out recipes, expected a target whose inputs are programs";
    let refused = run("replay choices --check-each");
    assert_eq!(refused.line(), format!("--check-each: {rest}"));
    // The loop has mutations for the choices.
    let summary = run("fuzz --runs 10 --jobs 1 --json").ok().json();
    assert_eq!(summary["target"], "recipes", "{summary}");
    assert!(summary["compared"].as_u64().unwrap() > 10, "{summary}");
}

#[test]
fn programs_of_any_content_are_replayed() {
    let dir = Folder::of([
        ("0", b""),
        ("1", b"\xff\xff\xff"),
        ("2", b"some text, not a program at all"),
        ("3", &[0; 5000]),
    ]);
    for name in dir.names() {
        let ran = dir.run(&format!("replay --check-each {name}")).ok().begins("ok\n");
        assert_eq!(program_in(&ran.out), dir.run(&format!("disasm {name}")).out);
    }
    let ran = dir.run("replay 0 1 2");
    assert_eq!(ran.out, "0: ok\n1: ok\n2: ok\n3 inputs, 0 with a violation\n");
    let ran = dir.run("replay --json 0 2");
    let lines: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for (key, value) in [("input", "2"), ("target", "map_extents"), ("verdict", "ok")] {
        assert_eq!(lines[1][key], value);
    }
    assert_eq!(lines[1]["images"], 1);
}

#[test]
fn replay_dumps_the_image_that_was_built() {
    let dir = Folder::with_image();
    let dump = "replay program --dump-image dumped.qcow2";
    dir.run(dump).ok();
    assert_eq!(dir.read("dumped.qcow2"), dir.read("disk.qcow2"));
    let again = dir.run(dump).exits(2);
    assert!(again.line().starts_with("dumped.qcow2: the file exists"), "{again:?}");
    dir.run(&format!("{dump} --force")).ok();
    dir.run("replay program program --dump-image other.qcow2").exits(2);
    assert!(!dir.join("other.qcow2").exists());
}

#[test]
fn text_and_bytes_turn_into_each_other() {
    let dir = Folder::with_image();
    dir.write("text", dir.run("disasm program").out);
    dir.run("asm text -o again").ok();
    assert_eq!(dir.read("program"), dir.read("again"));
    // Also from standard input.
    Ran::of(&mut dir.command("sh", &["-c", &format!("{OURS} asm - -o piped < text")])).ok();
    assert_eq!(dir.read("program"), dir.read("piped"));
    for (bytes, line) in [
        (&b"write at=start+0 clusters=1\n"[..], "bad: line 1: 'write' before the image line"),
        (b"image \xff", "bad: invalid UTF-8 at byte 6, expected the text of a program"),
    ] {
        dir.write("bad", bytes);
        assert_eq!(dir.run("asm bad -o out").exits(2).line(), line);
    }
    assert!(!dir.join("out").exists());
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_behind() {
    let dir = Folder::with_image();
    let before = dir.read("disk.qcow2");
    fs::create_dir(dir.join("directory")).unwrap();
    for [words, start] in rows(
        "export program -o program |
         asm program -o disk.qcow2 |
         export program -o nowhere/disk.qcow2 --force | nowhere/disk.qcow2
         export program -o directory --force | directory",
    ) {
        dir.run(words).fails(2, start);
    }
    assert_eq!(dir.read("disk.qcow2"), before);
    assert_eq!(dir.read("program"), small_program());
    assert_eq!(dir.names(), ["directory", "disk.qcow2", "program"]);
}
