//! `measure`: the sizes of new images, as text and as JSON, and the exit codes.

use crate::support::{qcowfuzz, qemu_img, text, with_image};

#[test]
fn measure_prints_sizes_as_text_and_as_json() {
    let dir = with_image();
    let output = qcowfuzz(dir.path(), &["measure", "--size", "1M", "-O", "qcow2"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(text(&output.stdout), "required size: 327680\nfully allocated size: 1376256\n");
    let output = qcowfuzz(dir.path(), &["measure", "--output=json", "disk.qcow2"]);
    let json = "{\n    \"required\": 1048576,\n    \"fully-allocated\": 1048576\n}\n";
    assert_eq!(text(&output.stdout), json);
}

/// `tests/qemu/images/measure.rs` compares more, and without the command.
#[test]
fn measure_prints_what_qemu_img_prints() {
    let dir = with_image();
    for arguments in [
        &["--size", "1.5G", "-O", "qcow2", "-o", "refcount_bits=1,cluster_size=512"][..],
        &["-O", "qcow2", "disk.qcow2"],
        &["-O", "qcow2", "--output", "json", "-o", "cluster_size=4k", "disk.qcow2"],
        &["-O", "qcow2", "-f", "raw", "-o", "backing_file=a,,b", "disk.qcow2"],
        &["-l", "none", "disk.qcow2"],
        &["-O", "qcow2", "-o", "extended_l2=on", "-o", "cluster_size=8k", "disk.qcow2"],
        &["-O", "qcow2", "--size", "7E"],
        &["--size", "1", "-o", "cluster_size=4k"],
    ] {
        let arguments = [&["measure"], arguments].concat();
        let Some(theirs) = qemu_img(dir.path(), &arguments) else { return };
        let ours = qcowfuzz(dir.path(), &arguments);
        assert_eq!(ours.status.code(), theirs.status.code(), "{arguments:?}");
        assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{arguments:?}");
    }
}

#[test]
fn wrong_options_are_named_in_one_line() {
    let dir = with_image();
    for (arguments, message) in [
        (&["none.qcow2"][..], "qcowfuzz: none.qcow2: No such file"),
        (&["-f", "vpc", "disk.qcow2"], "disk.qcow2: not a vpc image"),
        (&["-l", "last", "disk.qcow2"], "disk.qcow2: there is no snapshot 'last'"),
        (&["-f", "raw", "-l", "1", "disk.qcow2"], "the format raw has no snapshots"),
        (&["-o", "compat=1.1", "disk.qcow2"], "'compat' is unknown for the format raw"),
        (&["-O", "qcow2", "-o", "a=b", "disk.qcow2"], "'a' is unknown for the format qcow2"),
        (&["-O", "qcow2", "-o", "compat=9", "--size=1"], "is '9', expected 0.10 or 1.1"),
        (&["-O", "qcow2", "-o", "extended_l2=1", "--size=1"], "is '1', expected on or off"),
        (&["-O", "qcow2", "-o", "cluster_size=4M", "--size=1"], "from 512 to 2097152"),
        (&["-O", "qcow2", "-o", "encrypt.format=luks", "--size=1"], "encryption is not supported"),
        (&["-O", "qcow2", "-o", "compat=1.1,", "--size=1"], "expected NAME=VALUE,..."),
        (&["-O", "qcow2", "--size=3P"], "the disk has 3377699720527872 bytes, expected at most"),
    ] {
        let output = qcowfuzz(dir.path(), &[&["measure"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let error = text(&output.stderr);
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(message), "{error}");
    }
    for arguments in [
        &[][..],
        &["disk.qcow2", "--size", "1"],
        &["--size", "1", "-l", "1"],
        &["--size", "1", "-f", "raw"],
        &["--size", "1x"],
        &["-O", "vmdk", "--size", "1"],
    ] {
        let output = qcowfuzz(dir.path(), &[&["measure"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
