//! `qcowfuzz new-engine`: the files that it writes, and the folders that it refuses. `cargo xtask check-new-engine` builds and
//! runs such a crate.

use std::fs;
use std::path::Path;

use crate::support::{error_line, qcowfuzz, text};

#[test]
fn a_crate_has_its_name_and_the_path_of_the_checkout() {
    let dir = tempfile::tempdir().unwrap();
    // An empty folder is as good as a new one.
    fs::create_dir(dir.path().join("my-reader")).unwrap();
    let made = qcowfuzz(dir.path(), &["new-engine", "my-reader"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let read = |path: &str| fs::read_to_string(dir.path().join("my-reader").join(path)).unwrap();
    let checkout = format!("path = \"{}\"", env!("CARGO_MANIFEST_DIR"));
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        assert!(read(manifest).contains(&checkout), "{}", read(manifest));
    }
    assert!(read("fuzz/Cargo.toml").contains("\nmy-reader = { path = \"..\""));
    assert!(read(".clusterfuzzlite/Dockerfile").contains("WORKDIR $SRC/my-reader\n"));
    for target in ["map_extents", "hostile", "raw_image"] {
        let seeds = dir.path().join("my-reader/fuzz/corpus").join(target);
        assert!(fs::read_dir(seeds).unwrap().count() >= 10, "{target}");
    }
    // The harness accepts the seeds.
    let seeds =
        ["replay", "my-reader/corpus/map_extents/zeros", "my-reader/corpus/map_extents/zstd"];
    assert_eq!(qcowfuzz(dir.path(), &seeds).status.code(), Some(0));
}

#[test]
fn folders_that_are_in_use_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("used")).unwrap();
    fs::write(dir.path().join("used/notes"), "mine").unwrap();
    fs::write(dir.path().join("file"), "mine").unwrap();
    let refused = |name: &str, line: &str| {
        let output = qcowfuzz(dir.path(), &["new-engine", name]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert_eq!(error_line(&output), line);
    };
    refused("used", "used: not empty, expected a new or an empty folder");
    refused("file", "file: Not a directory (os error 20), expected a new or an empty folder");
    let name = "expected a folder whose name is that of a new crate, such as my-reader";
    refused("2nd", &format!("2nd: {name}"));
    refused("qcowfuzz", &format!("qcowfuzz: {name}"));
    let there = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!((there(dir.path()), there(&dir.path().join("used"))), (2, 1));
    assert_eq!(fs::read_to_string(dir.path().join("used/notes")).unwrap(), "mine");
}
