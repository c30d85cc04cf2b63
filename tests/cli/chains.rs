//! Backing files and data files: the files that the commands open by name, refuse and write.

use std::fs;
use std::path::Path;

use qcowfuzz::programs::text::assemble;

use crate::skipped::skipped;
use crate::support::{error_line, qcowfuzz, qemu_img, text};

const TEXT: &str = "\
    image version=3 cluster_bits=16 refcount_order=4 features=none size=16<<16+300 rng_seed=0 \
    blocks=append table=append tolerance=0 base=raw\n\
    write at=start+0 clusters=2\nwrite at=end-0 clusters=1\n\
    overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=file size=+9<<16\n\
    write at=start+20 clusters=9\nzero at=start+3 clusters=2 keep=no\n\
    overlay version=2 cluster_bits=9 refcount_order=4 features=none data_in=image size=same\n\
    write at=end-0 clusters=1\n";

/// Returns a directory with the chain of [`TEXT`] in `sub`.
fn with_chain() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("program"), assemble(TEXT).unwrap().encode()).unwrap();
    let made = qcowfuzz(dir.path(), &["export", "program", "-o", "sub/disk.qcow2", "--fill"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    dir
}

/// Returns the bytes of the image at `path`, with the backing file's name replaced by `name`.
fn renamed(dir: &Path, from: &str, to: &str, name: &str) {
    let mut bytes = fs::read(dir.join(from)).unwrap();
    let offset = u64::from_be_bytes(bytes[8..16].try_into().unwrap()) as usize;
    bytes[16..20].copy_from_slice(&(name.len() as u32).to_be_bytes());
    bytes[offset..offset + name.len()].copy_from_slice(name.as_bytes());
    fs::write(dir.join(to), bytes).unwrap();
}

#[test]
fn every_layer_is_written_and_map_follows_as_qemu_img_does() {
    let dir = with_chain();
    let sub = dir.path().join("sub");
    assert_eq!(names_in(&sub), ["disk.0.raw", "disk.1.data", "disk.1.qcow2", "disk.qcow2"]);
    for form in ["--output=json", "--output=human"] {
        let arguments = ["map", form, "disk.qcow2"];
        let ours = qcowfuzz(&sub, &arguments);
        assert!(ours.status.success(), "{}", text(&ours.stderr));
        let Some(qemu) = qemu_img(&sub, &arguments) else { return };
        assert_eq!(text(&ours.stdout), text(&qemu.stdout), "{form}");
    }
    // From another directory: names are relative to the image, not to the current directory.
    let elsewhere = qcowfuzz(dir.path(), &["map", "sub/disk.qcow2"]);
    assert!(text(&elsewhere.stdout).contains("sub/disk.1.data\n"), "{}", text(&elsewhere.stdout));
    assert!(text(&elsewhere.stdout).contains("sub/disk.0.raw\n"));
}

#[test]
fn an_image_is_opened_completely_before_those_below_it() {
    let dir = with_chain();
    let sub = dir.path().join("sub");
    // One snapshot, whose entry at the end of the file has more extra data than any.
    let mut bytes = fs::read(sub.join("disk.qcow2")).unwrap();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    let table = bytes.len() as u64;
    bytes[60..64].copy_from_slice(&1u32.to_be_bytes());
    bytes[64..72].copy_from_slice(&table.to_be_bytes());
    bytes.extend([0xFF; 512]);
    fs::write(sub.join("disk.qcow2"), bytes).unwrap();
    let with_base = qcowfuzz(&sub, &["map", "disk.qcow2"]);
    fs::remove_file(sub.join("disk.0.raw")).unwrap();
    let without_base = qcowfuzz(&sub, &["map", "disk.qcow2"]);
    let found = error_line(&with_base);
    assert!(found.contains("disk.qcow2: snapshot table"), "{found}");
    assert_eq!(found, error_line(&without_base));
}

#[test]
fn without_following_nothing_else_is_opened() {
    let dir = with_chain();
    let sub = dir.path().join("sub");
    for name in ["disk.0.raw", "disk.1.data"] {
        fs::remove_file(sub.join(name)).unwrap();
    }
    let alone = qcowfuzz(&sub, &["map", "--no-follow", "--output=json", "disk.qcow2"]);
    assert!(alone.status.success(), "{}", text(&alone.stderr));
    assert!(!text(&alone.stdout).contains("\"depth\": 1"));
    // Data in a missing file are mapped nevertheless.
    let alone = qcowfuzz(&sub, &["map", "--no-follow", "disk.1.qcow2"]);
    assert!(text(&alone.stdout).contains("disk.1.data\n"), "{}", text(&alone.stdout));
    let followed = qcowfuzz(&sub, &["map", "disk.qcow2"]);
    assert_eq!(followed.status.code(), Some(2));
    assert_eq!(
        error_line(&followed),
        "disk.1.qcow2: the data file that it names: disk.1.data: No such file or directory (os error 2)"
    );
}

#[test]
fn names_that_lead_nowhere_or_elsewhere_are_refused() {
    let dir = with_chain();
    let sub = dir.path().join("sub");
    let cases = [
        (
            "gone",
            "x.qcow2: the backing file that it names: gone: No such file or directory (os error 2)",
        ),
        ("x.qcow2", "x.qcow2: the backing file 'x.qcow2' is a file above it in the chain"),
        (
            "json:{}",
            "x.qcow2: the backing file 'json:{}' names a protocol, expected the name of a file",
        ),
        (
            "nbd://a",
            "x.qcow2: the backing file 'nbd://a' names a protocol, expected the name of a file",
        ),
        (
            "file:a",
            "x.qcow2: the backing file 'file:a' names a protocol, expected the name of a file",
        ),
        ("/dev/null", "x.qcow2: the backing file that it names: /dev/null: not a regular file"),
        (
            "disk.0.raw",
            "disk.0.raw: not a qcow2 image: the file begins with 0x00000000, expected 0x514649fb",
        ),
    ];
    for (name, expected) in cases {
        renamed(&sub, "disk.qcow2", "x.qcow2", name);
        let output = qcowfuzz(&sub, &["map", "x.qcow2"]);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""), "{name}");
        assert_eq!(error_line(&output), expected);
    }
    // A loop of two.
    renamed(&sub, "disk.qcow2", "a.qcow2", "b.qcow2");
    renamed(&sub, "disk.qcow2", "b.qcow2", "../sub/a.qcow2");
    let output = qcowfuzz(&sub, &["map", "a.qcow2"]);
    assert_eq!(
        error_line(&output),
        "b.qcow2: the backing file '../sub/a.qcow2' is a file above it in the chain"
    );
}

#[test]
fn a_chain_has_an_end() {
    let dir = with_chain();
    let sub = dir.path().join("sub");
    for n in 0..80 {
        renamed(&sub, "disk.qcow2", &format!("{n}.qcow2"), &format!("{}.qcow2", n + 1));
    }
    let output = qcowfuzz(&sub, &["map", "0.qcow2"]);
    assert_eq!(error_line(&output), "64.qcow2: more than 64 images in the chain");
}

#[test]
fn no_file_of_a_chain_is_overwritten() {
    let dir = with_chain();
    let sub = dir.path().join("sub");
    fs::remove_file(sub.join("disk.qcow2")).unwrap();
    fs::write(sub.join("disk.1.data"), "mine").unwrap();
    let again = qcowfuzz(dir.path(), &["export", "program", "-o", "sub/disk.qcow2"]);
    assert_eq!(again.status.code(), Some(2));
    let there = "the file exists, expected a new one or --force";
    assert_eq!(error_line(&again), format!("sub/disk.0.raw: {there}"));
    fs::remove_file(sub.join("disk.0.raw")).unwrap();
    let again = qcowfuzz(dir.path(), &["export", "program", "-o", "sub/disk.qcow2"]);
    assert_eq!(error_line(&again), format!("sub/disk.1.data: {there}"));
    // Either all files are written, or none.
    assert!(!sub.join("disk.0.raw").exists() && !sub.join("disk.qcow2").exists());
    let forced = qcowfuzz(dir.path(), &["export", "program", "-o", "sub/disk.qcow2", "--force"]);
    assert!(forced.status.success(), "{}", text(&forced.stderr));
    assert_ne!(fs::read(sub.join("disk.1.data")).unwrap(), b"mine");
}

/// Returns the names of the files in `dir`, in order.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_output_whose_files_cannot_have_their_names_is_refused() {
    let image = |bits: u32| {
        format!(
            "image version=3 cluster_bits={bits} refcount_order=4 features=none size=16<<9+0 \
             rng_seed=0 blocks=append table=append tolerance=0 data_in=file\nwrite at=start+0 clusters=2\n"
        )
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
    let cases = [
        (format!("{}{}", image(16), overlay(16)), 248, ".0.qcow2", long),
        (format!("{}{}", image(9), overlay(9)), 185, ".qcow2", no_room),
        (format!("{}{}{}", image(9), overlay(9), overlay(16)), 185, ".1.qcow2", no_room),
    ];
    let commands: [&[&str]; 2] =
        [&["export", "program", "-o"], &["replay", "program", "--dump-image"]];
    for (program, refused, image, what) in cases {
        for command in commands {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("program"), assemble(&program).unwrap().encode()).unwrap();
            let run =
                |stem: &str| qcowfuzz(dir.path(), &[command, &[&format!("{stem}.qcow2")]].concat());
            let stem = "s".repeat(refused);
            let output = run(&stem);
            assert_eq!(output.status.code(), Some(2), "{command:?} {image}");
            let expected = format!("{stem}{image}: {what}, expected a shorter name of the output");
            assert_eq!(error_line(&output), expected);
            assert_eq!(names_in(dir.path()), ["program"]);
            let output = run(&stem[1..]);
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    }
}

#[test]
fn a_backing_file_of_another_format_is_not_taken_for_raw() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| qemu_img(dir.path(), arguments);
    let mut refused = 0;
    for format in ["qed", "parallels", "luks"] {
        let secret = ["--object", "secret,id=s,data=pass", "-o", "key-secret=s"];
        let more: &[&str] = if format == "luks" { &secret } else { &[] };
        let Some(made) = run(&[&["create", "-q", "-f", format], more, &["base", "4M"]].concat())
        else {
            return;
        };
        if !made.status.success() {
            skipped(format_args!("qemu-img creates no {format}: {}", text(&made.stderr)));
            continue;
        }
        let over = ["create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", "top.qcow2"];
        assert!(run(&over).unwrap().status.success());
        // Neither the image nor an option states the format any more.
        let mut bytes = fs::read(dir.path().join("top.qcow2")).unwrap();
        let magic = 0xE279_2ACAu32.to_be_bytes();
        let at = bytes.windows(4).position(|four| four == magic).unwrap();
        bytes[at..at + 4].copy_from_slice(b"none");
        fs::write(dir.path().join("top.qcow2"), bytes).unwrap();
        let output = qcowfuzz(dir.path(), &["map", "top.qcow2"]);
        assert_eq!(output.status.code(), Some(2), "{format}");
        assert!(error_line(&output).starts_with("base: unsupported feature: image in"), "{format}");
        refused += 1;
    }
    assert!(refused >= 2, "only {refused} formats are refused");
    fs::write(dir.path().join("base"), "# a\n  \nversion=1\n").unwrap();
    let output = qcowfuzz(dir.path(), &["map", "top.qcow2"]);
    assert!(error_line(&output).starts_with("base: not a vmdk image: "));
    // A file in no known format is raw.
    fs::write(dir.path().join("base"), "# a\nversions=1\n").unwrap();
    assert!(qcowfuzz(dir.path(), &["map", "top.qcow2"]).status.success());
}

#[test]
fn an_error_names_the_image_with_the_fault() {
    let dir = with_chain();
    let sub = dir.path().join("sub");
    // The first L2 table of the image in the middle lies at an odd place.
    let mut bytes = fs::read(sub.join("disk.1.qcow2")).unwrap();
    let l1 = u64::from_be_bytes(bytes[40..48].try_into().unwrap()) as usize;
    bytes[l1 + 6] ^= 2;
    fs::write(sub.join("disk.1.qcow2"), &bytes).unwrap();
    let output = qcowfuzz(&sub, &["map", "disk.qcow2"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error_line(&output).starts_with("disk.1.qcow2: L2 table for guest offset"),
        "{output:?}"
    );
    // The snapshot table of that image, which is read when the image is opened.
    bytes[l1 + 6] ^= 2;
    bytes[60..64].copy_from_slice(&1u32.to_be_bytes());
    bytes[64..72].copy_from_slice(&(l1 as u64).to_be_bytes());
    bytes[l1 + 36..l1 + 40].fill(0xFF);
    fs::write(sub.join("disk.1.qcow2"), &bytes).unwrap();
    let output = qcowfuzz(&sub, &["map", "disk.qcow2"]);
    assert!(
        error_line(&output).starts_with("disk.1.qcow2: snapshot table entry 0: "),
        "{output:?}"
    );
}

#[test]
fn a_raw_layer_may_be_any_file_and_names_do_not_reach_the_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| qemu_img(dir.path(), arguments);
    let Some(made) = run(&["create", "-q", "-f", "qcow2", "a.qcow2", "1M"]) else { return };
    assert!(made.status.success());
    // An image whose backing file is itself, as raw bytes: there is no loop.
    let over = ["rebase", "-q", "-u", "-b", "a.qcow2", "-F", "raw", "a.qcow2"];
    assert!(run(&over).unwrap().status.success());
    let arguments = ["map", "--output=json", "a.qcow2"];
    let (ours, theirs) = (qcowfuzz(dir.path(), &arguments), run(&arguments).unwrap());
    assert_eq!(text(&ours.stdout), text(&theirs.stdout), "{ours:?}");
    renamed(dir.path(), "a.qcow2", "b.qcow2", "x\x1b[2J\u{202E}y");
    let output = qcowfuzz(dir.path(), &["map", "b.qcow2"]);
    assert!(error_line(&output).contains("x\\u{1b}[2J\\u{202e}y"), "{output:?}");
}
