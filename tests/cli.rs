//! The command, as a person runs it: what it prints, how it exits, and what it makes of bad input.
//! Where qemu-img is at hand it is asked the same.

#![cfg(feature = "cli")]

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use qcowfuzz::qcow2::header::PARSED_BYTES;
use qcowfuzz::vm::generate::{Wanted, generate};
use qcowfuzz::vm::text::assemble;

const CLUSTER: u64 = 65536;

/// Runs the command in `dir`.
fn qcowfuzz(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

/// Runs qemu-img in `dir`. `None` where there is none, which is told, and fails where it is required.
fn qemu_img(dir: &Path, arguments: &[&str]) -> Option<Output> {
    qemu("qemu-img", dir, arguments)
}

fn qemu(tool: &str, dir: &Path, arguments: &[&str]) -> Option<Output> {
    match Command::new(tool).args(arguments).current_dir(dir).stdin(Stdio::null()).output() {
        Ok(output) => Some(output),
        Err(error) => {
            let required = std::env::var_os("QCOWFUZZ_REQUIRE_QEMU").is_some_and(|set| set == "1");
            assert!(!required, "{tool}: {error}, and QCOWFUZZ_REQUIRE_QEMU=1");
            eprintln!("skipped: {tool}: {error}");
            None
        }
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The one line that a failing command says, without the command's name.
fn told(output: &Output) -> &str {
    let line = text(&output.stderr);
    assert_eq!(line.lines().count(), 1, "not one line: {line:?}");
    line.trim_end().strip_prefix("qcowfuzz: ").unwrap_or_else(|| panic!("no name: {line:?}"))
}

/// A program that writes two clusters apart from each other, then zeros, with 64 KiB clusters.
fn small_program() -> Vec<u8> {
    let image = generate(7, Wanted { operations: 0, compressed: false }).to_string();
    let line: Vec<_> = image
        .split_whitespace()
        .map(|word| match word.split_once('=') {
            Some(("version", _)) => "version=3",
            Some(("cluster_bits", _)) => "cluster_bits=16",
            Some(("refcount_order", _)) => "refcount_order=4",
            Some(("features", _)) => "features=none",
            Some(("size", _)) => "size=16<<16+0",
            Some(("blocks", _)) => "blocks=append",
            Some(("table", _)) => "table=append",
            _ => word,
        })
        .collect();
    let operations = "write at=start+1 clusters=1\nwrite at=start+4 clusters=2\nzero at=start+8 clusters=1 keep=no\n";
    assemble(&format!("{}\n{operations}", line.join(" "))).unwrap().encode()
}

/// A directory with `program` and the image `disk.qcow2` that it builds.
fn with_image() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("program"), small_program()).unwrap();
    let made = qcowfuzz(dir.path(), &["export", "program", "-o", "disk.qcow2", "--fill"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    dir
}

/// The image of [`with_image`], as bytes to be damaged.
struct Damaged {
    bytes: Vec<u8>,
}

impl Damaged {
    fn new(dir: &Path) -> Self {
        Self { bytes: fs::read(dir.join("disk.qcow2")).unwrap() }
    }

    fn get(&self, at: u64) -> u64 {
        let at = at as usize;
        u64::from_be_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Where the L2 table lies; the image has one, and one refcount block.
    fn l2(&self) -> u64 {
        self.get(self.get(40)) & 0x00FF_FFFF_FFFF_FE00
    }

    fn set_refcount(&mut self, cluster: u64, count: u16) {
        let block = self.get(self.get(48));
        self.put(block + cluster * 2, &count.to_be_bytes());
    }

    fn save(&self, dir: &Path, name: &str) {
        fs::write(dir.join(name), &self.bytes).unwrap();
    }
}

#[test]
fn headers_that_no_reader_accepts_are_told_in_one_line() {
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
            let output = qcowfuzz(dir.path(), &[verb, "bad.qcow2"]);
            assert_eq!(output.status.code(), Some(code), "{verb}: {name}");
            let line = told(&output);
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

#[test]
fn files_that_are_no_images_are_told_in_one_line() {
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
        // Nobody ever writes to it: it must not be waited for.
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
            let output = qcowfuzz(dir.path(), &[verb, name]);
            assert_eq!(output.status.code(), Some(code), "{verb} {name}");
            let line = told(&output);
            assert!(line.starts_with(&format!("{name}: {expected}")), "{line}");
        }
    }
    let output = qcowfuzz(dir.path(), &["map", "two\nlines"]);
    assert!(told(&output).starts_with("two lines: not a qcow2 image"));
    for verb in ["replay", "disasm"] {
        for name in ["missing", "directory"] {
            let output = qcowfuzz(dir.path(), &[verb, name]);
            assert_eq!(output.status.code(), Some(2), "{verb} {name}");
            assert!(told(&output).starts_with(&format!("{name}: ")));
        }
    }
}

#[test]
fn an_unreadable_file_is_told_in_one_line() {
    use std::os::unix::fs::PermissionsExt;
    let dir = with_image();
    let path = dir.path().join("disk.qcow2");
    fs::set_permissions(&path, fs::Permissions::from_mode(0)).unwrap();
    if fs::File::open(&path).is_ok() {
        eprintln!("skipped: this user may read everything");
        return;
    }
    let output = qcowfuzz(dir.path(), &["map", "disk.qcow2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).starts_with("disk.qcow2: Permission denied"));
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
        let ours = qcowfuzz(dir.path(), &["map", "--output", "json", "cut.qcow2"]);
        if length < 104 {
            assert_eq!(ours.status.code(), Some(2), "{length} bytes");
            assert!(told(&ours).starts_with("cut.qcow2: "));
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
        // Of data past the end QEMU says that they read as zeros, where it asks.
        let without_zero = |bytes: &[u8]| {
            text(bytes).replace("\"zero\": true, \"data\": true", "\"zero\": false, \"data\": true")
        };
        assert_eq!(without_zero(&ours.stdout), without_zero(&qemu.stdout), "{length} bytes");
    }
}

#[test]
fn map_prints_what_qemu_img_prints() {
    let dir = with_image();
    let windows: [&[&str]; 11] = [
        &[],
        &["--start-offset=64k"],
        &["--start-offset=100000", "--max-length=1000"],
        &["--start-offset=0x12345", "--max-length=0.25M"],
        &["--max-length=0"],
        &["--max-length=1"],
        &["--start-offset=1M"],
        &["--start-offset=1048575"],
        &["--start-offset=1048577", "--max-length=5"],
        &["--start-offset=7E"],
        &["--start-offset=9223372036854775807", "--max-length=9223372036854775807"],
    ];
    for window in windows {
        for form in [&["--output=json"][..], &["--output=human"], &[]] {
            let arguments = [&["map"], window, form, &["./disk.qcow2"]].concat();
            let ours = qcowfuzz(dir.path(), &arguments);
            assert!(ours.status.success() && ours.stderr.is_empty());
            let Some(qemu) = qemu_img(dir.path(), &arguments) else { return };
            assert!(qemu.status.success());
            assert_eq!(text(&ours.stdout), text(&qemu.stdout), "{arguments:?}");
        }
    }
}

/// The one known difference in windows: QEMU 10.0.2 adds start and length in 64 signed bits, and takes a
/// window whose end overflows for an empty one. Here it reaches to the end of the disk.
#[test]
fn a_window_that_ends_past_2_63_reaches_to_the_end_of_the_disk() {
    let dir = with_image();
    let window = ["--start-offset=1", "--max-length=9223372036854775807"];
    let arguments = [&["map", "--output=json"], &window[..], &["disk.qcow2"]].concat();
    let ours = qcowfuzz(dir.path(), &arguments);
    let open = ["map", "--output=json", "--start-offset=1", "disk.qcow2"];
    assert_eq!(text(&ours.stdout), text(&qcowfuzz(dir.path(), &open).stdout));
    let Some(qemu) = qemu_img(dir.path(), &arguments) else { return };
    let empty = "[{ \"start\": 1, \"length\": 0, \"depth\": 0, \"present\": false, \"zero\": false, \
                 \"data\": false, \"compressed\": false}]\n";
    assert_eq!(text(&qemu.stdout), empty, "QEMU answers otherwise now: the difference may be gone");
}

#[test]
fn a_window_without_a_byte_is_one_empty_record() {
    let dir = with_image();
    let ours = qcowfuzz(dir.path(), &["map", "--output=json", "--start-offset=1P", "disk.qcow2"]);
    let empty = "[{ \"start\": 1125899906842624, \"length\": 0, \"depth\": 0, \"present\": false, \
                 \"zero\": false, \"data\": false, \"compressed\": false}]\n";
    assert_eq!(text(&ours.stdout), empty);
    // A disk without a byte, too.
    let mut damaged = Damaged::new(dir.path());
    damaged.put(24, &[0; 8]);
    damaged.save(dir.path(), "zero.qcow2");
    let ours = qcowfuzz(dir.path(), &["map", "--output=json", "zero.qcow2"]);
    assert_eq!(text(&ours.stdout), empty.replace("1125899906842624", "0"));
    let ours = qcowfuzz(dir.path(), &["map", "zero.qcow2"]);
    assert_eq!(text(&ours.stdout).lines().count(), 1);
    assert!(ours.status.success());
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
        let line = told(&ours);
        let expected = "bad.qcow2: cluster for guest offset 327680: host offset 0x50200 is not on a cluster boundary";
        assert_eq!(line, expected);
        let out = text(&ours.stdout);
        assert_eq!(out.matches('\n').count(), 3, "what came before stays: {out}");
        assert!(!out.contains(']'), "the list is left open: {out}");
    }
    let Some(qemu) = qemu_img(dir.path(), &["map", "--output=json", "bad.qcow2"]) else { return };
    assert_eq!(qemu.status.code(), Some(1));
    // QEMU loses the extent that was not complete.
    let ours = qcowfuzz(dir.path(), &["map", "--output=json", "bad.qcow2"]);
    assert!(text(&ours.stdout).starts_with(text(&qemu.stdout).trim_end_matches('\n')));
}

#[test]
fn compressed_data_has_no_human_form() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("raw"), [b'y'; 262_144]).unwrap();
    let arguments = ["convert", "-f", "raw", "-c", "-O", "qcow2", "raw", "disk.qcow2"];
    let Some(_) = qemu_img(dir.path(), &arguments) else { return };
    let ours = qcowfuzz(dir.path(), &["map", "disk.qcow2"]);
    assert_eq!(ours.status.code(), Some(2));
    assert!(told(&ours).contains("compressed data at guest offset 0"));
    let qemu = qemu_img(dir.path(), &["map", "disk.qcow2"]).unwrap();
    assert_eq!((qemu.status.code(), text(&qemu.stdout)), (Some(1), text(&ours.stdout)));
    let ours = qcowfuzz(dir.path(), &["map", "--output=json", "disk.qcow2"]);
    let qemu = qemu_img(dir.path(), &["map", "--output=json", "disk.qcow2"]).unwrap();
    assert_eq!(text(&ours.stdout), text(&qemu.stdout));
}

#[test]
fn other_formats_and_bad_usage_exit_with_2() {
    let dir = with_image();
    let output = qcowfuzz(dir.path(), &["map", "-f", "raw", "disk.qcow2"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(told(&output), "disk.qcow2: format 'raw' is not supported, expected qcow2");
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

#[test]
fn every_verb_explains_itself() {
    for verb in ["map", "check", "replay", "disasm", "asm", "export"] {
        let output = qcowfuzz(Path::new("."), &[verb, "--help"]);
        assert!(output.status.success());
        let help = text(&output.stdout);
        assert!(help.contains("Exit codes") && help.contains("Example: "), "{help}");
    }
}

/// An image of a million extents in a sparse file: version 2, every other cluster in use.
fn long_image(dir: &Path) -> PathBuf {
    let path = dir.join("long.qcow2");
    let file = fs::File::create(&path).unwrap();
    let tables = 16u64;
    let mut header = Vec::new();
    header.extend(b"QFI\xfb\0\0\0\x02");
    header.extend([0; 12]);
    header.extend(16u32.to_be_bytes());
    header.extend((tables * CLUSTER / 8 * CLUSTER).to_be_bytes());
    header.extend([0; 4]);
    header.extend((tables as u32).to_be_bytes());
    for offset in [2 * CLUSTER, CLUSTER] {
        header.extend(offset.to_be_bytes());
    }
    header.extend(1u32.to_be_bytes());
    header.extend([0; 12]);
    file.write_all_at(&header, 0).unwrap();
    for table in 0..tables {
        let at = (3 + table) * CLUSTER;
        file.write_all_at(&at.to_be_bytes(), 2 * CLUSTER + table * 8).unwrap();
        let entries = (0..CLUSTER / 8).map(|entry| (entry % 2) * (100 + entry) * CLUSTER);
        let bytes: Vec<u8> = entries.flat_map(u64::to_be_bytes).collect();
        file.write_all_at(&bytes, at).unwrap();
    }
    path
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = long_image(dir.path());
    for form in ["json", "human"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"))
            .args(["map", "--output", form])
            .arg(&path)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 100];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{form}");
        assert_eq!(text(&output.stderr), "", "{form}");
    }
}

#[test]
fn an_output_that_is_full_is_an_error() {
    let dir = with_image();
    let Ok(full) = fs::OpenOptions::new().write(true).open("/dev/full") else {
        eprintln!("skipped: no /dev/full here");
        return;
    };
    let output = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"))
        .args(["map", "disk.qcow2"])
        .current_dir(dir.path())
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).starts_with("standard output: "));
}

#[test]
fn check_answers_as_qemu_img_check() {
    let dir = with_image();
    let sound = Damaged::new(dir.path());
    let l2 = sound.l2();
    let data = sound.get(l2 + 8) & !(1 << 63);
    let end = sound.bytes.len() as u64 / CLUSTER;
    let table = sound.get(48);
    let damage: [(&str, i32, &dyn Fn(&mut Damaged)); 14] = [
        ("sound", 0, &|_| {}),
        ("leaks", 3, &|image| {
            image.bytes.extend([0; 3 * CLUSTER as usize]);
            image.set_refcount(end, 1);
            image.set_refcount(end + 2, 3);
        }),
        ("counted past the end", 0, &|image| image.set_refcount(end + 9, 1)),
        ("a count too low", 2, &|image| image.set_refcount(data / CLUSTER, 0)),
        ("both", 2, &|image| {
            image.set_refcount(data / CLUSTER, 0);
            image.bytes.extend([0; CLUSTER as usize]);
            image.set_refcount(end, 1);
        }),
        ("not copied", 2, &|image| image.put(l2 + 8, &data.to_be_bytes())),
        ("used twice", 2, &|image| image.put(l2 + 16, &(data | 1 << 63).to_be_bytes())),
        ("reserved bits of an L2 entry", 2, &|image| image.bytes[l2 as usize + 8] |= 0x20),
        ("reserved bits of an L1 entry", 2, &|image| {
            let l1 = image.get(40);
            image.bytes[l1 as usize] |= 0x20;
        }),
        ("reserved bits of a refcount table entry", 2, &|image| {
            image.bytes[table as usize + 7] |= 1
        }),
        ("an unaligned cluster", 2, &|image| {
            image.put(l2 + 16, &((data + 512) | 1 << 63).to_be_bytes());
        }),
        ("a cluster past the end", 2, &|image| {
            image.put(l2 + 16, &(end * CLUSTER | 1 << 63).to_be_bytes());
            image.set_refcount(end, 1);
        }),
        ("the file cut inside its last cluster", 0, &|image| {
            let length = image.bytes.len() - 1000;
            image.bytes.truncate(length);
        }),
        ("data in a table", 2, &|image| image.put(l2 + 16, &(l2 | 1 << 63).to_be_bytes())),
    ];
    for (name, code, change) in damage {
        let mut image = Damaged { bytes: sound.bytes.clone() };
        change(&mut image);
        image.save(dir.path(), "damaged.qcow2");
        for form in ["--output=human", "--output=json"] {
            let ours = qcowfuzz(dir.path(), &["check", form, "damaged.qcow2"]);
            assert_eq!(ours.status.code(), Some(code), "{name}: {}", text(&ours.stderr));
            assert_eq!(ours.stderr.is_empty(), code == 0, "{name}");
            let arguments = ["check", form, "damaged.qcow2"];
            let Some(qemu) = qemu_img(dir.path(), &arguments) else { continue };
            assert_eq!(qemu.status.code(), Some(code), "{name}: {}", text(&qemu.stderr));
            if name.contains("refcount table entry") {
                // QEMU does not count the block of such an entry as referenced: it tells of a leak
                // that goes away with the bit. The error is the same.
                assert!(text(&qemu.stderr).contains("has reserved bits set\nLeaked cluster"));
                continue;
            }
            assert_eq!(text(&ours.stdout), text(&qemu.stdout), "{name}");
            let miscounts = |output: &Output| {
                let lines = text(&output.stderr).lines().filter(|line| line.contains("reference="));
                lines.map(str::to_string).collect::<Vec<_>>()
            };
            assert_eq!(miscounts(&ours), miscounts(&qemu), "{name}");
        }
    }
}

#[test]
fn a_check_that_cannot_be_done_exits_with_1() {
    let dir = with_image();
    let sound = Damaged::new(dir.path());
    let table = sound.get(48);
    for (block, what) in
        [(0x1_0200u64, "is not on a cluster boundary"), (1 << 63, "lies past 2^63")]
    {
        let mut image = Damaged { bytes: sound.bytes.clone() };
        image.put(table, &block.to_be_bytes());
        image.save(dir.path(), "damaged.qcow2");
        let ours = qcowfuzz(dir.path(), &["check", "damaged.qcow2"]);
        assert_eq!(ours.status.code(), Some(1));
        let expected = format!(
            "damaged.qcow2: refcount table entry 0: the refcount block at {block:#x} {what}"
        );
        assert_eq!(told(&ours), expected);
        assert!(ours.stdout.is_empty());
        let Some(qemu) = qemu_img(dir.path(), &["check", "damaged.qcow2"]) else { continue };
        assert_eq!(qemu.status.code(), Some(1));
    }
}

#[test]
fn check_counts_clusters_as_qemu_img_check() {
    let dir = tempfile::tempdir().unwrap();
    for rng_seed in 0..40 {
        let program = generate(rng_seed, Wanted { operations: 24, compressed: true });
        fs::write(dir.path().join("program"), program.encode()).unwrap();
        let made = qcowfuzz(dir.path(), &["export", "program", "-o", "disk.qcow2", "--force"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let arguments = ["check", "--output=json", "disk.qcow2"];
        let ours = qcowfuzz(dir.path(), &arguments);
        assert_eq!(ours.status.code(), Some(0), "seed {rng_seed}: {}", text(&ours.stderr));
        let Some(qemu) = qemu_img(dir.path(), &arguments) else { return };
        assert_eq!(qemu.status.code(), Some(0));
        assert_eq!(text(&ours.stdout), text(&qemu.stdout), "seed {rng_seed}\n{program}");
    }
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
        assert!(out.ends_with(text(&disasm.stdout)), "{out}");
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
    assert!(told(&again).starts_with("dumped.qcow2: the file is there already"));
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
    // From standard input, too.
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
    assert_eq!(told(&output), "bad: line 1: 'write' before the image line");
    fs::write(dir.path().join("bad"), b"image \xff").unwrap();
    let output = qcowfuzz(dir.path(), &["asm", "bad", "-o", "out"]);
    assert_eq!(told(&output), "bad: byte 6 is not UTF-8, expected a program's text");
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
        told(&output);
    }
    fs::create_dir(dir.path().join("directory")).unwrap();
    for target in ["nowhere/disk.qcow2", "directory"] {
        let output = qcowfuzz(dir.path(), &["export", "program", "-o", target, "--force"]);
        assert_eq!(output.status.code(), Some(2));
        assert!(told(&output).starts_with(target));
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
