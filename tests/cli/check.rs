//! `check`: its findings and its exit codes.

use std::fs;
use std::path::Path;
use std::process::Output;

use qcowfuzz::programs::generate::{GenerateSettings, generate};

use crate::support::{CLUSTER, Damaged, error_line, qcowfuzz, qemu, qemu_img, text, with_image};

/// A change of a sound image.
type Damage<'a> = &'a dyn Fn(&mut Damaged);

/// Damages a sound image in each of these ways, and compares both forms of its check with `qemu-img check`: the output,
/// the expected exit code, and the miscounted clusters.
fn compare_damaged(dir: &Path, sound: &Damaged, damage: &[(&str, i32, Damage)]) {
    for &(name, code, change) in damage {
        let mut image = Damaged { bytes: sound.bytes.clone() };
        change(&mut image);
        image.save(dir, "damaged.qcow2");
        for form in ["--output=human", "--output=json"] {
            let ours = qcowfuzz(dir, &["check", form, "damaged.qcow2"]);
            assert_eq!(ours.status.code(), Some(code), "{name}: {}", text(&ours.stderr));
            assert_eq!(ours.stderr.is_empty(), code == 0, "{name}");
            let arguments = ["check", form, "damaged.qcow2"];
            let Some(qemu) = qemu_img(dir, &arguments) else { continue };
            assert_eq!(qemu.status.code(), Some(code), "{name}: {}", text(&qemu.stderr));
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
fn check_answers_as_qemu_img_check() {
    let dir = with_image();
    let sound = Damaged::new(dir.path());
    let l2 = sound.l2();
    let data = sound.get(l2 + 8) & !(1 << 63);
    let end = sound.bytes.len() as u64 / CLUSTER;
    let table = sound.get(48);
    let damage: [(&str, i32, Damage); 14] = [
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
            image.put(l2 + 16, &((end * CLUSTER) | (1 << 63)).to_be_bytes());
            image.set_refcount(end, 1);
        }),
        ("the file cut inside its last cluster", 0, &|image| {
            let length = image.bytes.len() - 1000;
            image.bytes.truncate(length);
        }),
        ("data in a table", 2, &|image| image.put(l2 + 16, &(l2 | 1 << 63).to_be_bytes())),
    ];
    compare_damaged(dir.path(), &sound, &damage);
}

#[test]
fn check_goes_on_after_a_damaged_table() {
    let dir = with_image();
    let sound = Damaged::new(dir.path());
    let l2 = sound.l2();
    let end = sound.bytes.len() as u64 / CLUSTER;
    let table = sound.get(48);
    let damage: [(&str, i32, Damage); 11] = [
        ("an L1 table behind the last sector", 2, &|image| {
            // QEMU counts the last sector of the file as whole.
            image.bytes.push(0);
            image.put(36, &16u32.to_be_bytes());
            image.put(40, &((end + 1) * CLUSTER).to_be_bytes());
        }),
        ("a refcount block past the end", 2, &|image| {
            image.put(table, &(1u64 << 40).to_be_bytes())
        }),
        ("an unaligned refcount block", 1, &|image| image.put(table, &0x1_0200u64.to_be_bytes())),
        ("a refcount block past 2^63", 1, &|image| image.put(table, &(1u64 << 63).to_be_bytes())),
        ("a refcount block twice", 2, &|image| {
            let block = image.get(table);
            image.put(table + 8, &block.to_be_bytes());
        }),
        ("no refcount table", 2, &|image| image.put(56, &[0; 4])),
        ("an L1 entry of reserved bits", 2, &|image| {
            let l1 = image.get(40);
            image.put(l1, &(1u64 << 60).to_be_bytes());
        }),
        ("an L2 table past the end", 2, &|image| {
            let l1 = image.get(40);
            image.put(l1, &(1u64 << 63 | 1 << 40).to_be_bytes());
        }),
        ("a compressed cluster that is copied", 2, &|image| {
            image.bytes.extend([0; CLUSTER as usize]);
            image.put(l2 + 16, &(3u64 << 62 | (end * CLUSTER)).to_be_bytes());
            image.set_refcount(end, 1);
        }),
        ("bits behind the offset of an unaligned L2 table", 2, &|image| {
            let l1 = image.get(40);
            image.put(l1, &(image.get(l1) + 512).to_be_bytes());
        }),
        ("a snapshot without extra data", 2, &|image| {
            let at = image.bytes.len() as u64;
            image.bytes.extend([0; CLUSTER as usize]);
            image.set_refcount(at / CLUSTER, 1);
            image.put(60, &1u32.to_be_bytes());
            image.put(64, &at.to_be_bytes());
        }),
    ];
    compare_damaged(dir.path(), &sound, &damage);
}

/// 33 MiB in which four million L1 entries name one full L2 table: 34 thousand million references.
#[test]
fn an_image_that_is_too_large_to_be_checked_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let entries = 4u32 << 20;
    let l2 = 3 * CLUSTER + u64::from(entries) * 8;
    let mut bytes = vec![0; (l2 + CLUSTER) as usize];
    let mut put = |at: u64, number: &[u8]| {
        bytes[at as usize..at as usize + number.len()].copy_from_slice(number);
    };
    put(0, b"QFI\xfb\0\0\0\x02");
    put(20, &16u32.to_be_bytes());
    put(24, &CLUSTER.to_be_bytes());
    put(36, &entries.to_be_bytes());
    put(40, &(3 * CLUSTER).to_be_bytes());
    put(48, &CLUSTER.to_be_bytes());
    put(56, &1u32.to_be_bytes());
    (0..u64::from(entries)).for_each(|entry| put(3 * CLUSTER + entry * 8, &l2.to_be_bytes()));
    (0..CLUSTER / 8).for_each(|entry| put(l2 + entry * 8, &CLUSTER.to_be_bytes()));
    fs::write(dir.path().join("hostile.qcow2"), bytes).unwrap();
    let output = qcowfuzz(dir.path(), &["check", "hostile.qcow2"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = "hostile.qcow2: too large to be checked: too many references to clusters";
    assert_eq!(error_line(&output), expected);
}

#[test]
fn check_counts_clusters_as_qemu_img_check() {
    let dir = tempfile::tempdir().unwrap();
    for rng_seed in 0..40 {
        let program = generate(rng_seed, GenerateSettings { operations: 24, compressed: true });
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
fn formats_without_checks_have_an_exit_code_of_their_own() {
    let dir = with_image();
    fs::write(dir.path().join("text"), "some text").unwrap();
    let fixed = ["create", "-q", "-f", "vpc", "-o", "subformat=fixed", "fixed.vhd", "1M"];
    let dynamic = ["create", "-q", "-f", "vpc", "disk.vhd", "1M"];
    for create in [&fixed[..], &dynamic] {
        let Some(created) = qemu_img(dir.path(), create) else { return };
        assert!(created.status.success());
    }
    for (arguments, code, message) in [
        (&["-f", "raw", "disk.qcow2"][..], 63, "disk.qcow2: the format raw has no checks"),
        (&["text"], 63, "text: the format raw has no checks"),
        (&["disk.vhd"], 63, "disk.vhd: the format vpc has no checks"),
        (&["-f", "vpc", "fixed.vhd"], 63, "fixed.vhd: the format vpc has no checks"),
        (&["-f", "vpc", "text"], 1, "text: not a vpc image"),
        (&["-f", "qcow2", "text"], 1, "text: not a qcow2 image"),
        (&["-f", "vdi", "text"], 1, "text: not a vdi image"),
        (&["-f", "qed", "text"], 1, "text: format 'qed' is not supported"),
    ] {
        let arguments = [&["check"], arguments].concat();
        let ours = qcowfuzz(dir.path(), &arguments);
        let theirs = qemu_img(dir.path(), &arguments).unwrap();
        assert_eq!(ours.status.code(), Some(code), "{arguments:?}");
        assert_eq!(theirs.status.code(), Some(code), "{arguments:?}: {theirs:?}");
        assert!(error_line(&ours).starts_with(message), "{}", error_line(&ours));
        assert!(ours.stdout.is_empty() && theirs.stdout.is_empty());
    }
}

#[test]
fn blocks_of_a_vhdx_image_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let create = ["create", "-q", "-f", "vhdx", "-o", "block_size=1M", "disk.vhdx", "9M"];
    let Some(created) = qemu_img(dir.path(), &create) else { return };
    assert!(created.status.success());
    let write = ["-f", "vhdx", "-c", "write 1M 3M", "disk.vhdx"];
    assert!(qemu("qemu-io", dir.path(), &write).unwrap().status.success());
    let sound = fs::read(dir.path().join("disk.vhdx")).unwrap();
    let number = |at: usize| u64::from_le_bytes(sound[at..at + 8].try_into().unwrap());
    // The first region of the region table is the block allocation table.
    let table = number((192 << 10) + 32) as usize;
    assert_eq!([0, 1, 2, 3].map(|index| number(table + index * 8) & 7), [2, 6, 6, 6]);
    let cases: [(&[(usize, u64)], i32); 6] = [
        (&[], 0),
        // Past the end of the file, past 2^63, over the log.
        (&[(1, 400 << 20 | 6)], 2),
        (&[(1, u64::MAX << 20 | 6), (2, 400 << 20 | 6)], 2),
        (&[(3, 1 << 20 | 6)], 2),
        (&[(1, 1 << 20 | 6), (2, 1 << 20 | 6), (3, 0x77 << 50 | 6)], 2),
        // A block twice, and states that cannot be read, are no fault.
        (&[(1, number(table + 16)), (4, 4), (5, 7)], 0),
    ];
    for (entries, code) in cases {
        let mut damaged = sound.clone();
        for (index, entry) in entries {
            damaged[table + index * 8..][..8].copy_from_slice(&entry.to_le_bytes());
        }
        fs::write(dir.path().join("disk.vhdx"), damaged).unwrap();
        for form in ["--output=json", "--output=human"] {
            let arguments = ["check", form, "disk.vhdx"];
            let (ours, theirs) =
                (qcowfuzz(dir.path(), &arguments), qemu_img(dir.path(), &arguments).unwrap());
            assert_eq!(theirs.status.code(), Some(code), "{entries:x?}: {theirs:?}");
            assert_eq!(ours.status.code(), Some(code), "{entries:x?}: {ours:?}");
            assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{entries:x?}");
        }
    }
}

/// Entries of a table, and their indices.
type Entries<'a> = &'a [(usize, u32)];

#[test]
fn grains_of_a_vmdk_image_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.vmdk");
    let create = ["create", "-q", "-f", "vmdk", "disk.vmdk", "9M"];
    let Some(created) = qemu_img(dir.path(), &create) else { return };
    assert!(created.status.success());
    let write = ["-f", "vmdk", "-c", "write 1M 300k", "disk.vmdk"];
    assert!(qemu("qemu-io", dir.path(), &write).unwrap().status.success());
    let sound = fs::read(&path).unwrap();
    let number = |at: usize| u32::from_le_bytes(sound[at..at + 4].try_into().unwrap());
    let table = number(number(56) as usize * 512) as usize * 512;
    let end = sound.len() as u32 / 512;
    let cases: [(Entries, i32, &str); 5] = [
        (&[], 0, ""),
        // Grains may overlap other structures, and may end past the end of the file.
        (&[(0, 1), (1, end - 1)], 0, ""),
        (
            &[(2, end)],
            1,
            "disk.vmdk: grain at guest offset 131072: the grain begins past the end of the file",
        ),
        (
            &[(143, u32::MAX), (5, end + 9)],
            1,
            "disk.vmdk: grain at guest offset 327680: the grain begins",
        ),
        // The disk has 144 grains.
        (&[(144, u32::MAX)], 0, ""),
    ];
    for (entries, code, message) in cases {
        let mut damaged = sound.clone();
        for (index, entry) in entries {
            damaged[table + index * 4..][..4].copy_from_slice(&entry.to_le_bytes());
        }
        fs::write(&path, damaged).unwrap();
        for form in ["--output=json", "--output=human"] {
            let arguments = ["check", form, "--no-follow", "disk.vmdk"];
            let ours = qcowfuzz(dir.path(), &arguments);
            let theirs = qemu_img(dir.path(), &["check", form, "disk.vmdk"]).unwrap();
            assert_eq!(theirs.status.code(), Some(code), "{entries:x?}: {theirs:?}");
            assert_eq!(ours.status.code(), Some(code), "{entries:x?}: {ours:?}");
            assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{entries:x?}");
            if code > 0 {
                assert!(error_line(&ours).starts_with(message), "{}", error_line(&ours));
            }
        }
    }
}

#[test]
fn check_opens_extents_but_no_parent() {
    let dir = tempfile::tempdir().unwrap();
    let head = "version=1\nCID=1\nparentCID=1\ncreateType=\"vmfs\"\n";
    let save = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    save("flat", &"x".repeat(1000));
    save("disk.vmdk", &format!("{head}RW 8 FLAT \"flat\" 1\n"));
    save("past.vmdk", &format!("{head}RW 8 FLAT \"flat\" 1\nRW 8 FLAT \"flat\" 2\n"));
    save("child.vmdk", &format!("{head}parentFileNameHint=\"none\"\nRW 8 FLAT \"flat\" 0\n"));
    save("lost.vmdk", &format!("{head}RW 8 FLAT \"none\" 0\n"));
    save("empty.vmdk", head);
    for (arguments, code, message) in [
        (&["disk.vmdk"][..], 0, ""),
        (&["empty.vmdk"], 0, ""),
        (&["past.vmdk"], 1, "past.vmdk: grain at guest offset 4096: the data of the extent begin"),
        (&["child.vmdk"], 0, ""),
        (&["lost.vmdk"], 1, "lost.vmdk: the file of an extent that it names: "),
        (&["--no-follow", "disk.vmdk"], 1, "disk.vmdk: cannot open the image with --no-follow"),
    ] {
        let ours = qcowfuzz(dir.path(), &[&["check"], arguments].concat());
        assert_eq!(ours.status.code(), Some(code), "{arguments:?}: {ours:?}");
        if code > 0 {
            assert!(error_line(&ours).starts_with(message), "{}", error_line(&ours));
        }
        // qemu-img has no such option, and opens the parent.
        if arguments.len() == 1 && !arguments.contains(&"child.vmdk") {
            let Some(theirs) = qemu_img(dir.path(), &[&["check"], arguments].concat()) else {
                return;
            };
            assert_eq!(theirs.status.code(), Some(code), "{arguments:?}: {theirs:?}");
            assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{arguments:?}");
        }
    }
}

/// Returns a sparse extent of 9 sectors in grains of 8, with these two entries of its grain table.
fn sparse_extent(entries: [u32; 2]) -> Vec<u8> {
    let mut bytes = vec![0; 6 * 512];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(0, b"KDMV\x01");
    put(12, &[9]);
    put(20, &[8]);
    put(44, &512u32.to_le_bytes());
    put(56, &[1]);
    put(512, &[2]);
    put(1024, &entries.map(u32::to_le_bytes).concat());
    bytes
}

#[test]
fn grains_that_qemu_img_skips_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let past = 6;
    let sparse = "RW 9 SPARSE \"first\"\nRW 9 SPARSE \"second\"\nRW 9 SPARSE \"second\"\n";
    let flat = "RW 9 SPARSE \"first\"\nRW 3 FLAT \"second\" 0\nRW 9 SPARSE \"second\"\n";
    for (lines, first, second, sector) in [
        (sparse, [0, 0], [0, 0], None),
        (sparse, [0, past], [0, 0], Some(8)),
        // The first extent ends at sector 9, and the look-ups continue at sector 16, in the first grain of the second
        // extent. The next one is at sector 24, in the third extent.
        (sparse, [1, 1], [past, 0], Some(16)),
        (sparse, [1, 1], [0, past], None),
        // The flat extent begins at sector 9 and ends at 12, so that no look-up lies in it.
        (flat, [1, 1], [past, 0], Some(16)),
        (flat, [1, 1], [0, past], None),
    ] {
        let head = "version=1\nCID=1\nparentCID=1\ncreateType=\"vmfs\"\n";
        fs::write(dir.path().join("disk.vmdk"), format!("{head}{lines}")).unwrap();
        fs::write(dir.path().join("first"), sparse_extent(first)).unwrap();
        fs::write(dir.path().join("second"), sparse_extent(second)).unwrap();
        let case = format!("{lines}{first:?} {second:?}");
        let ours = qcowfuzz(dir.path(), &["check", "disk.vmdk"]);
        let Some(theirs) = qemu_img(dir.path(), &["check", "disk.vmdk"]) else { return };
        assert_eq!(theirs.status.code(), Some(sector.is_some().into()), "{case}: {theirs:?}");
        assert_eq!(ours.status.code(), theirs.status.code(), "{case}: {ours:?}");
        if let Some(sector) = sector {
            let line = format!("ERROR: cluster offset for sector {sector} points after EOF");
            assert!(text(&theirs.stderr).starts_with(&line), "{case}: {theirs:?}");
            let start = format!("disk.vmdk: grain at guest offset {}: ", sector * 512);
            assert!(error_line(&ours).starts_with(&start), "{case}: {}", error_line(&ours));
        }
    }
}
