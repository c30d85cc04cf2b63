//! `qcowfuzz differential`: bad input. `tests/differential.rs` runs campaigns.

use std::fs;

use crate::support::{qcowfuzz, text};

/// Runs the verb in a new folder, and returns the exit code and the message.
fn failure(options: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("no-recording"), "text").unwrap();
    let arguments = [&["differential", "--workdir", "work"], options].concat();
    let output = qcowfuzz(dir.path(), &arguments);
    (output.status.code(), text(&output.stderr).to_string())
}

#[test]
fn a_campaign_that_cannot_run_exits_with_2() {
    for (options, expected) in [
        (&["--qemu-img", "missing/qemu-img"][..], "missing/qemu-img: cannot be run"),
        (&["--qemu-img", "no-recording"], "no-recording: cannot be run"),
        (&["--against-recording", "missing"], "missing: "),
        (&["--against-recording", "no-recording"], "no-recording: "),
        (&["--replay", "1"], "expected SEED:ITERATION, two numbers"),
        (&["--formats", "qcow3"], "expected one of qcow2"),
        (&["--operations", "melt"], "'melt'"),
        (&["--lacks", "colours"], "expected a feature, found 'colours'"),
        (
            &["--formats", "vhdx", "--lacks", "vhdx images", "--against-recording", "x"],
            "cannot be used",
        ),
        (&["--jobs", "0"], "'0'"),
        (&["--record", "file", "--against-recording", "other"], "cannot be used with"),
    ] {
        let (code, message) = failure(options);
        assert_eq!(code, Some(2), "{options:?}: {message}");
        assert!(message.contains(expected), "{options:?}: {message}");
    }
}

#[test]
fn a_work_folder_that_is_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let output =
        qcowfuzz(dir.path(), &["differential", "--workdir", "file", "--against-recording", "file"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("file: "), "{}", text(&output.stderr));
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"");
}
