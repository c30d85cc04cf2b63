//! `info`, `convert` and `measure`: the record of an image, as qemu-img prints it, its copies, and the sizes of new
//! images.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use test_support::prelude::*;

use crate::support::{Damaged, Folder, OURS, Ran};

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

/// The images by their formats.
const IMAGES: &[(&str, &str)] = &[
    (
        "qcow2",
        "over.qcow2 ./over.qcow2 sub/below.qcow2 remote.qcow2 old.qcow2 odd.qcow2 small.qcow2 apart.qcow2 empty.qcow2 huge.qcow2",
    ),
    ("vpc", "disk.vhd fixed.vhd large.vhd"),
    ("vhdx", "disk.vhdx"),
    ("vdi", "disk.vdi static.vdi"),
    (
        "vmdk",
        "disk.vmdk sub/flat.vmdk parts.vmdk ./flats.vmdk stream.vmdk child.vmdk sub/child.vmdk mixed.vmdk two.vmdk esx.vmdk",
    ),
    ("raw", "plain.raw over.qcow2"),
];

/// Returns the images with their formats.
fn all_images() -> impl Iterator<Item = (&'static str, &'static str)> {
    IMAGES.iter().flat_map(|(format, names)| names.split(' ').map(|name| (*format, name)))
}

/// Makes the images in `dir`. Returns `None` if qemu-img is not installed.
fn make(dir: &Folder) -> Option<()> {
    fs::create_dir(dir.join("sub")).unwrap();
    for command in MAKING {
        dir.qemu_img(*command)?.ok();
    }
    // The data file is not opened, and need not exist.
    fs::remove_file(dir.join("data.raw")).unwrap();
    // The extra data of a snapshot: the length of the VM state, the size of the disk, and no instruction count.
    let mut bytes = dir.read("old.qcow2");
    let table = u64::from_be_bytes(bytes[64..72].try_into().unwrap()) as usize;
    bytes[table + 40..][..8].copy_from_slice(&(1_u64 << 63 | 5).to_be_bytes());
    bytes[table + 56..][..8].fill(0xFF);
    dir.write("odd.qcow2", bytes);
    // Extents of different kinds; extents of one kind in one file; and an extent in the format of ESX.
    let absolute = dir.join("stream.vmdk");
    let stream = format!("RW 8 SPARSE \"{}\"\n", absolute.display());
    let mixed = format!("RW 8 FLAT \"plain.raw\" 0\n{stream}RW 8 VMFS \"./plain.raw\"\n");
    describe(dir, "mixed.vmdk", &mixed);
    describe(dir, "two.vmdk", "RW 8 FLAT \"plain.raw\" 0\nRW 9 FLAT \"plain.raw\" 8\n");
    let header = [1u32, 3, 64, 16, 4, 1].map(u32::to_le_bytes).concat();
    let identity = [&b"COWD"[..], &header, &[0; 484], b"CID=1\nparentCID=ffffffff\n", &[0; 3000]];
    dir.write("esx.vmdk", identity.concat());
    Some(())
}

/// Writes a VMDK descriptor with these lines of extents.
fn describe(dir: &Folder, name: &str, extents: &str) {
    let head = "version=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"vmfs\"\n";
    dir.write(name, format!("{head}{extents}"));
}

/// Returns the outputs of our command and of qemu-img for `info`. qemu-img prints its dates in UTC.
fn infos(dir: &Folder, words: &str) -> [Ran; 2] {
    [OURS, "qemu-img"].map(|tool| {
        let mut command = dir.command(tool, &format!("info {words}"));
        Ran::of(command.env("TZ", "UTC")).ok()
    })
}

#[test]
fn info_prints_what_qemu_img_prints() {
    let dir = Folder::new();
    let Some(()) = make(&dir) else { return };
    for (format, image) in all_images() {
        let [ours, theirs] = infos(&dir, &format!("-f {format} {image}"));
        assert_eq!(ours.quiet().out, theirs.out, "{image}");
        // The format is probed, except for a file that has a reason to be something else.
        let is_named = image == "fixed.vhd" || format == "raw";
        let named = if is_named { format!("-f {format}") } else { String::new() };
        let [ours, theirs] = infos(&dir, &format!("--output=json {named} {image}"));
        assert_eq!(ours.json(), theirs.json(), "{image}");
    }
}

/// The record of an image without qemu-img.
#[test]
fn info_describes_the_image() {
    let dir = Folder::with_image();
    let info = dir.run("info --output json disk.qcow2").ok().json();
    assert_eq!(info["virtual-size"], 16 << 16);
    assert_eq!(info["format-specific"]["data"]["refcount-bits"], 16);
    assert_eq!(info["children"][0]["info"]["format"], "file");
    let ran = dir.run("info disk.qcow2").has("\nvirtual size: 1 MiB (1048576 bytes)\n");
    ran.has("\n    compat: 1.1\n");
}

#[test]
fn names_that_are_not_text_are_printed_as_qemu_img_does() {
    let dir = Folder::new();
    let name = b"a\xff\xe4b\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xef\xbf\xbe\x7f\x01\xe2\x82";
    let mut create = dir.command("qemu-img", "create -q -f qcow2 -u -F raw -b");
    create.arg(OsStr::from_bytes(name)).args(["named.qcow2", "1M"]);
    let Some(_) = dir.qemu_img("--version") else { return };
    Ran::of(&mut create).ok();
    let outputs = |form: &str| {
        [OURS, "qemu-img"].map(|tool| {
            let mut command = dir.command(tool, &format!("info --output {form} named.qcow2"));
            command.env("TZ", "UTC").output().unwrap().stdout
        })
    };
    let [ours, theirs] = outputs("human");
    assert_eq!(ours, theirs);
    let [ours, theirs] =
        outputs("json").map(|out| serde_json::from_slice::<serde_json::Value>(&out).unwrap());
    assert_eq!(ours, theirs);
}

#[test]
fn an_image_that_cannot_be_opened_exits_with_1() {
    let dir = Folder::with_image();
    let mut image = Damaged::new(&dir);
    image.put(4, &9u32.to_be_bytes());
    dir.write("damaged.qcow2", &image.bytes);
    dir.write("short.qcow2", b"QFI\xfb\0\0\0\x03");
    describe(&dir, "empty.vmdk", "");
    describe(&dir, "lost.vmdk", "RW 8 FLAT \"none\" 0\n");
    describe(&dir, "remote.vmdk", "RW 8 FLAT \"nbd://host/disk\" 0\n");
    describe(&dir, "flat.vmdk", "RW 8 FLAT \"disk.qcow2\" 0\n");
    for [words, message] in rows(
        "none.qcow2 | none.qcow2: No such file
         . | .: not a regular file
         damaged.qcow2 | damaged.qcow2: header: version is 9, expected 2 or 3
         short.qcow2 | (the file ends after 8 bytes)
         -f vpc disk.qcow2 | disk.qcow2: not a vpc image
         -f qed disk.qcow2 | format 'qed' is not supported, expected one of qcow2
         empty.vmdk | empty.vmdk: not a vmdk image: the descriptor names no extent
         lost.vmdk | lost.vmdk: the file of an extent that it names:
         remote.vmdk | the file of an extent 'nbd://host/disk' names a protocol
         --no-follow flat.vmdk | flat.vmdk: cannot open the image with --no-follow",
    ) {
        dir.run(&format!("info {words}")).fails_naming(1, message);
    }
}

/// Makes images of every format, one of them over another. Returns their formats and names.
fn images(dir: &Folder) -> Option<Vec<(&'static str, &'static str)>> {
    let create = [
        "qcow2 -o extended_l2=on plain.qcow2 9M",
        "qcow2 -b plain.qcow2 -F qcow2 over.qcow2 12345k",
        "vpc -o force_size=on disk.vhd 5M",
        "vpc -o subformat=fixed fixed.vhd 3M",
        "raw plain.raw 1000k",
    ];
    let mut images = Vec::new();
    for create in create {
        dir.create(create)?;
        let (format, _) = create.split_once(' ').unwrap();
        let image = create.split(' ').rev().nth(1).unwrap();
        for request in ["write -P 7 4k 90k", "write -P 9 700k 5000"] {
            dir.qemu_io(format, request, image);
        }
        images.push((format, image));
    }
    Some(images)
}

#[test]
fn convert_writes_what_qemu_img_writes() {
    let dir = Folder::new();
    let Some(images) = images(&dir) else { return };
    for (format, image) in images {
        let convert = format!("convert -f {format} -O raw {image}");
        dir.qemu_img(&format!("{convert} theirs.raw")).unwrap().ok();
        dir.run(&format!("{convert} ours.raw --force")).ok().quiet();
        assert!(dir.read("ours.raw") == dir.read("theirs.raw"), "{image}");
        let blocks = |name: &str| dir.join(name).metadata().unwrap().blocks();
        assert!(blocks("ours.raw") <= blocks("theirs.raw"), "{image}: {}", blocks("ours.raw"));
    }
}

/// The content of a VMDK parent has changed, so that it must not be read. Its holes are not read.
#[test]
fn holes_of_a_changed_parent_are_not_read() {
    let dir = Folder::new();
    let Some(_) = dir.create("vmdk -o subformat=monolithicFlat parent.vmdk 128k") else { return };
    dir.create("vmdk -b parent.vmdk -F vmdk child.vmdk");
    dir.qemu_io("vmdk", "write -P 7 0 64k", "child.vmdk");
    for (request, output, code) in
        [("write -P 8 0 512", "hole.raw", 0), ("write -P 9 64k 512", "data.raw", 1)]
    {
        dir.qemu_io("vmdk", request, "parent.vmdk");
        let convert = format!("convert -O raw child.vmdk {output}");
        dir.qemu_img(&convert).unwrap().exits(code);
        dir.run(&format!("{convert} --force")).exits(code);
    }
}

/// An image that names a file of the host gets nothing of it.
#[test]
fn without_following_nothing_of_another_file_is_copied() {
    let dir = Folder::with_image();
    dir.run("convert --no-follow disk.qcow2 disk.raw").ok();
    dir.run("convert disk.qcow2 followed.raw").ok();
    assert_eq!(dir.read("disk.raw"), dir.read("followed.raw"));
    dir.write("secret", [b'x'; 65536]);
    for [name, create, needs] in rows(
        "over.qcow2 | -f qcow2 -b secret -F raw over.qcow2 | the file secret
         data.qcow2 | -f qcow2 -o data_file=secret,data_file_raw=on data.qcow2 64k | the file secret
         flat.vmdk | -f vmdk -o subformat=monolithicFlat flat.vmdk 64k | the file of an extent",
    ) {
        let Some(created) = dir.qemu_img(&format!("create -q {create}")) else { return };
        created.ok();
        dir.write("secret", [b'x'; 65536]);
        let message =
            format!("{name}: cannot convert the image with --no-follow: it needs {needs}");
        dir.run(&format!("convert --no-follow {name} new.raw")).fails_naming(1, &message);
        assert!(!dir.names().iter().any(|it| it == "new.raw"));
        dir.run(&format!("convert {name} new.raw")).ok();
        fs::remove_file(dir.join("new.raw")).unwrap();
    }
}

#[test]
fn a_failure_leaves_no_output() {
    let dir = Folder::with_image();
    dir.run("convert disk.qcow2 disk.raw").ok();
    // A file is overwritten only with --force, and the image never.
    for [words, message] in rows(
        "disk.qcow2 disk.raw | disk.raw: the file exists, expected a new one or --force
         --force disk.qcow2 disk.qcow2 | is the input file, expected another file
         disk.qcow2 no/disk.raw | no/disk.raw: No such file
         none.qcow2 new.raw | none.qcow2: No such file
         -f vpc disk.qcow2 new.raw | disk.qcow2: not a vpc image",
    ) {
        dir.run(&format!("convert {words}")).fails_naming(1, message);
    }
    // An entry that names the middle of a cluster.
    let mut image = Damaged::new(&dir);
    image.put_u64(image.l2(), 1 << 63 | 0x1200);
    dir.write("damaged.qcow2", &image.bytes);
    dir.run("convert damaged.qcow2 new.raw").exits(1);
    assert!(!dir.names().iter().any(|name| name == "new.raw" || name.starts_with(".qcowfuzz")));
}

#[test]
fn measure_prints_sizes_as_text_and_as_json() {
    let dir = Folder::with_image();
    let ran = dir.run("measure --size 1M -O qcow2").ok().quiet();
    assert_eq!(ran.out, "required size: 327680\nfully allocated size: 1376256\n");
    let json = "{\n    \"required\": 1048576,\n    \"fully-allocated\": 1048576\n}\n";
    assert_eq!(dir.run("measure --output=json disk.qcow2").out, json);
}

/// `tests/qemu/images/measure.rs` compares more, and without the command.
#[test]
fn measure_prints_what_qemu_img_prints() {
    let dir = Folder::with_image();
    for words in [
        "--size 1.5G -O qcow2 -o refcount_bits=1,cluster_size=512",
        "-O qcow2 disk.qcow2",
        "-O qcow2 --output json -o cluster_size=4k disk.qcow2",
        "-O qcow2 -f raw -o backing_file=a,,b disk.qcow2",
        "-l none disk.qcow2",
        "-O qcow2 -o extended_l2=on -o cluster_size=8k disk.qcow2",
        "-O qcow2 --size 7E",
        "--size 1 -o cluster_size=4k",
    ] {
        let Some([ours, theirs]) = dir.same(&format!("measure {words}")) else { return };
        assert_eq!(ours.code, theirs.code, "{words}");
    }
}

#[test]
fn wrong_options_are_named_in_one_line() {
    let dir = Folder::with_image();
    for [words, message] in rows(
        "none.qcow2 | none.qcow2: No such file
         -f vpc disk.qcow2 | disk.qcow2: not a vpc image
         -l last disk.qcow2 | disk.qcow2: there is no snapshot 'last'
         -f raw -l 1 disk.qcow2 | the format raw has no snapshots
         -o compat=1.1 disk.qcow2 | 'compat' is unknown for the format raw
         -O qcow2 -o a=b disk.qcow2 | 'a' is unknown for the format qcow2
         -O qcow2 -o compat=9 --size=1 | is '9', expected 0.10 or 1.1
         -O qcow2 -o extended_l2=1 --size=1 | is '1', expected on or off
         -O qcow2 -o cluster_size=4M --size=1 | from 512 to 2097152
         -O qcow2 -o encrypt.format=luks --size=1 | encryption is not supported
         -O qcow2 -o compat=1.1, --size=1 | expected NAME=VALUE,...
         -O qcow2 --size=3P | the disk has 3377699720527872 bytes, expected at most",
    ) {
        dir.run(&format!("measure {words}")).fails_naming(1, message);
    }
    for words in [
        "",
        "disk.qcow2 --size 1",
        "--size 1 -l 1",
        "--size 1 -f raw",
        "--size 1x",
        "-O vmdk --size 1",
    ] {
        dir.run(&format!("measure {words}")).exits(2);
    }
}
