//! `info`, `convert` and `measure`: the record of an image, as qemu-img prints it, its copies, and the sizes of new
//! images.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{Damaged, error_line, qcowfuzz, qemu, qemu_img, text, with_image};

/// The commands that make the images.
const MAKING: &[&str] = &[
    "create -q -f qcow2 base.qcow2 64M",
    "create -q -f qcow2 -b base.qcow2 -F qcow2 over.qcow2 65000k",
    "create -q -f qcow2 -u -b ../base.qcow2 -F raw sub/below.qcow2 1G",
    "create -q -f qcow2 -u -b nbd://host/disk -F raw remote.qcow2 1000",
    "create -q -f qcow2 -o compat=0.10 old.qcow2 3M",
    "snapshot -c first old.qcow2",
    "snapshot -c n\u{e4}me old.qcow2",
    "create -q -f qcow2 -o cluster_size=512,refcount_bits=1,lazy_refcounts=on small.qcow2 1000M",
    "create -q -f qcow2 -o extended_l2=on,data_file=data.raw,data_file_raw=on apart.qcow2 1023488",
    "bitmap --add -g 4096 apart.qcow2 one",
    "bitmap --add --disable apart.qcow2 two",
    "create -q -f qcow2 -o compression_type=zstd empty.qcow2 0",
    "create -q -f qcow2 -o cluster_size=2M huge.qcow2 1P",
    "create -q -f vpc disk.vhd 5M",
    "create -q -f vpc -o subformat=fixed fixed.vhd 3M",
    "create -q -f vpc large.vhd 200G",
    "create -q -f vhdx disk.vhdx 5M",
    "create -q -f vdi disk.vdi 5M",
    "create -q -f vdi -o static=on static.vdi 2M",
    "create -q -f raw plain.raw 1000k",
    "create -q -f vmdk disk.vmdk 5M",
    "create -q -f vmdk -o subformat=monolithicFlat,adapter_type=legacyESX sub/flat.vmdk 1000001",
    "create -q -f vmdk -o subformat=twoGbMaxExtentSparse,zeroed_grain=on parts.vmdk 5G",
    "create -q -f vmdk -o subformat=twoGbMaxExtentFlat,hwversion=7 flats.vmdk 3M",
    "create -q -f vmdk -o subformat=streamOptimized,compat6=on stream.vmdk 1000k",
    "create -q -f vmdk -b disk.vmdk -F vmdk child.vmdk 5M",
    "create -q -f vmdk -o subformat=twoGbMaxExtentSparse -b ../disk.vmdk -F vmdk sub/child.vmdk 5M",
];

const IMAGES: &[(&str, &str)] = &[
    ("qcow2", "over.qcow2"),
    ("qcow2", "./over.qcow2"),
    ("qcow2", "sub/below.qcow2"),
    ("qcow2", "remote.qcow2"),
    ("qcow2", "old.qcow2"),
    ("qcow2", "odd.qcow2"),
    ("qcow2", "small.qcow2"),
    ("qcow2", "apart.qcow2"),
    ("qcow2", "empty.qcow2"),
    ("qcow2", "huge.qcow2"),
    ("vpc", "disk.vhd"),
    ("vpc", "fixed.vhd"),
    ("vpc", "large.vhd"),
    ("vhdx", "disk.vhdx"),
    ("vdi", "disk.vdi"),
    ("vdi", "static.vdi"),
    ("vmdk", "disk.vmdk"),
    ("vmdk", "sub/flat.vmdk"),
    ("vmdk", "parts.vmdk"),
    ("vmdk", "./flats.vmdk"),
    ("vmdk", "stream.vmdk"),
    ("vmdk", "child.vmdk"),
    ("vmdk", "sub/child.vmdk"),
    ("vmdk", "mixed.vmdk"),
    ("vmdk", "two.vmdk"),
    ("vmdk", "esx.vmdk"),
    ("raw", "plain.raw"),
    ("raw", "over.qcow2"),
];

/// Makes the images in `dir`. Returns `None` if qemu-img is not installed.
fn make(dir: &Path) -> Option<()> {
    fs::create_dir(dir.join("sub")).unwrap();
    for command in MAKING {
        let made = qemu_img(dir, &command.split(' ').collect::<Vec<_>>())?;
        assert!(made.status.success(), "{command}: {made:?}");
    }
    // The data file is not opened, and need not exist.
    fs::remove_file(dir.join("data.raw")).unwrap();
    // The extra data of a snapshot: the length of the VM state, the size of the disk, and no instruction count.
    let mut bytes = fs::read(dir.join("old.qcow2")).unwrap();
    let table = u64::from_be_bytes(bytes[64..72].try_into().unwrap()) as usize;
    bytes[table + 40..][..8].copy_from_slice(&(1_u64 << 63 | 5).to_be_bytes());
    bytes[table + 56..][..8].fill(0xFF);
    fs::write(dir.join("odd.qcow2"), bytes).unwrap();
    // Extents of different kinds; extents of one kind in one file; and an extent in the format of ESX.
    let absolute = dir.join("stream.vmdk");
    let stream = format!("RW 8 SPARSE \"{}\"\n", absolute.display());
    describe(
        dir,
        "mixed.vmdk",
        &format!("RW 8 FLAT \"plain.raw\" 0\n{stream}RW 8 VMFS \"./plain.raw\"\n"),
    );
    describe(dir, "two.vmdk", "RW 8 FLAT \"plain.raw\" 0\nRW 9 FLAT \"plain.raw\" 8\n");
    let header = [1u32, 3, 64, 16, 4, 1].map(u32::to_le_bytes).concat();
    let identity = [&b"COWD"[..], &header, &[0; 484], b"CID=1\nparentCID=ffffffff\n", &[0; 3000]];
    fs::write(dir.join("esx.vmdk"), identity.concat()).unwrap();
    Some(())
}

/// Writes a VMDK descriptor with these lines of extents.
fn describe(dir: &Path, name: &str, extents: &str) {
    let head = "version=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"vmfs\"\n";
    fs::write(dir.join(name), format!("{head}{extents}")).unwrap();
}

/// Returns the output of a tool for `info` with these arguments. qemu-img prints its dates in UTC.
fn info(tool: &str, dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(tool);
    command.arg("info").args(arguments).current_dir(dir).env("TZ", "UTC").output().unwrap()
}

#[test]
fn info_prints_what_qemu_img_prints() {
    let dir = tempfile::tempdir().unwrap();
    let Some(()) = make(dir.path()) else { return };
    let ours = env!("CARGO_BIN_EXE_qcowfuzz");
    for (format, image) in IMAGES {
        let arguments = ["-f", format, image];
        let [ours, theirs] = [ours, "qemu-img"].map(|tool| info(tool, dir.path(), &arguments));
        assert!(ours.status.success() && ours.stderr.is_empty(), "{image}: {ours:?}");
        assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{image}");
    }
    for (format, image) in IMAGES {
        // The format is probed, except for a file that has a reason to be something else.
        let probed = &["--output=json", image][..];
        let named = &["--output=json", "-f", format, image][..];
        let is_named = *image == "fixed.vhd" || *format == "raw";
        let arguments = if is_named { named } else { probed };
        let [ours, theirs] = [ours, "qemu-img"].map(|tool| {
            let output = info(tool, dir.path(), arguments);
            assert!(output.status.success(), "{image}: {output:?}");
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        });
        assert_eq!(ours, theirs, "{image}");
    }
}

/// The record of an image without qemu-img.
#[test]
fn info_describes_the_image() {
    let dir = with_image();
    let output = qcowfuzz(dir.path(), &["info", "--output", "json", "disk.qcow2"]);
    assert!(output.status.success(), "{output:?}");
    let info: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(info["virtual-size"], 16 << 16);
    assert_eq!(info["format-specific"]["data"]["refcount-bits"], 16);
    assert_eq!(info["children"][0]["info"]["format"], "file");
    let output = qcowfuzz(dir.path(), &["info", "disk.qcow2"]);
    let printed = text(&output.stdout);
    assert!(printed.contains("\nvirtual size: 1 MiB (1048576 bytes)\n"), "{printed}");
    assert!(printed.contains("\n    compat: 1.1\n"), "{printed}");
}

#[test]
fn names_that_are_not_text_are_printed_as_qemu_img_does() {
    let dir = tempfile::tempdir().unwrap();
    let name = b"a\xff\xe4b\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xef\xbf\xbe\x7f\x01\xe2\x82";
    let name = std::ffi::OsStr::from_bytes(name);
    let words = ["create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b"];
    let mut create = Command::new("qemu-img");
    create.args(words).arg(name).args(["named.qcow2", "1M"]).current_dir(dir.path());
    let Some(_) = qemu_img(dir.path(), &["--version"]) else { return };
    assert!(create.output().unwrap().status.success());
    let ours = env!("CARGO_BIN_EXE_qcowfuzz");
    let run = |form: &str| {
        [ours, "qemu-img"].map(|tool| info(tool, dir.path(), &["--output", form, "named.qcow2"]))
    };
    let [ours, theirs] = run("human");
    assert_eq!(ours.stdout, theirs.stdout);
    let [ours, theirs] =
        run("json").map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap());
    assert_eq!(ours, theirs);
}

#[test]
fn an_image_that_cannot_be_opened_exits_with_1() {
    let dir = with_image();
    let mut image = Damaged::new(dir.path());
    image.put(4, &9u32.to_be_bytes());
    image.save(dir.path(), "damaged.qcow2");
    fs::write(dir.path().join("short.qcow2"), b"QFI\xfb\0\0\0\x03").unwrap();
    describe(dir.path(), "empty.vmdk", "");
    describe(dir.path(), "lost.vmdk", "RW 8 FLAT \"none\" 0\n");
    describe(dir.path(), "remote.vmdk", "RW 8 FLAT \"nbd://host/disk\" 0\n");
    describe(dir.path(), "flat.vmdk", "RW 8 FLAT \"disk.qcow2\" 0\n");
    for (arguments, message) in [
        (&["none.qcow2"][..], "none.qcow2: No such file"),
        (&["."], ".: not a regular file"),
        (&["damaged.qcow2"], "damaged.qcow2: header: version is 9, expected 2 or 3"),
        (&["short.qcow2"], "(the file ends after 8 bytes)"),
        (&["-f", "vpc", "disk.qcow2"], "disk.qcow2: not a vpc image"),
        (&["-f", "qed", "disk.qcow2"], "format 'qed' is not supported, expected one of qcow2"),
        (&["empty.vmdk"], "empty.vmdk: not a vmdk image: the descriptor names no extent"),
        (&["lost.vmdk"], "lost.vmdk: the file of an extent that it names: "),
        (&["remote.vmdk"], "the file of an extent 'nbd://host/disk' names a protocol"),
        (&["--no-follow", "flat.vmdk"], "flat.vmdk: cannot open the image with --no-follow"),
    ] {
        let output = qcowfuzz(dir.path(), &[&["info"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(error_line(&output).contains(message), "{}", error_line(&output));
    }
}

/// Makes images of every format, one of them over another. Returns their formats and names.
fn images(dir: &Path) -> Option<Vec<(&'static str, &'static str)>> {
    let create = [
        ("qcow2", "-o extended_l2=on plain.qcow2 9M"),
        ("qcow2", "-b plain.qcow2 -F qcow2 over.qcow2 12345k"),
        ("vpc", "-o force_size=on disk.vhd 5M"),
        ("vpc", "-o subformat=fixed fixed.vhd 3M"),
        ("raw", "plain.raw 1000k"),
    ];
    for (format, create) in create {
        let image = create.split(' ').rev().nth(1).unwrap();
        let arguments = ["create", "-q", "-f", format].into_iter().chain(create.split(' '));
        let created = qemu_img(dir, &arguments.collect::<Vec<_>>())?;
        assert!(created.status.success(), "{created:?}");
        let write = ["-f", format, "-c", "write -P 7 4k 90k", "-c", "write -P 9 700k 5000", image];
        assert!(qemu("qemu-io", dir, &write)?.status.success());
    }
    let image = |(format, create): (&'static str, &'static str)| {
        (format, create.split(' ').rev().nth(1).unwrap())
    };
    Some(create.map(image).to_vec())
}

#[test]
fn convert_writes_what_qemu_img_writes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(images) = images(dir.path()) else { return };
    for (format, image) in images {
        let theirs = ["convert", "-f", format, "-O", "raw", image, "theirs.raw"];
        assert!(qemu_img(dir.path(), &theirs).unwrap().status.success());
        let ours = qcowfuzz(
            dir.path(),
            &["convert", "-f", format, "-O", "raw", image, "ours.raw", "--force"],
        );
        assert!(ours.status.success() && ours.stderr.is_empty(), "{image}: {ours:?}");
        let [our, their] = ["ours.raw", "theirs.raw"].map(|name| dir.path().join(name));
        assert!(fs::read(&our).unwrap() == fs::read(&their).unwrap(), "{image}");
        let blocks = |path: &Path| path.metadata().unwrap().blocks();
        assert!(blocks(&our) <= blocks(&their), "{image}: {} blocks", blocks(&our));
    }
}

/// The content of a VMDK parent has changed, so that it must not be read. Its holes are not read.
#[test]
fn holes_of_a_changed_parent_are_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let qemu_img = |line: &str| qemu_img(dir.path(), &line.split(' ').collect::<Vec<_>>());
    let write = |request: &str, image: &str| {
        let written = qemu("qemu-io", dir.path(), &["-f", "vmdk", "-c", request, image]).unwrap();
        assert!(written.status.success(), "{written:?}");
    };
    let flat = "create -q -f vmdk -o subformat=monolithicFlat parent.vmdk 128k";
    let Some(created) = qemu_img(flat) else { return };
    assert!(created.status.success(), "{created:?}");
    let child = qemu_img("create -q -f vmdk -b parent.vmdk -F vmdk child.vmdk").unwrap();
    assert!(child.status.success(), "{child:?}");
    write("write -P 7 0 64k", "child.vmdk");
    let exits = |name: &str| {
        let arguments = ["convert", "-O", "raw", "child.vmdk", name];
        let theirs = qemu_img(&arguments.join(" ")).unwrap().status.code();
        (theirs, qcowfuzz(dir.path(), &[&arguments[..], &["--force"]].concat()).status.code())
    };
    write("write -P 8 0 512", "parent.vmdk");
    assert_eq!(exits("hole.raw"), (Some(0), Some(0)));
    write("write -P 9 64k 512", "parent.vmdk");
    assert_eq!(exits("data.raw"), (Some(1), Some(1)));
}

#[test]
fn a_failure_leaves_no_output() {
    let dir = with_image();
    let run = |arguments: &[&str]| {
        let arguments = [&["convert"], arguments].concat();
        qcowfuzz(dir.path(), &arguments)
    };
    assert!(run(&["disk.qcow2", "disk.raw"]).status.success());
    // A file is overwritten only with --force, and the image never.
    for (arguments, message) in [
        (
            &["disk.qcow2", "disk.raw"][..],
            "disk.raw: the file exists, expected a new one or --force",
        ),
        (&["--force", "disk.qcow2", "disk.qcow2"], "is the input file, expected another file"),
        (&["disk.qcow2", "no/disk.raw"], "no/disk.raw: No such file"),
        (&["none.qcow2", "new.raw"], "none.qcow2: No such file"),
        (&["-f", "vpc", "disk.qcow2", "new.raw"], "disk.qcow2: not a vpc image"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(error_line(&output).contains(message), "{}", error_line(&output));
    }
    // An entry that names the middle of a cluster.
    let mut image = Damaged::new(dir.path());
    let l2 = image.l2();
    image.put(l2, &(1 << 63 | 0x1200_u64).to_be_bytes());
    image.save(dir.path(), "damaged.qcow2");
    let output = run(&["damaged.qcow2", "new.raw"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(!dir.path().join("new.raw").exists());
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().starts_with(".qcowfuzz")));
}

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
