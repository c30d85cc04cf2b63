//! `check`: its findings and its exit codes.

use test_support::prelude::*;

use crate::support::{CLUSTER, Damaged, Folder, Ran, VMDK_HEAD};

/// A change of a sound image.
type Damage<'a> = &'a dyn Fn(&mut Damaged);

/// Damages a sound image in each of these ways, and compares both forms of its check with `qemu-img check`: the output,
/// the expected exit code, and the miscounted clusters.
fn compare_damaged(dir: &Folder, sound: &Damaged, damage: &[(&str, i32, Damage)]) {
    for &(name, code, change) in damage {
        let mut image = sound.clone();
        change(&mut image);
        dir.write("damaged.qcow2", &image.bytes);
        for form in ["--output=human", "--output=json"] {
            let words = ["check", form, "damaged.qcow2"];
            let ours = dir.run(&words);
            assert_eq!(ours.code, Some(code), "{name}: {}", ours.err);
            assert_eq!(ours.err.is_empty(), code == 0, "{name}");
            let Some(theirs) = dir.qemu_img(&words) else { continue };
            assert_eq!(theirs.code, Some(code), "{name}: {}", theirs.err);
            assert_eq!(ours.out, theirs.out, "{name}");
            let miscounts = |ran: &Ran| -> Vec<String> {
                let lines = ran.err.lines().filter(|line| line.contains("reference="));
                lines.map(str::to_string).collect()
            };
            assert_eq!(miscounts(&ours), miscounts(&theirs), "{name}");
        }
    }
}

#[test]
fn check_answers_as_qemu_img_check() {
    let dir = Folder::with_image();
    let sound = Damaged::new(&dir);
    let (l2, table) = (sound.l2(), sound.get(48));
    let data = sound.get(l2 + 8) & !(1 << 63);
    let end = sound.bytes.len() as u64 / CLUSTER;
    let damage: [(&str, i32, Damage); 14] = [
        ("sound", 0, &|_| {}),
        ("leaks", 3, &|image| {
            image.grow(3);
            image.set_refcount(end, 1);
            image.set_refcount(end + 2, 3);
        }),
        ("counted past the end", 0, &|image| image.set_refcount(end + 9, 1)),
        ("a count too low", 2, &|image| image.set_refcount(data / CLUSTER, 0)),
        ("both", 2, &|image| {
            image.set_refcount(data / CLUSTER, 0);
            image.grow(1);
            image.set_refcount(end, 1);
        }),
        ("not copied", 2, &|image| image.put_u64(l2 + 8, data)),
        ("used twice", 2, &|image| image.put_u64(l2 + 16, data | 1 << 63)),
        ("reserved bits of an L2 entry", 2, &|image| image.bytes[l2 as usize + 8] |= 0x20),
        ("reserved bits of an L1 entry", 2, &|image| {
            let l1 = image.get(40);
            image.bytes[l1 as usize] |= 0x20;
        }),
        ("reserved bits of a refcount table entry", 2, &|it| it.bytes[table as usize + 7] |= 1),
        ("an unaligned cluster", 2, &|it| it.put_u64(l2 + 16, (data + 512) | 1 << 63)),
        ("a cluster past the end", 2, &|image| {
            image.put_u64(l2 + 16, (end * CLUSTER) | (1 << 63));
            image.set_refcount(end, 1);
        }),
        ("the file cut inside its last cluster", 0, &|image| {
            image.bytes.truncate(image.bytes.len() - 1000);
        }),
        ("data in a table", 2, &|image| image.put_u64(l2 + 16, l2 | 1 << 63)),
    ];
    compare_damaged(&dir, &sound, &damage);
}

#[test]
fn check_goes_on_after_a_damaged_table() {
    let dir = Folder::with_image();
    let sound = Damaged::new(&dir);
    let (l1, l2, table) = (sound.get(40), sound.l2(), sound.get(48));
    let end = sound.bytes.len() as u64 / CLUSTER;
    let damage: [(&str, i32, Damage); 11] = [
        ("an L1 table behind the last sector", 2, &|image| {
            // QEMU counts the last sector of the file as whole.
            image.bytes.push(0);
            image.put(36, &16u32.to_be_bytes());
            image.put_u64(40, (end + 1) * CLUSTER);
        }),
        ("a refcount block past the end", 2, &|image| image.put_u64(table, 1 << 40)),
        ("an unaligned refcount block", 1, &|image| image.put_u64(table, 0x1_0200)),
        ("a refcount block past 2^63", 1, &|image| image.put_u64(table, 1 << 63)),
        ("a refcount block twice", 2, &|image| image.put_u64(table + 8, image.get(table))),
        ("no refcount table", 2, &|image| image.put(56, &[0; 4])),
        ("an L1 entry of reserved bits", 2, &|image| image.put_u64(l1, 1 << 60)),
        ("an L2 table past the end", 2, &|image| image.put_u64(l1, 1 << 63 | 1 << 40)),
        ("a compressed cluster that is copied", 2, &|image| {
            image.grow(1);
            image.put_u64(l2 + 16, 3 << 62 | (end * CLUSTER));
            image.set_refcount(end, 1);
        }),
        ("bits behind the offset of an unaligned L2 table", 2, &|image| {
            image.put_u64(l1, image.get(l1) + 512);
        }),
        ("a snapshot without extra data", 2, &|image| {
            let at = image.bytes.len() as u64;
            image.grow(1);
            image.set_refcount(at / CLUSTER, 1);
            image.put(60, &1u32.to_be_bytes());
            image.put_u64(64, at);
        }),
    ];
    compare_damaged(&dir, &sound, &damage);
}

/// 33 MiB in which four million L1 entries name one full L2 table: 34 thousand million references.
#[test]
fn an_image_that_is_too_large_to_be_checked_is_reported() {
    let entries = 4u32 << 20;
    let l2 = 3 * CLUSTER + u64::from(entries) * 8;
    let mut image = Damaged { bytes: vec![0; (l2 + CLUSTER) as usize] };
    image.put(0, b"QFI\xfb\0\0\0\x02");
    image.put(20, &16u32.to_be_bytes());
    image.put_u64(24, CLUSTER);
    image.put(36, &entries.to_be_bytes());
    image.put_u64(40, 3 * CLUSTER);
    image.put_u64(48, CLUSTER);
    image.put(56, &1u32.to_be_bytes());
    (0..u64::from(entries)).for_each(|entry| image.put_u64(3 * CLUSTER + entry * 8, l2));
    (0..CLUSTER / 8).for_each(|entry| image.put_u64(l2 + entry * 8, CLUSTER));
    let dir = Folder::of([("hostile.qcow2", &image.bytes)]);
    let expected = "hostile.qcow2: too large to be checked: too many references to clusters";
    assert_eq!(dir.run("check hostile.qcow2").fails(1, "").line(), expected);
}

#[test]
fn formats_without_checks_have_an_exit_code_of_their_own() {
    let dir = Folder::with_image();
    dir.write("text", "some text");
    for create in ["vpc -o subformat=fixed fixed.vhd 1M", "vpc disk.vhd 1M"] {
        let Some(_) = dir.create(create) else { return };
    }
    for [words, code, message] in rows(
        "check -f raw disk.qcow2 | 63 | disk.qcow2: the format raw has no checks
         check text | 63 | text: the format raw has no checks
         check disk.vhd | 63 | disk.vhd: the format vpc has no checks
         check -f vpc fixed.vhd | 63 | fixed.vhd: the format vpc has no checks
         check -f vpc text | 1 | text: not a vpc image
         check -f qcow2 text | 1 | text: not a qcow2 image
         check -f vdi text | 1 | text: not a vdi image
         check -f qed text | 1 | text: format 'qed' is not supported",
    ) {
        let code = code.parse().unwrap();
        dir.run(words).fails(code, message);
        assert_eq!(dir.qemu_img(words).unwrap().exits(code).out, "");
    }
}

#[test]
fn blocks_of_a_vhdx_image_are_checked() {
    let dir = Folder::new();
    let Some(_) = dir.create("vhdx -o block_size=1M disk.vhdx 9M") else { return };
    dir.qemu_io("vhdx", "write 1M 3M", "disk.vhdx");
    let sound = dir.read("disk.vhdx");
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
        dir.write("disk.vhdx", damaged);
        for form in ["--output=json", "--output=human"] {
            for ran in dir.same(&["check", form, "disk.vhdx"]).unwrap() {
                ran.exits(code);
            }
        }
    }
}

/// Entries of a table, and their indices.
type Entries<'a> = &'a [(usize, u32)];

#[test]
fn grains_of_a_vmdk_image_are_checked() {
    let dir = Folder::new();
    let Some(_) = dir.create("vmdk disk.vmdk 9M") else { return };
    dir.qemu_io("vmdk", "write 1M 300k", "disk.vmdk");
    let sound = dir.read("disk.vmdk");
    let number = |at: usize| u32::from_le_bytes(sound[at..at + 4].try_into().unwrap());
    let table = number(number(56) as usize * 512) as usize * 512;
    let end = sound.len() as u32 / 512;
    let cases: [(Entries, i32, &str); 5] = [
        (&[], 0, ""),
        // Grains may overlap other structures, and may end past the end of the file.
        (&[(0, 1), (1, end - 1)], 0, ""),
        (&[(2, end)], 1, "0x20000: the grain begins past the end of the file"),
        (&[(143, u32::MAX), (5, end + 9)], 1, "0x50000: the grain begins"),
        // The disk has 144 grains.
        (&[(144, u32::MAX)], 0, ""),
    ];
    for (entries, code, message) in cases {
        let mut damaged = sound.clone();
        for (index, entry) in entries {
            damaged[table + index * 4..][..4].copy_from_slice(&entry.to_le_bytes());
        }
        dir.write("disk.vmdk", damaged);
        for form in ["--output=json", "--output=human"] {
            let ours = dir.run(&["check", form, "--no-follow", "disk.vmdk"]).exits(code);
            let theirs = dir.qemu_img(&["check", form, "disk.vmdk"]).unwrap().exits(code);
            assert_eq!(ours.out, theirs.out, "{entries:x?}");
            if code > 0 {
                ours.fails(code, &format!("disk.vmdk: grain at guest offset {message}"));
            }
        }
    }
}

#[test]
fn check_opens_extents_but_no_parent() {
    let dir = Folder::new();
    let save = |name: &str, lines: &str| dir.write(name, format!("{VMDK_HEAD}{lines}"));
    dir.write("flat", "x".repeat(1000));
    save("disk.vmdk", "RW 8 FLAT \"flat\" 1\n");
    save("past.vmdk", "RW 8 FLAT \"flat\" 1\nRW 8 FLAT \"flat\" 2\n");
    save("child.vmdk", "parentFileNameHint=\"none\"\nRW 8 FLAT \"flat\" 0\n");
    save("lost.vmdk", "RW 8 FLAT \"none\" 0\n");
    save("empty.vmdk", "");
    for [words, code, message] in rows(
        "check disk.vmdk | 0 |
         check empty.vmdk | 0 |
         check past.vmdk | 1 | past.vmdk: grain at guest offset 0x1000: the data of the extent begin
         check child.vmdk | 0 |
         check lost.vmdk | 1 | lost.vmdk: the file of an extent that it names:
         check --no-follow disk.vmdk | 1 | disk.vmdk: cannot open the image with --no-follow",
    ) {
        let code = code.parse().unwrap();
        let ours = dir.run(words).exits(code);
        assert!(code == 0 || ours.line().starts_with(message), "{ours:?}");
        // qemu-img has no such option, and opens the parent.
        if !words.contains("--no-follow") && !words.contains("child") {
            let Some(theirs) = dir.qemu_img(words) else { return };
            assert_eq!(ours.out, theirs.exits(code).out, "{words}");
        }
    }
}

/// Returns a sparse extent of 9 sectors in grains of 8, with these two entries of its grain table.
fn sparse_extent(entries: [u32; 2]) -> Vec<u8> {
    let mut extent = Damaged { bytes: vec![0; 6 * 512] };
    extent.put(0, b"KDMV\x01");
    extent.put(12, &[9]);
    extent.put(20, &[8]);
    extent.put(44, &512u32.to_le_bytes());
    extent.put(56, &[1]);
    extent.put(512, &[2]);
    extent.put(1024, &entries.map(u32::to_le_bytes).concat());
    extent.bytes
}

#[test]
fn grains_that_qemu_img_skips_are_skipped() {
    let dir = Folder::new();
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
        dir.write("disk.vmdk", format!("{VMDK_HEAD}{lines}"));
        dir.write("first", sparse_extent(first));
        dir.write("second", sparse_extent(second));
        let ours = dir.run("check disk.vmdk").exits(sector.is_some().into());
        let Some(theirs) = dir.qemu_img("check disk.vmdk") else { return };
        let theirs = theirs.exits(sector.is_some().into());
        if let Some(sector) = sector {
            let line = format!("ERROR: cluster offset for sector {sector} points after EOF");
            assert!(theirs.err.starts_with(&line), "{lines}{first:?} {second:?}: {theirs:?}");
            ours.fails(1, &format!("disk.vmdk: grain at guest offset {:#x}: ", sector * 512));
        }
    }
}
