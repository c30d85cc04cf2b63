//! `minimize` with a predicate, because no input shows a bug here: its results, the inputs that it refuses, and the
//! files that it leaves. `regress` prints Rust tests that compile and pass. `cargo xtask from-crash` runs `minimize` by
//! fingerprint, with a planted bug.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use qcowfuzz::findings::regression::Regression;
use qcowfuzz::programs::Program;
use qcowfuzz::programs::generate::{GenerateSettings, generate};

use crate::support::{error_line, qcowfuzz, small_program, text, with_image};

/// Returns a program of 100 operations, one of which takes a snapshot.
fn with_snapshot(dir: &Path) {
    let mut program = generate(11, GenerateSettings { operations: 99, compressed: true });
    program.operations.retain(|operation| operation.name() != "snapshot");
    let snapshot = qcowfuzz::programs::Operation::Snapshot {};
    program.operations.insert(50, snapshot);
    fs::write(dir.join("input"), program.encode()).unwrap();
}

/// Returns a command that exits with 7 if a program has a snapshot.
fn predicate() -> String {
    let bin = bin();
    format!("f() {{ {bin} disasm \"$1\" | grep -q ^snapshot && exit 7; }}; f")
}

#[test]
fn a_command_judges_by_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    with_snapshot(dir.path());
    let before = fs::read(dir.path().join("input")).unwrap();
    let predicate = predicate();
    let arguments = ["minimize", "input", "-o", "small", "--predicate", &predicate];
    let output = qcowfuzz(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "no progress where there is no terminal");
    let small = fs::read(dir.path().join("small")).unwrap();
    let program = Program::decode(&small);
    assert_eq!((program.operations.len(), program.operations[0].name()), (1, "snapshot"));
    assert_eq!(program.encode(), small);
    assert!(text(&output.stdout).contains(": exit status: 7\nsmall: "), "{}", text(&output.stdout));
    assert!(text(&output.stdout).ends_with(&program.to_string()));
    assert_eq!(fs::read(dir.path().join("input")).unwrap(), before);
    // Again, as JSON: nothing is left to remove.
    let arguments = ["minimize", "small", "-o", "small2", "--json", "--predicate", &predicate];
    let output = qcowfuzz(dir.path(), &arguments);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["operations_before"], &printed["operations"]), (&1.into(), &1.into()));
    assert_eq!((&printed["complete"], &printed["kept"]), (&true.into(), &0.into()));
    assert_eq!(fs::read(dir.path().join("small2")).unwrap(), small);
}

#[test]
fn a_command_gets_the_image() {
    let dir = tempfile::tempdir().unwrap();
    with_snapshot(dir.path());
    let predicate = "f() { test $(od -An -tu1 -j63 -N1 \"$1\") -gt 0; }; f";
    let arguments = [
        "minimize",
        "input",
        "-o",
        "small",
        "--tries",
        "400",
        "--as-image",
        "--predicate",
        predicate,
    ];
    let output = qcowfuzz(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let small = Program::decode(&fs::read(dir.path().join("small")).unwrap());
    assert!(small.operations.iter().any(|operation| operation.name() == "snapshot"), "{small}");
    assert!(small.operations.len() < 4, "{small}");
}

#[test]
fn a_file_is_cut_and_zeroed() {
    let dir = with_image();
    let length = |name: &str| fs::metadata(dir.path().join(name)).unwrap().len();
    let predicate = "f() { test $(head -c 3 \"$1\") = QFI && exit 7; }; f";
    let minimize = ["minimize", "disk.qcow2", "--target=raw_image", "--predicate", predicate];
    let output = qcowfuzz(dir.path(), &[&minimize[..], &["-o", "small"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(fs::read(dir.path().join("small")).unwrap(), b"QFI");
    let out = text(&output.stdout);
    let lengths = format!("→ 3 bytes that are not 0, {} → 3 bytes;", length("disk.qcow2"));
    assert!(out.contains(&lengths) && out.ends_with("\n\nfile bytes=3\n0x0 51 46 49\n"), "{out}");
    let output = qcowfuzz(dir.path(), &[&minimize[..], &["-o", "small2", "--json"]].concat());
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["nonzero_bytes"], &printed["complete"]), (&3.into(), &true.into()));
    assert_eq!(printed["file"], "file bytes=3\n0x0 51 46 49\n");
}

#[test]
fn inputs_that_cannot_be_minimized_are_reported_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    with_snapshot(dir.path());
    let at = |name: &str| dir.path().join(name);
    fs::write(at("empty"), "").unwrap();
    fs::write(at("noise"), [0xFF; 300]).unwrap();
    fs::write(at("cut"), &fs::read(at("input")).unwrap()[..37]).unwrap();
    fs::File::create(at("long")).unwrap().set_len(100 << 20).unwrap();
    fs::write(at("there"), "mine").unwrap();
    std::os::unix::fs::symlink("input", at("link")).unwrap();
    let nothing = "no violation was found, expected an input that shows one (--target map_extents)";
    let long = "is too long for a fuzz target, expected at most 1048576 bytes";
    let cases: [(&[&str], &str); 12] = [
        (&["missing", "-o", "out"], "missing: No such file or directory"),
        (&["empty", "-o", "out"], &format!("empty: {nothing}")),
        (&["noise", "-o", "out"], &format!("noise: {nothing}")),
        (&["cut", "-o", "out"], &format!("cut: {nothing}")),
        (&["input", "-o", "out"], &format!("input: {nothing}")),
        (&["long", "-o", "out"], &format!("long: {long}")),
        (&["input", "-o", "there"], "there: the file exists, expected a new one or --force"),
        (&["input", "-o", "input", "--force"], "input: is the input file, expected another file"),
        (&["input", "-o", "link", "--force"], "link: is the input file, expected another file"),
        (
            &["input", "-o", "out", "--target=raw_image", "--as-image", "--predicate=true"],
            "--as-image: raw_image reads image files",
        ),
        (
            &["input", "-o", "out", "--predicate", "true"],
            "--predicate: true: ended with exit status: 0 for input and also for an empty input",
        ),
        (
            &["input", "-o", "no/out", "--predicate", &predicate()],
            "no/out: No such file or directory",
        ),
    ];
    for (arguments, expected) in cases {
        let output = qcowfuzz(dir.path(), &[&["minimize"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error_line(&output).starts_with(expected), "{}", error_line(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(!at("out").exists());
    assert_eq!(fs::read(at("there")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 7, "nothing is left behind");
}

#[test]
fn interrupted_it_keeps_the_best_so_far() {
    let dir = tempfile::tempdir().unwrap();
    with_snapshot(dir.path());
    // The command reports each candidate that it has judged. The first few are quick.
    let judge = predicate().replace(
        "; f",
        "; n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; test $n -lt 12 || sleep 0.2; f",
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"))
        .args(["minimize", "input", "-o", "small", "--predicate", &judge])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let count = || fs::read_to_string(dir.path().join("n")).unwrap_or_default();
    let deadline = Instant::now() + Duration::from_secs(60);
    while count().trim().parse().unwrap_or(0) < 16 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(out.contains(", ended early\n"), "{out}");
    let small = Program::decode(&fs::read(dir.path().join("small")).unwrap());
    assert!(small.operations.iter().any(|operation| operation.name() == "snapshot"), "{small}");
    assert!(small.operations.len() < 99, "{}", small.operations.len());
}

#[test]
fn standard_input_is_an_input_and_a_fifo_no_output() {
    let dir = tempfile::tempdir().unwrap();
    with_snapshot(dir.path());
    let line = format!("{} minimize - -o small --predicate '{}' < input", bin(), predicate());
    let done = Command::new("sh").args(["-c", &line]).current_dir(dir.path()).output().unwrap();
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert_eq!(Program::decode(&fs::read(dir.path().join("small")).unwrap()).operations.len(), 1);
    assert!(Command::new("mkfifo").arg(dir.path().join("fifo")).status().unwrap().success());
    let arguments = ["minimize", "input", "-o", "fifo", "--force", "--predicate", &predicate()];
    let output = qcowfuzz(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(error_line(&output), "fifo: is no regular file, expected a new one");
    let kind = fs::symlink_metadata(dir.path().join("fifo")).unwrap().file_type();
    assert!(!kind.is_file());
}

#[test]
fn it_ends_when_its_tries_do_however_long_the_program_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = generate(11, GenerateSettings { operations: 4, compressed: false });
    program.operations = program.operations.repeat(1000);
    fs::write(dir.path().join("input"), program.encode()).unwrap();
    let judge = format!("f() {{ test $({} disasm \"$1\" | wc -l) -gt 3900; }}; f", bin());
    let start = Instant::now();
    let arguments = ["minimize", "input", "-o", "small", "--tries", "5", "--predicate", &judge];
    let output = qcowfuzz(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("5 tried in"), "{}", &text(&output.stdout)[..200]);
    // It took minutes when the minimizer still cloned each operation after its last try.
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn candidates_leave_no_files_to_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/map_extents/chain_sizes");
    let judge = "f() { test $(ls \"$(dirname \"$1\")\" | wc -l) -ge 3; }; f";
    let seed = seed.to_str().unwrap();
    let arguments = ["minimize", seed, "-o", "small", "--as-image", "--predicate", judge];
    let output = qcowfuzz(dir.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let small = Program::decode(&fs::read(dir.path().join("small")).unwrap());
    let names: Vec<_> = small.operations.iter().map(|operation| operation.name()).collect();
    assert_eq!(names, ["overlay", "overlay"]);
}

fn bin() -> &'static str {
    env!("CARGO_BIN_EXE_qcowfuzz")
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
        let arguments = ["regress", input, "--target", target, "--fingerprint", fingerprint];
        let output = qcowfuzz(root, &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        printed.push('\n');
        printed.push_str(text(&output.stdout));
    }
    let path = root.join("tests/regress_printed.rs");
    if std::env::var_os("QCOWFUZZ_BLESS").is_some() {
        fs::write(&path, &printed).unwrap();
    }
    // Cargo compiles and runs the file as a test of its own. The comparison ignores its format.
    let words = |text: &str| text.split_whitespace().collect::<String>().replace(",", "");
    assert_eq!(
        words(&fs::read_to_string(path).unwrap()),
        words(&printed),
        "QCOWFUZZ_BLESS=1 writes it"
    );
}

#[test]
fn the_printed_file_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("input"), small_program()).unwrap();
    let fingerprint = "model: kind, normal → compressed";
    let story = "The fault.\nThe fix.";
    let arguments = ["regress", "input", "--text", "--story", story, "--fingerprint", fingerprint];
    let output = qcowfuzz(dir.path(), &arguments);
    let regression = Regression::parse(text(&output.stdout)).unwrap();
    assert_eq!((&*regression.fingerprint, &*regression.story), (fingerprint, story));
    assert_eq!(regression.input, Program::decode(&small_program()).encode());
}

#[test]
fn the_printed_file_of_a_file_can_be_read_again() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let seed = "corpus/raw_image/large_clusters";
    let arguments =
        ["regress", seed, "--text", "--target=raw_image", "--story=A story.", "--fingerprint=a: b"];
    let output = qcowfuzz(root, &arguments);
    let regression = Regression::parse(text(&output.stdout)).unwrap();
    assert_eq!(regression.input, fs::read(root.join(seed)).unwrap());
}

#[test]
fn an_input_that_shows_nothing_is_refused_without_a_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("input"), small_program()).unwrap();
    let output = qcowfuzz(dir.path(), &["regress", "input"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(error_line(&output).starts_with("input: no violation was found, expected"));
}

#[test]
fn inputs_that_could_not_be_read_again_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("input"), small_program()).unwrap();
    for (arguments, expected) in [
        (
            ["--fingerprint", "two\nlines: and more"],
            "--fingerprint: found 'two lines: and more', expected one line",
        ),
        (["--fingerprint", ""], "--fingerprint: found '', expected one line"),
        (["--fingerprint", "→→→"], "--fingerprint: found '→→→', expected one line"),
    ] {
        let output = qcowfuzz(dir.path(), &[&["regress", "input"], &arguments[..]].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        assert!(error_line(&output).starts_with(expected), "{}", error_line(&output));
    }
    let arguments = ["regress", "input", "--fingerprint", "1: fn → loop", "--story", " \n"];
    assert!(error_line(&qcowfuzz(dir.path(), &arguments)).starts_with("--story: is empty"));
    // No name begins with a digit or is a keyword, and two programs have different names.
    let arguments = ["regress", "input", "--fingerprint", "1: fn → loop"];
    let output = qcowfuzz(dir.path(), &arguments);
    assert!(text(&output.stdout).contains("\nfn bug_1_fn_loop_"), "{}", text(&output.stdout));
}
