//! `regress` prints Rust tests that compile and pass. `tests/regress_printed.rs` is its output.

use std::fs;
use std::path::Path;

use qcowfuzz::findings::regression::Regression;
use qcowfuzz::programs::Program;

use crate::support::{error_line, qcowfuzz, small_program, text};

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
        "//! The output of `qcowfuzz regress` for four seeds: see `tests/cli/regress.rs`.\n",
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
