//! `convert`: the guest's bytes, as qemu-img reads them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::support::{Damaged, error_line, qcowfuzz, qemu, qemu_img, text, with_image};

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
