//! `map`: its output is byte for byte that of qemu-img.

use std::io::Read;
use std::os::unix::fs::FileExt;

use test_support::prelude::*;

use crate::support::{CLUSTER, Damaged, Folder, OURS, Ran, VMDK_HEAD};

#[test]
fn map_prints_what_qemu_img_prints() {
    let dir = Folder::with_image();
    for window in [
        "",
        "--start-offset=64k",
        "--start-offset=100000 --max-length=1000",
        "--start-offset=0x12345 --max-length=0.25M",
        "--max-length=0",
        "--max-length=1",
        "--start-offset=1M",
        "--start-offset=1048575",
        "--start-offset=1048577 --max-length=5",
        "--start-offset=7E",
        "--start-offset=9223372036854775807 --max-length=9223372036854775807",
    ] {
        for form in ["--output=json", "--output=human", ""] {
            let words = format!("map {window} {form} ./disk.qcow2");
            dir.run(&words).ok().quiet();
            dir.same(&words);
        }
    }
}

/// Returns the record that `map` prints for a window without a byte.
fn empty_record(start: u64) -> String {
    format!(
        "[{{ \"start\": {start}, \"length\": 0, \"depth\": 0, \"present\": false, \"zero\": false, \
         \"data\": false, \"compressed\": false}}]\n"
    )
}

/// The one known difference in windows: QEMU 10.0.2 adds start and length in 64 signed bits, and takes a
/// window whose end overflows for an empty one. Here it reaches to the end of the disk.
#[test]
fn a_window_that_ends_past_2_63_reaches_to_the_end_of_the_disk() {
    let dir = Folder::with_image();
    let open = "map --output=json --start-offset=1 disk.qcow2";
    let window = format!("{open} --max-length=9223372036854775807");
    assert_eq!(dir.run(&window).out, dir.run(open).out);
    let Some(theirs) = dir.qemu_img(&window) else { return };
    let expected = empty_record(1);
    assert_eq!(theirs.out, expected, "QEMU answers otherwise now: the difference may be gone");
}

#[test]
fn a_window_without_a_byte_is_one_empty_record() {
    let dir = Folder::with_image();
    let ours = dir.run("map --output=json --start-offset=1P disk.qcow2");
    assert_eq!(ours.out, empty_record(1 << 50));
    // Also for a disk without a byte.
    let mut damaged = Damaged::new(&dir);
    damaged.put(24, &[0; 8]);
    dir.write("zero.qcow2", &damaged.bytes);
    assert_eq!(dir.run("map --output=json zero.qcow2").out, empty_record(0));
    assert_eq!(dir.run("map zero.qcow2").ok().out.lines().count(), 1);
}

#[test]
fn compressed_data_has_no_human_form() {
    let dir = Folder::of([("raw", &[b'y'; 262_144])]);
    let Some(_) = dir.qemu_img("convert -f raw -c -O qcow2 raw disk.qcow2") else { return };
    let [ours, theirs] = dir.same("map disk.qcow2").unwrap();
    let ours = ours.exits(2);
    assert!(ours.line().contains("compressed data at guest offset 0x0"), "{ours:?}");
    theirs.exits(1);
    dir.same("map --output=json disk.qcow2");
}

/// Writes `long.qcow2`, an image with a million extents, to a sparse file: version 2, every other cluster in use.
fn long_image(dir: &Folder) {
    let file = File::create(dir.join("long.qcow2")).unwrap();
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
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_error() {
    let dir = Folder::new();
    long_image(&dir);
    for form in ["json", "human"] {
        let mut command = dir.command(OURS, &["map", "--output", form, "long.qcow2"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 100];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        Ran::from(child.wait_with_output().unwrap()).ok().quiet();
    }
}

#[test]
fn an_output_that_is_full_is_an_error() {
    let dir = Folder::with_image();
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        skipped("no /dev/full: an_output_that_is_full_is_an_error");
        return;
    };
    let mut command = dir.command(OURS, "map disk.qcow2");
    let child = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap();
    Ran::from(child.wait_with_output().unwrap()).fails(2, "standard output: ");
}

#[test]
fn the_format_is_probed_or_named_as_in_qemu_img() {
    let dir = Folder::new();
    for create in ["vpc disk.vhd 9M", "vhdx disk.vhdx 9M", "vpc -o subformat=fixed fixed.vhd 9M"] {
        let Some(_) = dir.create(create) else { return };
    }
    let raw = File::create(dir.join("disk.raw")).unwrap();
    raw.write_all_at(&[7; 70_000], 128 << 10).unwrap();
    raw.set_len((1 << 20) + 100).unwrap();
    dir.write("odd.raw", [7; 1000]);
    dir.write("empty.raw", "");
    for (base, format) in [("disk.vhd", "vpc"), ("disk.raw", "raw"), ("disk.vhdx", "vhdx")] {
        dir.create(&format!("qcow2 -b {base} -F {format} over.{format} 12M"));
    }
    let disks = ["disk.vhd", "fixed.vhd", "disk.vhdx", "disk.raw", "odd.raw", "empty.raw"];
    for name in disks.iter().chain(&["over.vpc", "over.vhdx", "over.raw"]) {
        for format in ["", "-f raw", "-f vpc", "-f vhdx", "-f qcow2"] {
            for form in ["json", "human"] {
                dir.same(&format!("map --output={form} {format} {name}"));
            }
        }
    }
}

#[test]
fn the_extents_of_a_vmdk_image_have_files() {
    let dir = Folder::new();
    fs::create_dir(dir.join("sub")).unwrap();
    // One grain on each side of the edge between two files.
    let raw = File::create(dir.join("disk.raw")).unwrap();
    raw.write_all_at(&[7; 128 << 10], (2 << 30) - (64 << 10)).unwrap();
    raw.set_len(3 << 30).unwrap();
    let convert = "convert -f raw -O vmdk -o subformat";
    for words in
        ["twoGbMaxExtentSparse disk.raw split.vmdk", "streamOptimized disk.raw stream.vmdk"]
    {
        let Some(made) = dir.qemu_img(&format!("{convert}={words}")) else { return };
        made.ok();
    }
    dir.create("qcow2 -b split.vmdk -F vmdk over.qcow2");
    dir.create("vmdk -b split.vmdk -F vmdk child.vmdk");
    let names = "split.vmdk sub/../split.vmdk stream.vmdk over.qcow2 child.vmdk ./child.vmdk";
    for name in names.split(' ') {
        for form in ["json", "human"] {
            dir.same(&format!("map --output={form} {name}"));
        }
    }
    let ran = dir.run("map --no-follow split.vmdk").fails(2, "");
    let what = "cannot map the image with --no-follow: it needs the file of an extent";
    assert_eq!(ran.line(), format!("split.vmdk: {what}"));
    dir.run("map --no-follow child.vmdk").ok();
}

#[test]
fn vhdx_images_are_all_data_or_show_their_blocks() {
    let dir = Folder::of([("raw", &[vec![0; 1 << 20], vec![b'y'; 2 << 20]].concat())]);
    let convert = "convert -f raw -O vhdx -o block_size=1M raw disk.vhdx";
    let Some(made) = dir.qemu_img(convert) else { return };
    made.ok();
    let line = "disk.vhdx: cannot print data without a host offset at guest offset 0x0 in the human format, \
                expected --blocks or --output json";
    assert_eq!(dir.run("map disk.vhdx").exits(2).line(), line);
    let ours = dir.run("map --blocks disk.vhdx").ok();
    let rows: Vec<&str> = ours.out.lines().skip(1).collect();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert!(rows[0].starts_with("0x100000        0x200000        0x"), "{rows:?}");
}

#[test]
fn data_in_holes_of_the_file_are_zeros() {
    let dir = Folder::new();
    let (in_hole, is_data) = ("\"zero\": true, \"data\": true", "\"zero\": false, \"data\": true");
    for (create, shown) in [
        ("qcow2 -o preallocation=metadata first.qcow2 8M", in_hole),
        // The image file decides, and it has no holes.
        ("qcow2 -o data_file=guest.raw,preallocation=metadata with_data_file.qcow2 8M", is_data),
        ("qcow2 -b first.qcow2 -F qcow2 overlay.qcow2 12M", in_hole),
        ("vpc -o subformat=fixed,force_size=on fixed.vhd 8M", in_hole),
        ("vmdk -o subformat=monolithicFlat flat.vmdk 8M", in_hole),
        ("raw plain.raw 8M", "\"zero\": true, \"data\": false"),
        // Some file systems cannot reserve space, and qemu-img then writes zeros, which are data.
        ("raw -o preallocation=falloc reserved.raw 8M", is_data),
        ("raw -o preallocation=full written.raw 8M", is_data),
    ] {
        let Some(_) = dir.create(create) else { return };
        let (format, image) =
            (create.split(' ').next().unwrap(), create.split(' ').rev().nth(1).unwrap());
        for request in ["write 1M 100k", "write 5000 100"] {
            dir.qemu_io(format, request, image);
        }
        let [ours, theirs] = dir.same(&format!("map -f {format} --output=json {image}")).unwrap();
        theirs.ok();
        ours.has(shown);
        for ran in dir.same(&format!("map -f {format} --output=human {image}")).unwrap() {
            ran.ok();
        }
    }
}

/// QEMU does not read the parent either, and says nothing.
#[test]
fn a_parent_that_is_not_read_is_named() {
    let dir = Folder::new();
    let Some(_) = dir.create("vpc disk.vhd 9M") else { return };
    let mut image = dir.read("disk.vhd");
    let end = image.len() - 512;
    for footer in [0, end] {
        assert_eq!(image[footer + 63], 3);
        // A differencing disk. The checksum is the complement of the sum of the bytes.
        image[footer + 63] = 4;
        image[footer + 67] -= 1;
    }
    dir.write("child.vhd", &image);
    dir.create("qcow2 -b child.vhd -F vpc above.qcow2").unwrap();
    let warning = "child.vhd: warning: the parent of this image is not read, so its data read as zeros, as in QEMU";
    for words in [
        "map --output=json child.vhd",
        "map --output=json above.qcow2",
        "map --output=json -f vpc child.vhd",
        "info child.vhd",
        "measure -O raw child.vhd",
    ] {
        let [ours, theirs] = dir.same(words).unwrap();
        assert_eq!((ours.ok().line(), &*theirs.ok().err), (warning, ""), "{words}");
    }
    let no_follow = dir.run("map --no-follow child.vhd").ok();
    assert_eq!(no_follow.line(), warning);
    assert_eq!(dir.run("convert child.vhd raw").ok().line(), warning);
    let checked = dir.run("check child.vhd").exits(63);
    assert!(checked.err.starts_with(&format!("qcowfuzz: {warning}\n")), "{checked:?}");
    dir.run("map disk.vhd").ok().quiet();
    dir.run("map -f raw child.vhd").ok().quiet();
}

/// A change of the bytes of a VHD image, from a footer on.
type VhdChange = fn(&mut [u8]);

/// The footer at the beginning alone decides the kind of a dynamic disk. Neither the length of the file nor the usual
/// size of blocks matters.
#[test]
fn vhd_images_of_every_kind_are_mapped_as_in_qemu_img() {
    let dir = Folder::new();
    for subformat in ["dynamic", "fixed"] {
        let create = format!("vpc -o force_size=on,subformat={subformat} {subformat}.vhd 9M");
        let Some(_) = dir.create(&create) else { return };
        dir.qemu_io("vpc", "write -P 7 3M 1M", &format!("{subformat}.vhd"));
    }
    let zeros = "\"present\": true, \"zero\": true";
    let cases: [(&str, usize, VhdChange, &str); 8] = [
        ("dynamic.vhd", 0, |footer| footer[63] = 0, zeros),
        ("dynamic.vhd", 0, |footer| footer[63] = 1, zeros),
        ("dynamic.vhd", 0, |footer| footer[63] = 3, zeros),
        // A differencing disk.
        ("dynamic.vhd", 0, |footer| footer[63] = 4, zeros),
        ("dynamic.vhd", 0, |footer| footer[63] = 5, zeros),
        // A fixed disk, which begins with the footer.
        (
            "dynamic.vhd",
            0,
            |footer| footer[63] = 2,
            "\"data\": true, \"compressed\": false, \"offset\": 0}",
        ),
        // Blocks of 4 MiB, in the dynamic header behind the footer. The second block is in use.
        (
            "dynamic.vhd",
            0,
            |image| image[512 + 32..][..4].copy_from_slice(&(4u32 << 20).to_be_bytes()),
            "\"start\": 4194304, \"length\": 4194304",
        ),
        // A disk of 12 MiB in a file of 9 MiB.
        (
            "fixed.vhd",
            9 << 20,
            |footer| footer[48..56].copy_from_slice(&(12u64 << 20).to_be_bytes()),
            "\"offset\": 9437",
        ),
    ];
    for (image, at, change, shown) in cases {
        let mut bytes = dir.read(image);
        change(&mut bytes[at..]);
        let footer = &mut bytes[at..at + 512];
        footer[64..68].fill(0);
        let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
        footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
        // A block of 4 MiB needs more room.
        if image == "dynamic.vhd" {
            bytes.resize(bytes.len() + (4 << 20), 0);
        }
        dir.write("changed.vhd", bytes);
        let [ours, theirs] = dir.same("map --output=json -f vpc changed.vhd").unwrap();
        theirs.ok();
        ours.has(shown);
    }
}

/// Returns a sparse extent of one grain whose header lies in a footer at sector 5.
fn extent_with_footer() -> Vec<u8> {
    let mut bytes = vec![0; 24 * 512];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    for (at, directory) in [(0, u64::MAX), (6 * 512, 8)] {
        put(at, b"KDMV\x01");
        put(at + 12, &[8]);
        put(at + 20, &[8]);
        put(at + 44, &512u32.to_le_bytes());
        put(at + 56, &directory.to_le_bytes());
    }
    // The marker of the footer, the only directory entry, and the only entry of its table.
    put(5 * 512 + 12, &[3]);
    put(8 * 512, &[9]);
    put(9 * 512, &[16]);
    bytes
}

#[test]
fn the_parts_of_a_vmdk_disk_are_opened_as_in_qemu_img() {
    let dir = Folder::of([("extent", &extent_with_footer()), ("raw", &[7; 4096])]);
    let sparse = "RW 8 SPARSE \"extent\"\n".to_string();
    let child = |parent: &str| format!("parentFileNameHint=\"{parent}\"\nRW 8 VMFS \"raw\"\n");
    for (name, lines, length, opens) in [
        // The footer is that at the end of the descriptor's length.
        ("extent.vmdk", sparse.clone(), 8 * 512, true),
        ("longer.vmdk", sparse.clone(), 9 * 512, false),
        ("shorter.vmdk", sparse, 200, false),
        ("child.vmdk", child("extent.vmdk"), 0, true),
        // A parent is a VMDK image, even if it is nothing like it.
        ("orphan.vmdk", child("raw"), 0, false),
    ] {
        let mut descriptor = format!("{VMDK_HEAD}{lines}").into_bytes();
        descriptor.resize(descriptor.len().max(length), 0);
        dir.write(name, descriptor);
        let Some([ours, _]) = dir.same(&format!("map --output=json -f vmdk {name}")) else {
            return;
        };
        assert_eq!(ours.code == Some(0), opens, "{name}: {ours:?}");
    }
}

/// QEMU prints a negative offset for such data, and fails to read them.
#[test]
fn flat_data_past_the_longest_file_are_an_error() {
    let dir = Folder::of([("raw", &[7; 4096])]);
    for sector in ["18014398509481982", "9223372036854775807", &"6".repeat(40)] {
        let lines = format!("RW 2 FLAT \"raw\" 3\nRW 1 FLAT \"raw\" {sector}\n");
        dir.write("disk.vmdk", format!("{VMDK_HEAD}{lines}"));
        let ours = dir.run("map --output=json disk.vmdk").exits(2);
        let message = "disk.vmdk: grain at guest offset 0x400: the data of the extent pass";
        assert!(ours.line().starts_with(message), "{ours:?}");
        // The first extent, and nothing of the second one.
        assert_eq!(ours.out.lines().count(), 1, "{ours:?}");
    }
}
