//! Backing files and data files: the files that the commands open by name, refuse and write.

use test_support::prelude::*;

use crate::support::{Folder, checked_names_in_descriptors, corpus, names_in, seeds};

const OPERATIONS: &str = "\
    write at=start+0 clusters=2\nwrite at=end-0 clusters=1\n\
    overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=file size=+9<<16\n\
    write at=start+20 clusters=9\nzero at=start+3 clusters=2 keep=no\n\
    overlay version=2 cluster_bits=9 refcount_order=4 features=none data_in=image size=same\n\
    write at=end-0 clusters=1\n";

/// Returns a folder with the chain of [`OPERATIONS`], and an empty folder `sub` in it.
fn with_chain() -> Folder {
    let dir = Folder::of([("program", &lines::encoded("size=16<<16+300 base=raw", OPERATIONS))]);
    fs::create_dir(dir.join("sub")).unwrap();
    dir.run("export program -o disk.qcow2 --fill").ok();
    dir
}

/// Writes a copy of the image `from` to `to`, with the backing file's name replaced by `name`.
fn renamed(dir: &Folder, from: &str, to: &str, name: &str) {
    let mut bytes = dir.read(from);
    let offset = u64::from_be_bytes(bytes[8..16].try_into().unwrap()) as usize;
    bytes[16..20].copy_from_slice(&(name.len() as u32).to_be_bytes());
    bytes[offset..offset + name.len()].copy_from_slice(name.as_bytes());
    dir.write(to, bytes);
}

#[test]
fn every_layer_is_written_and_map_follows_as_qemu_img_does() {
    let dir = with_chain();
    dir.run("export program -o sub/disk.qcow2 --fill").ok();
    let names = names_in(&dir.join("sub"));
    assert_eq!(names, ["disk.0.raw", "disk.1.data", "disk.1.qcow2", "disk.qcow2"]);
    // From another directory: names are relative to the image, not to the current directory.
    let elsewhere = dir.run("map sub/disk.qcow2").ok();
    elsewhere.has("sub/disk.1.data\n").has("sub/disk.0.raw\n");
    for form in ["--output=json", "--output=human"] {
        let Some([ours, _]) = dir.same(&["map", form, "disk.qcow2"]) else { return };
        ours.ok();
    }
}

/// Readers other than QEMU open the extents that an embedded descriptor names, even if the extent is the image itself.
#[test]
fn each_descriptor_names_files_that_were_written() {
    let mut named = 0;
    for seed in seeds("map_extents").iter().filter(|it| it.starts_with("vmdk_")) {
        let dir = Folder::new();
        fs::copy(corpus(&format!("text/map_extents/{seed}.txt")), dir.join("text")).unwrap();
        dir.run("asm text -o program").ok();
        for output in ["disk.vmdk", "disk"] {
            dir.run(&["export", "program", "--force", "-o", output]).ok();
        }
        named += checked_names_in_descriptors(&dir.join(""));
    }
    assert!(named > 20, "{named} names");
}

#[test]
fn an_image_is_opened_completely_before_those_below_it() {
    let dir = with_chain();
    // One snapshot, whose entry at the end of the file has more extra data than any.
    let mut bytes = dir.read("disk.qcow2");
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    let table = bytes.len() as u64;
    bytes[60..64].copy_from_slice(&1u32.to_be_bytes());
    bytes[64..72].copy_from_slice(&table.to_be_bytes());
    bytes.extend([0xFF; 512]);
    dir.write("disk.qcow2", bytes);
    let with_base = dir.run("map disk.qcow2").fails_naming(2, "disk.qcow2: snapshot table");
    fs::remove_file(dir.join("disk.0.raw")).unwrap();
    assert_eq!(with_base.line(), dir.run("map disk.qcow2").line());
}

#[test]
fn without_following_nothing_else_is_opened() {
    let dir = with_chain();
    for name in ["disk.0.raw", "disk.1.data"] {
        fs::remove_file(dir.join(name)).unwrap();
    }
    let alone = dir.run("map --no-follow --output=json disk.qcow2").ok();
    assert!(!alone.out.contains("\"depth\": 1"));
    // Data in a missing file are mapped nevertheless.
    dir.run("map --no-follow disk.1.qcow2").has("disk.1.data\n");
    assert_eq!(
        dir.run("map disk.qcow2").fails(2, "").line(),
        "disk.1.qcow2: the data file that it names: disk.1.data: No such file or directory (os error 2)"
    );
}

#[test]
fn names_that_lead_nowhere_or_elsewhere_are_refused() {
    let dir = with_chain();
    let protocol = "names a protocol, expected the name of a file";
    for [name, expected] in rows(&format!(
        "gone | x.qcow2: the backing file that it names: gone: No such file or directory (os error 2)
         x.qcow2 | x.qcow2: the backing file 'x.qcow2' is a file above it in the chain
         json:{{}} | x.qcow2: the backing file 'json:{{}}' {protocol}
         nbd://a | x.qcow2: the backing file 'nbd://a' {protocol}
         file:a | x.qcow2: the backing file 'file:a' {protocol}
         /dev/null | x.qcow2: the backing file that it names: /dev/null: not a regular file
         disk.0.raw | disk.0.raw: not a qcow2 image: the file begins with 0x00000000, expected 0x514649fb"
    )) {
        renamed(&dir, "disk.qcow2", "x.qcow2", name);
        assert_eq!(dir.run("map x.qcow2").fails(2, "").line(), expected, "{name}");
    }
    // A loop of two.
    renamed(&dir, "disk.qcow2", "sub/a.qcow2", "b.qcow2");
    renamed(&dir, "disk.qcow2", "sub/b.qcow2", "../sub/a.qcow2");
    assert_eq!(
        dir.run("map sub/a.qcow2").line(),
        "sub/b.qcow2: the backing file '../sub/a.qcow2' is a file above it in the chain"
    );
}

/// A block device with the bytes of a file.
struct LoopDevice(String);

impl LoopDevice {
    /// Attaches a device to a file, if the machine allows it.
    fn of(file: &Path) -> Option<Self> {
        let made =
            Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(file).output();
        match made {
            Ok(made) if made.status.success() => {
                Some(Self(String::from_utf8(made.stdout).unwrap().trim_end().to_string()))
            }
            _ => {
                skipped("there are no loop devices here: a_block_device_is_read");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_block_device_is_read_if_the_user_names_it() {
    let dir = Folder::with_image();
    let mut image = dir.read("disk.qcow2");
    // A device has whole sectors.
    image.resize(image.len().next_multiple_of(512), 0);
    dir.write("disk.qcow2", image);
    let Some(device) = LoopDevice::of(&dir.join("disk.qcow2")) else { return };
    let name = &device.0;
    for words in [
        "map",
        "map --output=json",
        "map -f raw --output=json",
        "info",
        "check",
        "check --output=json",
        "measure -O qcow2",
    ] {
        let words = format!("{words} {name}");
        dir.run(&words).ok();
        dir.same(&words);
    }
    // QEMU prints empty lists on two lines.
    let json = format!("info --output=json {name}");
    let theirs = dir.qemu_img(&json).map(|ran| ran.ok().json());
    assert!(theirs.is_none_or(|theirs| dir.run(&json).ok().json() == theirs));
    dir.run(&format!("convert {name} device.raw")).ok();
    dir.run("convert disk.qcow2 file.raw").ok();
    assert!(dir.read("device.raw") == dir.read("file.raw"));
    // An image cannot name a device.
    let dir = with_chain();
    renamed(&dir, "disk.qcow2", "x.qcow2", name);
    let expected = format!("x.qcow2: the backing file that it names: {name}: not a regular file");
    assert_eq!(dir.run("map x.qcow2").fails(2, "").line(), expected);
}

#[test]
fn a_chain_has_an_end() {
    let dir = with_chain();
    for n in 0..80 {
        renamed(&dir, "disk.qcow2", &format!("{n}.qcow2"), &format!("{}.qcow2", n + 1));
    }
    assert_eq!(dir.run("map 0.qcow2").line(), "64.qcow2: more than 64 images in the chain");
}

#[test]
fn no_file_of_a_chain_is_overwritten() {
    let dir = with_chain();
    fs::remove_file(dir.join("disk.qcow2")).unwrap();
    dir.write("disk.1.data", "mine");
    let there = "the file exists, expected a new one or --force";
    let again = "export program -o disk.qcow2";
    assert_eq!(dir.run(again).fails(2, "").line(), format!("disk.0.raw: {there}"));
    fs::remove_file(dir.join("disk.0.raw")).unwrap();
    assert_eq!(dir.run(again).line(), format!("disk.1.data: {there}"));
    // Either all files are written, or none.
    assert!(!dir.join("disk.0.raw").exists() && !dir.join("disk.qcow2").exists());
    dir.run(&format!("{again} --force")).ok();
    assert_ne!(dir.read("disk.1.data"), b"mine");
}

#[test]
fn an_output_whose_files_cannot_have_their_names_is_refused() {
    let image = |bits: u32| {
        let image = lines::image(&format!("cluster_bits={bits} size=16<<9+0 data_in=file"));
        format!("{image}write at=start+0 clusters=2\n")
    };
    let overlay = |bits: u32| {
        format!(
            "overlay version=3 cluster_bits={bits} refcount_order=4 features=none data_in=file size=same\n\
             write at=start+1 clusters=1\n"
        )
    };
    // The name of a lower layer's data file is shorter than its own, and still fits.
    let long = "a name of 256 bytes, which is too long for a file";
    let no_room =
        "the names of other files take 409 bytes of the first cluster, which has room for 408";
    for (program, refused, image, what) in [
        (format!("{}{}", image(16), overlay(16)), 248, ".0.qcow2", long),
        (format!("{}{}", image(9), overlay(9)), 185, ".qcow2", no_room),
        (format!("{}{}{}", image(9), overlay(9), overlay(16)), 185, ".1.qcow2", no_room),
    ] {
        for command in ["export program -o", "replay program --dump-image"] {
            let dir = Folder::of([("program", &assemble(&program).unwrap().encode())]);
            let stem = "s".repeat(refused);
            let ran = dir.run(&format!("{command} {stem}.qcow2")).exits(2);
            let expected = format!("{stem}{image}: {what}, expected a shorter name of the output");
            assert_eq!(ran.line(), expected);
            assert_eq!(dir.names(), ["program"]);
            dir.run(&format!("{command} {}.qcow2", &stem[1..])).ok();
        }
    }
}

#[test]
fn a_backing_file_of_another_format_is_not_taken_for_raw() {
    let dir = Folder::new();
    let mut refused = 0;
    for format in ["qed", "parallels", "luks"] {
        let secret = "--object secret,id=s,data=pass -o key-secret=s";
        let more = if format == "luks" { secret } else { "" };
        let Some(made) = dir.qemu_img(&format!("create -q -f {format} {more} base 4M")) else {
            return;
        };
        if made.code != Some(0) {
            skipped(format_args!("qemu-img creates no {format}: {}", made.err));
            continue;
        }
        dir.create("qcow2 -b base -F raw top.qcow2");
        // Neither the image nor an option states the format any more.
        let mut bytes = dir.read("top.qcow2");
        let magic = 0xE279_2ACAu32.to_be_bytes();
        let at = bytes.windows(4).position(|four| four == magic).unwrap();
        bytes[at..at + 4].copy_from_slice(b"none");
        dir.write("top.qcow2", bytes);
        dir.run("map top.qcow2").fails(2, "base: unsupported feature: image in");
        refused += 1;
    }
    assert!(refused >= 2, "only {refused} formats are refused");
    dir.write("base", "# a\n  \nversion=1\n");
    dir.run("map top.qcow2").fails(2, "base: not a vmdk image: ");
    // A file in no known format is raw.
    dir.write("base", "# a\nversions=1\n");
    dir.run("map top.qcow2").ok();
}

#[test]
fn an_error_names_the_image_with_the_fault() {
    let dir = with_chain();
    // The first L2 table of the image in the middle lies at an odd place.
    let mut bytes = dir.read("disk.1.qcow2");
    let l1 = u64::from_be_bytes(bytes[40..48].try_into().unwrap()) as usize;
    bytes[l1 + 6] ^= 2;
    dir.write("disk.1.qcow2", &bytes);
    let ran = dir.run("map disk.qcow2").exits(2);
    assert!(ran.line().starts_with("disk.1.qcow2: L2 table for guest offset"), "{ran:?}");
    // The snapshot table of that image, which is read when the image is opened.
    bytes[l1 + 6] ^= 2;
    bytes[60..64].copy_from_slice(&1u32.to_be_bytes());
    bytes[64..72].copy_from_slice(&(l1 as u64).to_be_bytes());
    bytes[l1 + 36..l1 + 40].fill(0xFF);
    dir.write("disk.1.qcow2", &bytes);
    dir.run("map disk.qcow2").fails(2, "disk.1.qcow2: snapshot table entry 0: ");
}

#[test]
fn a_raw_layer_may_be_any_file_and_names_do_not_reach_the_terminal() {
    let dir = Folder::new();
    let Some(_) = dir.create("qcow2 a.qcow2 1M") else { return };
    // An image whose backing file is itself, as raw bytes: there is no loop.
    dir.qemu_img("rebase -q -u -b a.qcow2 -F raw a.qcow2").unwrap().ok();
    dir.same("map --output=json a.qcow2");
    renamed(&dir, "a.qcow2", "b.qcow2", "x\x1b[2J\u{202E}y");
    dir.run("map b.qcow2").fails_naming(2, "x\\u{1b}[2J\\u{202e}y");
}
