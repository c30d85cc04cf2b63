//! Files that are not images, damaged images, and invalid commands, also of `differential`, whose campaigns
//! `tests/differential.rs` runs.

use qcowfuzz::formats::qcow2::header::PARSED_BYTES;
use qcowfuzz::formats::vhdx::constants::LOGICAL_SECTOR_SIZE;
use test_support::prelude::*;

use crate::support::{CLUSTER, Damaged, Folder};

#[test]
fn invalid_headers_are_reported_in_one_line() {
    let dir = Folder::with_image();
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
        let mut damaged = Damaged::new(&dir);
        damaged.put(at as u64, bytes);
        dir.write("bad.qcow2", &damaged.bytes);
        for (verb, code) in [("map", 2), ("check", 1)] {
            let ran = dir.run(&[verb, "-f", "qcow2", "bad.qcow2"]).fails(code, "bad.qcow2: ");
            assert!(ran.line().contains(expected), "{name}: {}", ran.line());
        }
        if name != "aes"
            && name != "luks"
            && let Some(theirs) = dir.qemu_img("map -f qcow2 bad.qcow2")
        {
            assert_eq!(theirs.code, Some(1), "qemu-img accepts {name}");
        }
    }
}

/// The clusters of an encrypted image look like any data. The command never maps them.
#[test]
fn encrypted_images_are_refused_by_the_name_of_the_method() {
    let dir = Folder::new();
    for [method, more, name] in rows("luks | ,encrypt.iter-time=10 | LUKS\naes | | AES") {
        for version in ["1.1", "0.10"] {
            let options =
                format!("encrypt.format={method},encrypt.key-secret=key,compat={version}");
            let secret = "--object secret,id=key,data=open";
            let create = format!("create -q {secret} -f qcow2 -o {options}{more} disk.qcow2 1M");
            let Some(made) = dir.qemu_img(&create) else { return };
            made.ok();
            let whole = "map --output json --max-length 0 disk.qcow2";
            for (words, code) in [("map disk.qcow2", 2), (whole, 2), ("check disk.qcow2", 1)] {
                let expected = format!("disk.qcow2: unsupported feature: encryption ({name})");
                assert_eq!(dir.run(words).fails(code, "").line(), expected, "{method}: {words}");
            }
            // qemu-img does not open it either without the key.
            let Some(theirs) = dir.qemu_img("map disk.qcow2") else { return };
            theirs.exits(1);
        }
    }
}

#[test]
fn files_that_are_no_images_are_reported_in_one_line() {
    let files: [(&str, &[u8]); 4] =
        [("empty", b""), ("text", b"some text"), ("raw", &[0; 4096]), ("two\nlines", b"")];
    let dir = Folder::of(files);
    fs::create_dir(dir.join("directory")).unwrap();
    assert!(Command::new("mkfifo").arg(dir.join("fifo")).status().unwrap().success());
    // No process ever writes to the fifo. The command must not wait for it.
    let cases = "\
        missing | No such file or directory
        directory | not a regular file
        fifo | not a regular file
        empty | not a qcow2 image: the file is empty
        text | not a qcow2 image: the file begins with 0x736f6d65, expected 0x514649fb (the file ends after 9 bytes)
        raw | not a qcow2 image: the file begins with 0x00000000, expected 0x514649fb";
    for [name, expected] in rows(cases) {
        for (verb, code) in [("map", 2), ("check", 1)] {
            dir.run(&[verb, "-f", "qcow2", name]).fails(code, &format!("{name}: {expected}"));
        }
    }
    dir.run(&["map", "-f", "qcow2", "two\nlines"]).fails(2, "two lines: not a qcow2 image");
    for verb in ["replay", "disasm"] {
        for name in ["missing", "directory"] {
            dir.run(&[verb, name]).fails(2, &format!("{name}: "));
        }
    }
}

/// Returns an image with a snapshot whose extra data are longer than any.
fn with_long_extra_data(dir: &Folder) -> Vec<u8> {
    let mut bytes = dir.read("disk.qcow2");
    bytes.resize(bytes.len().next_multiple_of(CLUSTER as usize), 0);
    let table = bytes.len() as u64;
    bytes[60..64].copy_from_slice(&1u32.to_be_bytes());
    bytes[64..72].copy_from_slice(&table.to_be_bytes());
    bytes.extend([0xFF; 512]);
    bytes
}

/// Writes the checksum of a structure of a VHDX image, which has 4 KiB.
fn seal(structure: &mut [u8]) {
    structure[4..8].fill(0);
    let checksum = crc32c::crc32c(&structure[..4096]);
    structure[4..8].copy_from_slice(&checksum.to_le_bytes());
}

/// Adds an entry to the log of a VHDX image.
fn add_to_log(image: &mut [u8]) {
    const LOG: [u8; 16] = [7; 16];
    for header in [64 << 10, 128 << 10] {
        image[header + 48..][..16].copy_from_slice(&LOG);
        seal(&mut image[header..]);
    }
    let log = u64::from_le_bytes(image[(64 << 10) + 72..][..8].try_into().unwrap()) as usize;
    let entry = &mut image[log..][..4096];
    entry.fill(0);
    entry[..4].copy_from_slice(b"loge");
    entry[8..12].copy_from_slice(&4096u32.to_le_bytes());
    entry[16] = 1;
    entry[32..48].copy_from_slice(&LOG);
    seal(entry);
}

#[test]
fn refusals_come_with_the_advice_of_qemu_img() {
    let dir = Folder::with_image();
    dir.write("long.qcow2", with_long_extra_data(&dir));
    let advice = "'qemu-img check -r all'";
    let long = "long.qcow2: snapshot table entry 0: more than 1024 bytes of extra data";
    dir.run("map long.qcow2").fails(2, long).fails_naming(2, advice);
    let Some(theirs) = dir.qemu_img("map long.qcow2") else { return };
    assert!(theirs.exits(1).err.contains("with qemu-img check -r all"));

    dir.create("vhdx disk.vhdx 9M").unwrap();
    let mut logged = dir.read("disk.vhdx");
    add_to_log(&mut logged);
    dir.write("logged.vhdx", logged);
    let log = "logged.vhdx: unsupported feature: log that has to be replayed";
    dir.run("map logged.vhdx").fails(2, log).fails_naming(2, advice);
    let theirs = dir.qemu_img("map logged.vhdx").unwrap().exits(1);
    assert!(theirs.err.contains("qemu-img check -r all 'logged.vhdx'"), "{theirs:?}");
    // The advice is right.
    dir.qemu_img("check -q -r all logged.vhdx").unwrap().ok();
    dir.same("map --output=json logged.vhdx").unwrap();
}

/// The specification allows sectors of 512 bytes and of 4 KiB.
#[test]
fn a_vhdx_image_with_sectors_of_4_kib_is_not_malformed() {
    let dir = Folder::new();
    let Some(_) = dir.create("vhdx disk.vhdx 9M") else { return };
    let sound = dir.read("disk.vhdx");
    // The table of the metadata, and its entry for the size of a sector.
    let items = 3 << 20;
    let mut entries = (0..8).map(|index| items + 32 + 32 * index);
    let item = entries.find(|at| sound[*at..][..16] == LOGICAL_SECTOR_SIZE).unwrap();
    let at = items + u32::from_le_bytes(sound[item + 16..][..4].try_into().unwrap()) as usize;
    assert_eq!(sound[at..][..4], 512u32.to_le_bytes());
    for (bytes, expected) in [
        (4096u32, "unsupported feature: disk with logical sectors of 4096 bytes"),
        (1024, "header: logical sector size is 1024, expected 512"),
    ] {
        let mut changed = sound.clone();
        changed[at..][..4].copy_from_slice(&bytes.to_le_bytes());
        dir.write("large.vhdx", changed);
        assert_eq!(
            dir.run("map large.vhdx").fails(2, "").line(),
            format!("large.vhdx: {expected}")
        );
        let theirs = dir.qemu_img("map large.vhdx").unwrap().exits(1);
        assert!(theirs.err.contains("Operation not supported"), "{theirs:?}");
    }
}

#[test]
fn an_unreadable_file_is_reported_in_one_line() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Folder::with_image();
    let path = dir.join("disk.qcow2");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if File::open(&path).is_ok() {
        skipped("this user may read everything: an_unreadable_file_is_reported_in_one_line");
        return;
    }
    dir.run("map disk.qcow2").fails(2, "disk.qcow2: Permission denied");
}

#[test]
fn files_cut_short_are_answered_as_qemu_img_answers_them() {
    let dir = Folder::with_image();
    let (whole, l2) = (dir.read("disk.qcow2"), Damaged::new(&dir).l2() as usize);
    let short = [0, 3, 4, 8, 24, 60, 71, 72, 80, 103, 104, 111, 112, 200, 4096];
    for length in short.into_iter().chain([l2 + 8, l2 + 20, whole.len() - 1]) {
        dir.write("cut.qcow2", &whole[..length]);
        let words = "map -f qcow2 --output=json cut.qcow2";
        let ours = match length {
            ..104 => dir.run(words).fails(2, "cut.qcow2: "),
            _ => dir.run(words).ok(),
        };
        if length == 200 {
            let hole = "[{ \"start\": 0, \"length\": 1048576, \"depth\": 0, \"present\": false, \
                        \"zero\": true, \"data\": false, \"compressed\": false}]\n";
            assert_eq!(ours.out, hole);
        }
        let Some(theirs) = dir.qemu_img(words) else { continue };
        assert_eq!(ours.code == Some(0), theirs.code == Some(0), "{length} bytes");
        // QEMU reports that data past the end of the file read as zeros if it asks the file system.
        let [ours, theirs] = [ours, theirs].map(|ran| {
            ran.out.replace("\"zero\": true, \"data\": true", "\"zero\": false, \"data\": true")
        });
        assert_eq!(ours, theirs, "{length} bytes");
    }
}

#[test]
fn a_walk_that_fails_is_never_reported_as_whole() {
    let dir = Folder::with_image();
    let mut damaged = Damaged::new(&dir);
    damaged.put_u64(damaged.l2() + 8 * 5, 1 << 63 | 0x5_0200);
    dir.write("bad.qcow2", &damaged.bytes);
    for form in ["json", "human"] {
        let ours = dir.run(&["map", "--output", form, "bad.qcow2"]).exits(2);
        let expected = "bad.qcow2: cluster for guest offset 0x50000: host offset 0x50200 is not on a cluster boundary";
        assert_eq!(ours.line(), expected);
        assert_eq!(ours.out.matches('\n').count(), 3, "what came before stays: {}", ours.out);
        assert!(!ours.out.contains(']'), "the list is left open: {}", ours.out);
    }
    let Some(qemu) = dir.qemu_img("map --output=json bad.qcow2") else { return };
    // QEMU does not print the extent that was incomplete.
    let printed = qemu.exits(1).out;
    dir.run("map --output=json bad.qcow2").begins(printed.trim_end_matches('\n'));
}

#[test]
fn other_formats_and_bad_usage_exit_with_2() {
    let dir = Folder::with_image();
    let line = "disk.qcow2: format 'qed' is not supported, expected one of qcow2, raw, vpc, vhdx, vmdk, vdi";
    assert_eq!(dir.run("map -f qed disk.qcow2").fails(2, "").line(), line);
    dir.run("map -f qcow2 disk.qcow2").ok();
    for words in [
        "",
        "fly",
        "map",
        "map --output xml disk.qcow2",
        "map --start-offset -1 disk.qcow2",
        "map --max-length 8E disk.qcow2",
        "replay",
        "replay --target nothing program",
    ] {
        let ran = dir.run(words).exits(2);
        assert!(ran.out.is_empty() && !ran.err.is_empty(), "{words}");
    }
}

#[test]
fn a_campaign_that_cannot_run_exits_with_2() {
    for [options, expected] in rows(
        "--qemu-img missing/qemu-img | missing/qemu-img: cannot be run
         --qemu-img no-recording | no-recording: cannot be run
         --against-recording missing | missing:
         --against-recording no-recording | no-recording:
         --replay 1 | expected SEED:ITERATION, two numbers
         --formats qcow3 | expected one of qcow2
         --operations melt | 'melt'
         --lacks colours | expected a feature, found 'colours'
         --jobs 0 | '0'
         --record file --against-recording other | cannot be used with",
    ) {
        let dir = Folder::of([("no-recording", b"text")]);
        let ran = dir.run(&format!("differential --workdir work {options}")).exits(2);
        assert!(ran.err.contains(expected), "{options}: {}", ran.err);
    }
    let options =
        ["--formats", "vhdx", "--lacks", "vhdx images", "--against-recording", "x", "--workdir=w"];
    let ran = Folder::new().run(&[&["differential"], &options[..]].concat()[..]).exits(2);
    assert!(ran.err.contains("cannot be used"), "{}", ran.err);
}

#[test]
fn a_work_folder_that_is_a_file_is_refused() {
    let dir = Folder::of([("file", b"")]);
    let ran = dir.run("differential --workdir file --against-recording file").exits(2);
    assert!(ran.err.contains("file: "), "{}", ran.err);
    assert_eq!(dir.read("file"), b"");
}
