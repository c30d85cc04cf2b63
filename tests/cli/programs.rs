//! `replay`, `disasm`, `asm` and `export`.

use std::fs;
use std::process::{Command, Stdio};

use crate::replay::program_in;
use crate::support::{error_line, qcowfuzz, small_program, text, with_image};

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
