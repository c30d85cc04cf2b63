//! `map`: its output is byte for byte that of qemu-img.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::skipped::skipped;
use crate::support::{CLUSTER, Damaged, error_line, qcowfuzz, qemu, qemu_img, text, with_image};

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
    // Also for a disk without a byte.
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
fn compressed_data_has_no_human_form() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("raw"), [b'y'; 262_144]).unwrap();
    let arguments = ["convert", "-f", "raw", "-c", "-O", "qcow2", "raw", "disk.qcow2"];
    let Some(_) = qemu_img(dir.path(), &arguments) else { return };
    let ours = qcowfuzz(dir.path(), &["map", "disk.qcow2"]);
    assert_eq!(ours.status.code(), Some(2));
    assert!(error_line(&ours).contains("compressed data at guest offset 0"));
    let qemu = qemu_img(dir.path(), &["map", "disk.qcow2"]).unwrap();
    assert_eq!((qemu.status.code(), text(&qemu.stdout)), (Some(1), text(&ours.stdout)));
    let ours = qcowfuzz(dir.path(), &["map", "--output=json", "disk.qcow2"]);
    let qemu = qemu_img(dir.path(), &["map", "--output=json", "disk.qcow2"]).unwrap();
    assert_eq!(text(&ours.stdout), text(&qemu.stdout));
}

/// Writes an image with a million extents to a sparse file: version 2, every other cluster in use.
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
fn a_reader_that_closes_the_pipe_is_no_error() {
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
        skipped("no /dev/full: an_output_that_is_full_is_an_error");
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
    assert!(error_line(&output).starts_with("standard output: "));
}

#[test]
fn the_format_is_probed_or_named_as_in_qemu_img() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| qemu_img(dir.path(), arguments);
    let Some(_) = run(&["create", "-q", "-f", "vpc", "disk.vhd", "9M"]) else { return };
    assert!(run(&["create", "-q", "-f", "vhdx", "disk.vhdx", "9M"]).unwrap().status.success());
    let fixed = ["create", "-q", "-f", "vpc", "-o", "subformat=fixed", "fixed.vhd", "9M"];
    assert!(run(&fixed).unwrap().status.success());
    let raw = fs::File::create(dir.path().join("disk.raw")).unwrap();
    raw.write_all_at(&[7; 70_000], 128 << 10).unwrap();
    raw.set_len((1 << 20) + 100).unwrap();
    fs::write(dir.path().join("odd.raw"), [7; 1000]).unwrap();
    fs::write(dir.path().join("empty.raw"), "").unwrap();
    for (base, format) in [("disk.vhd", "vpc"), ("disk.raw", "raw"), ("disk.vhdx", "vhdx")] {
        let over = [
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            base,
            "-F",
            format,
            &format!("over.{format}"),
            "12M",
        ];
        assert!(run(&over).unwrap().status.success());
    }
    let disks = ["disk.vhd", "fixed.vhd", "disk.vhdx", "disk.raw", "odd.raw", "empty.raw"];
    for name in disks.iter().chain(&["over.vpc", "over.vhdx", "over.raw"]) {
        for format in [&[][..], &["-f", "raw"], &["-f", "vpc"], &["-f", "vhdx"], &["-f", "qcow2"]] {
            for form in ["--output=json", "--output=human"] {
                let arguments = [&["map", form], format, &[name]].concat();
                let (ours, qemu) = (qcowfuzz(dir.path(), &arguments), run(&arguments).unwrap());
                assert_eq!(ours.status.success(), qemu.status.success(), "{arguments:?}");
                assert_eq!(text(&ours.stdout), text(&qemu.stdout), "{arguments:?}");
            }
        }
    }
}

#[test]
fn the_extents_of_a_vmdk_image_have_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let run = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let output = qemu_img(dir.path(), &arguments)?;
        assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
        Some(output)
    };
    // One grain on each side of the edge between two files.
    let raw = fs::File::create(dir.path().join("disk.raw")).unwrap();
    raw.write_all_at(&[7; 128 << 10], (2 << 30) - (64 << 10)).unwrap();
    raw.set_len(3 << 30).unwrap();
    let convert = "convert -f raw -O vmdk -o subformat";
    let Some(_) = run(&format!("{convert}=twoGbMaxExtentSparse disk.raw split.vmdk")) else {
        return;
    };
    run(&format!("{convert}=streamOptimized disk.raw stream.vmdk"));
    run("create -q -f qcow2 -b split.vmdk -F vmdk over.qcow2");
    run("create -q -f vmdk -b split.vmdk -F vmdk child.vmdk");
    for name in [
        "split.vmdk",
        "sub/../split.vmdk",
        "stream.vmdk",
        "over.qcow2",
        "child.vmdk",
        "./child.vmdk",
    ] {
        for form in ["--output=json", "--output=human"] {
            let arguments = ["map", form, name];
            let ours = qcowfuzz(dir.path(), &arguments);
            let qemu = qemu_img(dir.path(), &arguments).unwrap();
            assert_eq!(ours.status.success(), qemu.status.success(), "{arguments:?}");
            assert_eq!(text(&ours.stdout), text(&qemu.stdout), "{arguments:?}");
        }
    }
    let output = qcowfuzz(dir.path(), &["map", "--no-follow", "split.vmdk"]);
    assert_eq!(output.status.code(), Some(2));
    let what = "cannot map the image with --no-follow: it needs the file of an extent";
    assert_eq!(error_line(&output), format!("split.vmdk: {what}"));
    assert!(qcowfuzz(dir.path(), &["map", "--no-follow", "child.vmdk"]).status.success());
}

#[test]
fn vhdx_images_are_all_data_or_show_their_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let convert = ["convert", "-f", "raw", "-O", "vhdx", "-o", "block_size=1M", "raw", "disk.vhdx"];
    fs::write(dir.path().join("raw"), [vec![0; 1 << 20], vec![b'y'; 2 << 20]].concat()).unwrap();
    let Some(made) = qemu_img(dir.path(), &convert) else { return };
    assert!(made.status.success());
    let ours = qcowfuzz(dir.path(), &["map", "disk.vhdx"]);
    assert_eq!(ours.status.code(), Some(2));
    let line = "disk.vhdx: cannot print data without a host offset at guest offset 0 in the human format, \
                expected --blocks or --output json";
    assert_eq!(error_line(&ours), line);
    let ours = qcowfuzz(dir.path(), &["map", "--blocks", "disk.vhdx"]);
    let rows: Vec<&str> = text(&ours.stdout).lines().skip(1).collect();
    assert!(ours.status.success() && rows.len() == 1, "{rows:?}");
    assert!(rows[0].starts_with("0x100000        0x200000        0x"), "{rows:?}");
}

#[test]
fn data_in_holes_of_the_file_are_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let create = [
        "-f qcow2 -o preallocation=metadata first.qcow2 8M",
        "-f qcow2 -o data_file=guest.raw,preallocation=metadata with_data_file.qcow2 8M",
        "-f qcow2 -b first.qcow2 -F qcow2 overlay.qcow2 12M",
        "-f vpc -o subformat=fixed,force_size=on fixed.vhd 8M",
        "-f raw plain.raw 8M",
        "-f raw -o preallocation=falloc reserved.raw 8M",
        "-f raw -o preallocation=full written.raw 8M",
        "-f vmdk -o subformat=monolithicFlat flat.vmdk 8M",
    ];
    for create in create {
        let arguments: Vec<&str> = ["create", "-q"].into_iter().chain(create.split(' ')).collect();
        let Some(created) = qemu_img(dir.path(), &arguments) else { return };
        assert!(created.status.success(), "{created:?}");
    }
    let in_hole = "\"zero\": true, \"data\": true";
    let images = [
        ("qcow2", "first.qcow2", in_hole),
        // The image file decides, and it has no holes.
        ("qcow2", "with_data_file.qcow2", "\"zero\": false, \"data\": true"),
        ("qcow2", "overlay.qcow2", in_hole),
        ("vpc", "fixed.vhd", in_hole),
        ("vmdk", "flat.vmdk", in_hole),
        ("raw", "plain.raw", "\"zero\": true, \"data\": false"),
        // Some file systems cannot reserve space, and qemu-img then writes zeros, which are data.
        ("raw", "reserved.raw", "\"zero\": false, \"data\": true"),
        ("raw", "written.raw", "\"zero\": false, \"data\": true"),
    ];
    for (format, image, shown) in images {
        let write = ["-f", format, "-c", "write 1M 100k", "-c", "write 5000 100", image];
        qemu("qemu-io", dir.path(), &write).unwrap();
        for output in ["--output=json", "--output=human"] {
            let arguments = ["map", "-f", format, output, image];
            let ours = qcowfuzz(dir.path(), &arguments);
            let theirs = qemu_img(dir.path(), &arguments).unwrap();
            assert!(theirs.status.success(), "{theirs:?}");
            assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{arguments:?}");
            let has = text(&ours.stdout).contains(shown);
            assert!(has || output == "--output=human", "{image}: {ours:?}");
        }
    }
}

/// A change of the bytes of a VHD image, from a footer on.
type VhdChange = fn(&mut [u8]);

/// The footer at the beginning alone decides the kind of a dynamic disk. Neither the length of the file nor the usual
/// size of blocks matters.
#[test]
fn vhd_images_of_every_kind_are_mapped_as_in_qemu_img() {
    let dir = tempfile::tempdir().unwrap();
    let create = "create -q -f vpc -o force_size=on,subformat=";
    for (subformat, image) in [("dynamic", "dynamic.vhd"), ("fixed", "fixed.vhd")] {
        let create = format!("{create}{subformat} {image} 9M");
        let Some(made) = qemu_img(dir.path(), &create.split(' ').collect::<Vec<_>>()) else {
            return;
        };
        assert!(made.status.success());
        let write = ["-f", "vpc", "-c", "write -P 7 3M 1M", image];
        assert!(qemu("qemu-io", dir.path(), &write).unwrap().status.success());
    }
    let cases: [(&str, usize, VhdChange, &str); 8] = [
        ("dynamic.vhd", 0, |footer| footer[63] = 0, "\"present\": true, \"zero\": true"),
        ("dynamic.vhd", 0, |footer| footer[63] = 1, "\"present\": true, \"zero\": true"),
        ("dynamic.vhd", 0, |footer| footer[63] = 3, "\"present\": true, \"zero\": true"),
        // A differencing disk.
        ("dynamic.vhd", 0, |footer| footer[63] = 4, "\"present\": true, \"zero\": true"),
        ("dynamic.vhd", 0, |footer| footer[63] = 5, "\"present\": true, \"zero\": true"),
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
        let mut bytes = fs::read(dir.path().join(image)).unwrap();
        change(&mut bytes[at..]);
        let footer = &mut bytes[at..at + 512];
        footer[64..68].fill(0);
        let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
        footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
        // A block of 4 MiB needs more room.
        if image == "dynamic.vhd" {
            bytes.resize(bytes.len() + (4 << 20), 0);
        }
        fs::write(dir.path().join("changed.vhd"), bytes).unwrap();
        let arguments = ["map", "--output=json", "-f", "vpc", "changed.vhd"];
        let ours = qcowfuzz(dir.path(), &arguments);
        let theirs = qemu_img(dir.path(), &arguments).unwrap();
        assert!(theirs.status.success(), "{theirs:?}");
        assert_eq!(text(&ours.stdout), text(&theirs.stdout));
        assert!(text(&ours.stdout).contains(shown), "{shown}: {}", text(&ours.stdout));
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
    let dir = tempfile::tempdir().unwrap();
    let head = "version=1\nCID=1\nparentCID=1\ncreateType=\"vmfs\"\n";
    fs::write(dir.path().join("extent"), extent_with_footer()).unwrap();
    fs::write(dir.path().join("raw"), [7; 4096]).unwrap();
    let sparse = format!("{head}RW 8 SPARSE \"extent\"\n");
    let child =
        |parent: &str| format!("{head}parentFileNameHint=\"{parent}\"\nRW 8 VMFS \"raw\"\n");
    let cases = [
        // The footer is that at the end of the descriptor's length.
        ("extent.vmdk", sparse.clone(), 8 * 512, true),
        ("longer.vmdk", sparse.clone(), 9 * 512, false),
        ("shorter.vmdk", sparse, 200, false),
        ("child.vmdk", child("extent.vmdk"), 0, true),
        // A parent is a VMDK image, even if it is nothing like it.
        ("orphan.vmdk", child("raw"), 0, false),
    ];
    for (name, mut descriptor, length, opens) in cases {
        let more = length - descriptor.len().min(length);
        descriptor += &"\0".repeat(more);
        fs::write(dir.path().join(name), descriptor).unwrap();
        let arguments = ["map", "--output=json", "-f", "vmdk", name];
        let ours = qcowfuzz(dir.path(), &arguments);
        let Some(theirs) = qemu_img(dir.path(), &arguments) else { return };
        assert_eq!(theirs.status.success(), opens, "{name}: {theirs:?}");
        assert_eq!(ours.status.success(), opens, "{name}: {ours:?}");
        assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{name}");
    }
}

/// QEMU prints a negative offset for such data, and fails to read them.
#[test]
fn flat_data_past_the_longest_file_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("raw"), [7; 4096]).unwrap();
    let head = "version=1\nCID=1\nparentCID=1\ncreateType=\"vmfs\"\nRW 2 FLAT \"raw\" 3\n";
    for sector in ["18014398509481982", "9223372036854775807", &"6".repeat(40)] {
        let descriptor = format!("{head}RW 1 FLAT \"raw\" {sector}\n");
        fs::write(dir.path().join("disk.vmdk"), descriptor).unwrap();
        let ours = qcowfuzz(dir.path(), &["map", "--output=json", "disk.vmdk"]);
        assert_eq!(ours.status.code(), Some(2), "{ours:?}");
        let message = "disk.vmdk: grain at guest offset 1024: the data of the extent pass";
        assert!(error_line(&ours).starts_with(message), "{}", error_line(&ours));
        // The first extent, and nothing of the second one.
        assert_eq!(text(&ours.stdout).lines().count(), 1, "{ours:?}");
    }
}
