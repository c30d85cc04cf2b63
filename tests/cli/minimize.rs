//! `minimize` with a predicate, because no input shows a bug here: its results, the inputs that it refuses, and the
//! files that it leaves. `regress` prints Rust tests that compile and pass. `cargo xtask from-crash` runs `minimize` by
//! fingerprint, with a planted bug.

use std::io::Read;
use std::time::{Duration, Instant};

use qcowfuzz::findings::regression::Regression;
use test_support::prelude::*;

use crate::support::{Folder, OURS, Ran, corpus, signal, small_program};

/// Returns a folder with `input`, a program of 100 operations, one of which takes a snapshot.
fn with_snapshot() -> Folder {
    let mut program = generate(11, GenerateSettings { operations: 99, compressed: true });
    program.operations.retain(|operation| operation.name() != "snapshot");
    program.operations.insert(50, Operation::Snapshot {});
    Folder::of([("input", &program.encode())])
}

/// Returns a command that exits with 7 if a program has a snapshot.
fn predicate() -> String {
    format!("f() {{ {OURS} disasm \"$1\" | grep -q ^snapshot && exit 7; }}; f")
}

/// Runs `minimize` with these words and a predicate.
fn minimize(dir: &Folder, words: &str, predicate: &str) -> Ran {
    let words: Vec<&str> = words.split(' ').collect();
    dir.run(&[&["minimize"], &words[..], &["--predicate", predicate]].concat()[..])
}

/// Returns the program in a file.
fn program_in(dir: &Folder, name: &str) -> Program {
    Program::decode(&dir.read(name))
}

fn has_snapshot(program: &Program) -> bool {
    program.operations.iter().any(|operation| operation.name() == "snapshot")
}

#[test]
fn a_command_judges_by_its_exit_code() {
    let dir = with_snapshot();
    let before = dir.read("input");
    // There is no progress where there is no terminal.
    let ran = minimize(&dir, "input -o small", &predicate()).ok().quiet();
    let (small, program) = (dir.read("small"), program_in(&dir, "small"));
    assert_eq!((program.operations.len(), program.operations[0].name()), (1, "snapshot"));
    assert_eq!(program.encode(), small);
    let ran = ran.has(": exit status: 7\nsmall: ");
    assert!(ran.out.ends_with(&program.to_string()), "{ran:?}");
    assert_eq!(dir.read("input"), before);
    // Again, as JSON: nothing is left to remove.
    let printed = minimize(&dir, "small -o small2 --json", &predicate()).json();
    assert_eq!((&printed["operations_before"], &printed["operations"]), (&1.into(), &1.into()));
    assert_eq!((&printed["complete"], &printed["kept"]), (&true.into(), &0.into()));
    assert_eq!(dir.read("small2"), small);
}

#[test]
fn a_command_gets_the_image() {
    let dir = with_snapshot();
    let predicate = "f() { test $(od -An -tu1 -j63 -N1 \"$1\") -gt 0; }; f";
    minimize(&dir, "input -o small --tries 400 --as-image", predicate).ok();
    let small = program_in(&dir, "small");
    assert!(has_snapshot(&small) && small.operations.len() < 4, "{small}");
}

#[test]
fn a_file_is_cut_and_zeroed() {
    let dir = Folder::with_image();
    let predicate = "f() { test $(head -c 3 \"$1\") = QFI && exit 7; }; f";
    let words = "disk.qcow2 --target=raw_image -o small";
    let ran = minimize(&dir, words, predicate).ok();
    assert_eq!(dir.read("small"), b"QFI");
    let length = dir.read("disk.qcow2").len();
    let ran = ran.has(&format!("→ 3 bytes that are not 0, {length} → 3 bytes;"));
    assert!(ran.out.ends_with("\n\nfile bytes=3\n0x0 51 46 49\n"), "{ran:?}");
    let printed = minimize(&dir, &format!("{words}2 --json"), predicate).json();
    assert_eq!((&printed["nonzero_bytes"], &printed["complete"]), (&3.into(), &true.into()));
    assert_eq!(printed["file"], "file bytes=3\n0x0 51 46 49\n");
}

#[test]
fn inputs_that_cannot_be_minimized_are_reported_in_one_line() {
    let dir = with_snapshot();
    dir.write("empty", "");
    dir.write("noise", [0xFF; 300]);
    dir.write("cut", &dir.read("input")[..37]);
    dir.write_long("long");
    dir.write("there", "mine");
    std::os::unix::fs::symlink("input", dir.join("link")).unwrap();
    let nothing = "no violation was found, expected an input that shows one (--target map_extents)";
    let long = "is too long for a fuzz target, expected at most 1048576 bytes";
    for (words, expected) in [
        ("missing -o out", "missing: No such file or directory"),
        ("empty -o out", &format!("empty: {nothing}")),
        ("noise -o out", &format!("noise: {nothing}")),
        ("cut -o out", &format!("cut: {nothing}")),
        ("input -o out", &format!("input: {nothing}")),
        ("long -o out", &format!("long: {long}")),
        ("input -o there", "there: the file exists, expected a new one or --force"),
        ("input -o input --force", "input: is the input file, expected another file"),
        ("input -o link --force", "link: is the input file, expected another file"),
        (
            "input -o out --target=raw_image --as-image --predicate=true",
            "--as-image: raw_image reads image files",
        ),
        (
            "input -o out --predicate true",
            "--predicate: true: ended with exit status: 0 for input and also for an empty input",
        ),
    ] {
        dir.run(&format!("minimize {words}")).fails(2, expected);
    }
    let no_folder = minimize(&dir, "input -o no/out", &predicate());
    no_folder.fails(2, "no/out: No such file or directory");
    assert_eq!(dir.read("there"), b"mine");
    assert_eq!(dir.names(), ["cut", "empty", "input", "link", "long", "noise", "there"]);
}

#[test]
fn interrupted_it_keeps_the_best_so_far() {
    let dir = with_snapshot();
    // The command reports each candidate that it has judged. The first few are quick.
    let judge = predicate().replace(
        "; f",
        "; n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; test $n -lt 12 || sleep 0.2; f",
    );
    let words = ["minimize", "input", "-o", "small", "--predicate", &judge];
    let mut command = dir.command(OURS, &words);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let count = || fs::read_to_string(dir.join("n")).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(60);
    while count().trim().parse().unwrap_or(0) < 16 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("-INT", &child.id().to_string());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(out.contains(", ended early\n"), "{out}");
    let small = program_in(&dir, "small");
    assert!(has_snapshot(&small) && small.operations.len() < 99, "{small}");
}

#[test]
fn standard_input_is_an_input_and_a_fifo_no_output() {
    let dir = with_snapshot();
    let line = format!("{OURS} minimize - -o small --predicate '{}' < input", predicate());
    Ran::of(&mut dir.command("sh", &["-c", &line])).ok();
    assert_eq!(program_in(&dir, "small").operations.len(), 1);
    assert!(Command::new("mkfifo").arg(dir.join("fifo")).status().unwrap().success());
    let ran = minimize(&dir, "input -o fifo --force", &predicate());
    assert_eq!(ran.exits(2).line(), "fifo: is no regular file, expected a new one");
    assert!(!fs::symlink_metadata(dir.join("fifo")).unwrap().file_type().is_file());
}

#[test]
fn it_ends_when_its_tries_do_however_long_the_program_is() {
    let mut program = generate(11, GenerateSettings { operations: 4, compressed: false });
    program.operations = program.operations.repeat(1000);
    let dir = Folder::of([("input", &program.encode())]);
    let judge = format!("f() {{ test $({OURS} disasm \"$1\" | wc -l) -gt 3900; }}; f");
    let start = Instant::now();
    minimize(&dir, "input -o small --tries 5", &judge).ok().has("5 tried in");
    // It took minutes when the minimizer still cloned each operation after its last try.
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn candidates_leave_no_files_to_each_other() {
    let dir = Folder::new();
    fs::copy(corpus("map_extents/chain_sizes"), dir.join("seed")).unwrap();
    let judge = "f() { test $(ls \"$(dirname \"$1\")\" | wc -l) -ge 3; }; f";
    minimize(&dir, "seed -o small --as-image", judge).ok();
    let small = program_in(&dir, "small");
    let names: Vec<_> = small.operations.iter().map(|operation| operation.name()).collect();
    assert_eq!(names, ["overlay", "overlay"]);
}

/// An input of each target, and the fingerprint of a bug that it could have shown.
const PRINTED: [(&str, &str, &str); 4] = [
    ("map_extents", "corpus/map_extents/zero_kinds", "model: kind, zero-allocated → zero-plain"),
    ("refcounts", "corpus/refcounts/order_4", "refcounts: refcount block, the references → fewer"),
    ("hostile", "corpus/hostile/l2_flags", "hostile: walk, a result → a panic"),
    ("raw_image", "corpus/raw_image/large_clusters", "maximal: extents, one → two"),
];

#[test]
fn the_printed_tests_compile_and_pass() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut printed = String::from(
        "//! The output of `qcowfuzz regress` for four seeds: see `tests/cli/minimize.rs`.\n",
    );
    for (target, input, fingerprint) in PRINTED {
        let words = ["regress", input, "--target", target, "--fingerprint", fingerprint];
        let ran = Ran::of(Command::new(OURS).args(words).current_dir(root)).ok();
        printed += &format!("\n{}", ran.out);
    }
    let path = root.join("tests/regress_printed.rs");
    if std::env::var_os("QCOWFUZZ_BLESS").is_some() {
        fs::write(&path, &printed).unwrap();
    }
    // Cargo compiles and runs the file as a test of its own. The comparison ignores its format.
    let words = |text: &str| text.split_whitespace().collect::<String>().replace(",", "");
    let there = fs::read_to_string(path).unwrap();
    assert_eq!(words(&there), words(&printed), "QCOWFUZZ_BLESS=1 writes it");
}

#[test]
fn the_printed_file_can_be_read_again() {
    let file = fs::read(corpus("raw_image/large_clusters")).unwrap();
    let program = Program::decode(&small_program()).encode();
    let dir = Folder::of([("input", &small_program()), ("file", &file)]);
    for (input, target, bytes) in [("input", "map_extents", program), ("file", "raw_image", file)] {
        let (fingerprint, story) = ("model: kind, normal → compressed", "The fault.\nThe fix.");
        let words = ["regress", input, "--text", "--target", target, "--story", story];
        let ran = dir.run(&[&words[..], &["--fingerprint", fingerprint]].concat()[..]);
        let regression = Regression::parse(&ran.out).unwrap();
        assert_eq!((&*regression.fingerprint, &*regression.story), (fingerprint, story));
        assert_eq!(regression.input, bytes);
    }
}

#[test]
fn an_input_that_shows_nothing_is_refused_without_a_fingerprint() {
    let dir = Folder::of([("input", &small_program())]);
    dir.run("regress input").fails(2, "input: no violation was found, expected");
}

#[test]
fn inputs_that_could_not_be_read_again_are_refused() {
    let dir = Folder::of([("input", &small_program())]);
    for (fingerprint, found) in
        [("two\nlines: and more", "two lines: and more"), ("", ""), ("→→→", "→→→")]
    {
        let expected = format!("--fingerprint: found '{found}', expected one line");
        dir.run(&["regress", "input", "--fingerprint", fingerprint]).fails(2, &expected);
    }
    let words = ["regress", "input", "--fingerprint", "1: fn → loop", "--story", " \n"];
    assert!(dir.run(&words).line().starts_with("--story: is empty"));
    // No name begins with a digit or is a keyword, and two programs have different names.
    dir.run(&words[..4]).has("\nfn bug_1_fn_loop_");
}
