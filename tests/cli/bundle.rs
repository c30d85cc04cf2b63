//! `bundle`: the inputs that it refuses. `cargo xtask from-crash` runs it with a planted bug, which the archive shows
//! again.

use std::fs;

use crate::support::{error_line, qcowfuzz, small_program};

#[test]
fn inputs_that_cannot_be_packed_are_reported_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("input"), small_program()).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("there"), "mine").unwrap();
    fs::File::create(at("long")).unwrap().set_len(100 << 20).unwrap();
    let nothing = "no violation was found, expected an input that shows one";
    let cases: [(&[&str], &str); 6] = [
        (&["missing", "-o", "out"], "missing: No such file or directory"),
        (&["input", "-o", "out"], &format!("input: {nothing} (--target map_extents)")),
        (
            &["empty", "-o", "out", "--target", "raw_image"],
            &format!("empty: {nothing} (--target raw_image)"),
        ),
        (&["long", "-o", "out"], "long: is too long for a fuzz target"),
        (&["input", "-o", "there"], "there: the file exists, expected a new one or --force"),
        (&["input", "-o", "input", "--force"], "input: is the input file, expected another file"),
    ];
    for (arguments, expected) in cases {
        let output = qcowfuzz(dir.path(), &[&["bundle"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error_line(&output).starts_with(expected), "{}", error_line(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(!at("out").exists());
    assert_eq!(fs::read(at("there")).unwrap(), b"mine");
}
