//! Files that are not images, damaged images, and invalid commands, also of `differential`, whose campaigns
//! `tests/differential.rs` runs.

use std::fs;
use std::process::Command;

use qcowfuzz::formats::qcow2::header::PARSED_BYTES;

use crate::skipped::skipped;
use crate::support::{Damaged, error_line, qcowfuzz, qemu_img, text, with_image};

#[test]
fn invalid_headers_are_reported_in_one_line() {
    let dir = with_image();
    let cases: [(&str, usize, &[u8], &str); 17] = [
        ("magic", 0, b"QFI\0", "not a qcow2 image"),
        ("version", 4, &[0, 0, 0, 4], "version is 4, expected 2 or 3"),
        ("cluster_bits low", 20, &[0, 0, 0, 8], "cluster_bits is 8, expected 9 to 21"),
        ("cluster_bits high", 20, &[0, 0, 0, 22], "cluster_bits is 22, expected 9 to 21"),
        ("cluster_bits huge", 20, &[255; 4], "cluster_bits is 4294967295"),
        ("aes", 32, &[0, 0, 0, 1], "unsupported feature: encryption (AES)"),
        ("luks", 32, &[0, 0, 0, 2], "unsupported feature: encryption (LUKS)"),
        ("crypt", 32, &[0, 0, 0, 3], "crypt_method is 3"),
        ("size", 24, &[255; 8], "size is 18446744073709551615, expected less than 2^63"),
        ("l1_size", 36, &[0; 4], "l1_size is 0, expected enough entries for the size"),
        ("l1 offset", 47, &[1], "l1_table_offset is"),
        ("l1 offset past 2^63", 40, &[128], "l1_table_offset is"),
        ("refcount table offset past 2^63", 48, &[128], "refcount_table_offset is"),
        ("snapshots offset past 2^63", 64, &[128], "snapshots_offset is"),
        ("incompatible", 72, &[128], "incompatible_features is"),
        ("order", 96, &[0, 0, 0, 7], "refcount_order is 7, expected 0 to 6"),
        ("header_length", 100, &[255; 4], "header_length is 4294967295"),
    ];
    for (name, at, bytes, expected) in cases {
        assert!(at + bytes.len() <= PARSED_BYTES);
        let mut damaged = Damaged::new(dir.path());
        damaged.put(at as u64, bytes);
        damaged.save(dir.path(), "bad.qcow2");
        for (verb, code) in [("map", 2), ("check", 1)] {
            let output = qcowfuzz(dir.path(), &[verb, "-f", "qcow2", "bad.qcow2"]);
            assert_eq!(output.status.code(), Some(code), "{verb}: {name}");
            let line = error_line(&output);
            assert!(line.starts_with("bad.qcow2: ") && line.contains(expected), "{name}: {line}");
            assert!(output.stdout.is_empty(), "{verb}: {name}");
        }
        if name != "aes" && name != "luks" {
            let Some(qemu) = qemu_img(dir.path(), &["map", "-f", "qcow2", "bad.qcow2"]) else {
                continue;
            };
            assert_eq!(qemu.status.code(), Some(1), "qemu-img accepts {name}");
        }
    }
}

/// The clusters of an encrypted image look like any data. The command never maps them.
#[test]
fn encrypted_images_are_refused_by_the_name_of_the_method() {
    let dir = tempfile::tempdir().unwrap();
    for (method, version, name) in [
        ("luks", "1.1", "LUKS"),
        ("luks", "0.10", "LUKS"),
        ("aes", "1.1", "AES"),
        ("aes", "0.10", "AES"),
    ] {
        let secret = ["--object", "secret,id=key,data=open"];
        let options = format!("encrypt.format={method},encrypt.key-secret=key,compat={version}");
        let quick = if method == "luks" { ",encrypt.iter-time=10" } else { "" };
        let options = format!("{options}{quick}");
        let create = ["create", "-q", "-f", "qcow2", "-o", &options, "disk.qcow2", "1M"];
        let arguments: Vec<_> = create[..2].iter().chain(&secret).chain(&create[2..]).collect();
        let arguments: Vec<&str> = arguments.into_iter().copied().collect();
        let Some(made) = qemu_img(dir.path(), &arguments) else { return };
        assert!(made.status.success(), "{}", text(&made.stderr));
        for (arguments, code) in [
            (&["map", "disk.qcow2"][..], 2),
            (&["map", "--output", "json", "--max-length", "0", "disk.qcow2"], 2),
            (&["check", "disk.qcow2"], 1),
        ] {
            let output = qcowfuzz(dir.path(), arguments);
            assert_eq!(output.status.code(), Some(code), "{method}: {arguments:?}");
            let expected = format!("disk.qcow2: unsupported feature: encryption ({name})");
            assert_eq!(error_line(&output), expected);
            assert!(output.stdout.is_empty());
        }
        // qemu-img does not open it either without the key.
        let Some(theirs) = qemu_img(dir.path(), &["map", "disk.qcow2"]) else { return };
        assert_eq!(theirs.status.code(), Some(1));
    }
}

#[test]
fn files_that_are_no_images_are_reported_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    fs::write(dir.path().join("text"), "some text").unwrap();
    fs::write(dir.path().join("raw"), [0; 4096]).unwrap();
    fs::write(dir.path().join("two\nlines"), "").unwrap();
    fs::create_dir(dir.path().join("directory")).unwrap();
    let made = Command::new("mkfifo").arg(dir.path().join("fifo")).status().unwrap();
    assert!(made.success());
    let cases = [
        ("missing", "No such file or directory"),
        ("directory", "not a regular file"),
        // No process ever writes to the fifo. The command must not wait for it.
        ("fifo", "not a regular file"),
        ("empty", "not a qcow2 image: the file is empty"),
        (
            "text",
            "not a qcow2 image: the file begins with 0x736f6d65, expected 0x514649fb (the file ends after 9 bytes)",
        ),
        ("raw", "not a qcow2 image: the file begins with 0x00000000, expected 0x514649fb"),
    ];
    for (name, expected) in cases {
        for (verb, code) in [("map", 2), ("check", 1)] {
            let output = qcowfuzz(dir.path(), &[verb, "-f", "qcow2", name]);
            assert_eq!(output.status.code(), Some(code), "{verb} {name}");
            let line = error_line(&output);
            assert!(line.starts_with(&format!("{name}: {expected}")), "{line}");
        }
    }
    let output = qcowfuzz(dir.path(), &["map", "-f", "qcow2", "two\nlines"]);
    assert!(error_line(&output).starts_with("two lines: not a qcow2 image"));
    for verb in ["replay", "disasm"] {
        for name in ["missing", "directory"] {
            let output = qcowfuzz(dir.path(), &[verb, name]);
            assert_eq!(output.status.code(), Some(2), "{verb} {name}");
            assert!(error_line(&output).starts_with(&format!("{name}: ")));
        }
    }
}

#[test]
fn an_unreadable_file_is_reported_in_one_line() {
    use std::os::unix::fs::PermissionsExt;
    let dir = with_image();
    let path = dir.path().join("disk.qcow2");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&path).is_ok() {
        skipped("this user may read everything: an_unreadable_file_is_reported_in_one_line");
        return;
    }
    let output = qcowfuzz(dir.path(), &["map", "disk.qcow2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error_line(&output).starts_with("disk.qcow2: Permission denied"));
}

#[test]
fn files_cut_short_are_answered_as_qemu_img_answers_them() {
    let dir = with_image();
    let whole = fs::read(dir.path().join("disk.qcow2")).unwrap();
    let l2 = Damaged::new(dir.path()).l2() as usize;
    let lengths = [
        0,
        3,
        4,
        8,
        24,
        60,
        71,
        72,
        80,
        103,
        104,
        111,
        112,
        200,
        4096,
        l2 + 8,
        l2 + 20,
        whole.len() - 1,
    ];
    for length in lengths {
        fs::write(dir.path().join("cut.qcow2"), &whole[..length]).unwrap();
        let ours = qcowfuzz(dir.path(), &["map", "-f", "qcow2", "--output", "json", "cut.qcow2"]);
        if length < 104 {
            assert_eq!(ours.status.code(), Some(2), "{length} bytes");
            assert!(error_line(&ours).starts_with("cut.qcow2: "));
        } else {
            assert_eq!(ours.status.code(), Some(0), "{length} bytes: {}", text(&ours.stderr));
        }
        if length == 200 {
            let hole = "[{ \"start\": 0, \"length\": 1048576, \"depth\": 0, \"present\": false, \
                        \"zero\": true, \"data\": false, \"compressed\": false}]\n";
            assert_eq!(text(&ours.stdout), hole);
        }
        let arguments = ["map", "-f", "qcow2", "--output=json", "cut.qcow2"];
        let Some(qemu) = qemu_img(dir.path(), &arguments) else { continue };
        assert_eq!(ours.status.success(), qemu.status.success(), "{length} bytes");
        // QEMU reports that data past the end of the file read as zeros if it asks the file system.
        let without_zero = |bytes: &[u8]| {
            text(bytes).replace("\"zero\": true, \"data\": true", "\"zero\": false, \"data\": true")
        };
        assert_eq!(without_zero(&ours.stdout), without_zero(&qemu.stdout), "{length} bytes");
    }
}

#[test]
fn a_walk_that_fails_is_never_reported_as_whole() {
    let dir = with_image();
    let mut damaged = Damaged::new(dir.path());
    let entry = damaged.l2() + 8 * 5;
    damaged.put(entry, &(1u64 << 63 | 0x5_0200).to_be_bytes());
    damaged.save(dir.path(), "bad.qcow2");
    for form in ["json", "human"] {
        let ours = qcowfuzz(dir.path(), &["map", "--output", form, "bad.qcow2"]);
        assert_eq!(ours.status.code(), Some(2));
        let line = error_line(&ours);
        let expected = "bad.qcow2: cluster for guest offset 327680: host offset 0x50200 is not on a cluster boundary";
        assert_eq!(line, expected);
        let out = text(&ours.stdout);
        assert_eq!(out.matches('\n').count(), 3, "what came before stays: {out}");
        assert!(!out.contains(']'), "the list is left open: {out}");
    }
    let Some(qemu) = qemu_img(dir.path(), &["map", "--output=json", "bad.qcow2"]) else { return };
    assert_eq!(qemu.status.code(), Some(1));
    // QEMU does not print the extent that was incomplete.
    let ours = qcowfuzz(dir.path(), &["map", "--output=json", "bad.qcow2"]);
    assert!(text(&ours.stdout).starts_with(text(&qemu.stdout).trim_end_matches('\n')));
}

#[test]
fn other_formats_and_bad_usage_exit_with_2() {
    let dir = with_image();
    let output = qcowfuzz(dir.path(), &["map", "-f", "qed", "disk.qcow2"]);
    assert_eq!(output.status.code(), Some(2));
    let line = "disk.qcow2: format 'qed' is not supported, expected one of qcow2, raw, vpc, vhdx, vmdk, vdi";
    assert_eq!(error_line(&output), line);
    assert!(qcowfuzz(dir.path(), &["map", "-f", "qcow2", "disk.qcow2"]).status.success());
    let bad: [&[&str]; 8] = [
        &[],
        &["fly"],
        &["map"],
        &["map", "--output", "xml", "disk.qcow2"],
        &["map", "--start-offset", "-1", "disk.qcow2"],
        &["map", "--max-length", "8E", "disk.qcow2"],
        &["replay"],
        &["replay", "--target", "nothing", "program"],
    ];
    for arguments in bad {
        let output = qcowfuzz(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{arguments:?}");
    }
}

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
