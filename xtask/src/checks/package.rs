//! Packs the library and the walker as `cargo publish` would, then builds and tests the packed crates without the rest
//! of the repository. `tests/package.rs` states which files the packages contain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::process::{command, expect, output, quiet, root, run};

const PROGRAM: &str = "\
image version=3 cluster_bits=16 refcount_order=4 features=none size=100<<16+0 rng_seed=0 blocks=append table=append tolerance=0
write at=start+4 clusters=8
";

/// The way of a program from a text to a verdict: commands, and texts that they must print.
const VERDICTS: [(&str, &str); 5] = [
    ("asm text -o program", ""),
    ("replay program", "images verified: 1"),
    ("export --fill program -o disk.qcow2", ""),
    ("map disk.qcow2", "0x40000         0x80000"),
    ("check disk.qcow2", "No errors were found"),
];

/// Builds the packed crates, and runs their documentation tests, the example engine, and the command; or runs their
/// unit tests. Packed tests are those of the repository, so they show only whether they need a file that is not packed.
pub fn check(unit_tests: bool) -> Result<()> {
    let (target, packages) = (root().join("target"), root().join("target/package"));
    for folder in [&packages, &target.join("packaged")] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    let mut package = command("cargo");
    // An uncommitted change is packed too, so that the check can run before the commit.
    package
        .args(["package", "--locked", "--no-verify", "--allow-dirty", "--target-dir"])
        .arg(&target);
    quiet(package.args(["-p", "qcowfuzz-walker", "-p", "qcowfuzz"]))?;
    let [walker, library] = ["qcowfuzz-walker", "qcowfuzz"].map(|name| unpacked(&packages, name));
    let (walker, library) = (walker?, library?);
    // Cargo names the files of a crate after its place in its workspace, which is the same for both crates, and after
    // its profile. With profiles of its own, the packed crate does not replace the library that the tests beside this
    // step use. Only the unit tests run for long enough to be worth an optimized build. The walker that the library
    // depends on is the packed one, as if it were on crates.io; Cargo.lock then changes.
    let profile = "profile.dev.package.qcowfuzz.opt-level=0".to_owned();
    let optimized = "profile.test.package.qcowfuzz.codegen-units=32".to_owned();
    let patch = format!("patch.crates-io.qcowfuzz-walker.path='{}'", walker.display());
    let config = ["--config", &profile, "--config", &patch];
    if unit_tests {
        let config = ["--config", &optimized, "--config", &patch];
        run(packed(&library).args(config).args(["test", "--lib"]))?;
        return run(packed(&walker).args(["test", "--locked", "--lib"]));
    }
    run(packed(&library).args(config).arg("build"))?;
    run(packed(&library).args(config).args(["test", "--doc", "--profile", "dev"]))?;
    run(packed(&walker).args(["test", "--locked", "--doc"]))?;
    let mut example = packed(&library);
    example.args(config).args(["run", "-q", "--example", "engine"]);
    expect(&mut example, 0, "programs have images that this engine supports")?;

    let work = tempfile::tempdir()?;
    fs::write(work.path().join("text"), PROGRAM)?;
    for (line, text) in VERDICTS {
        let mut qcowfuzz = command(target.join("packaged/debug/qcowfuzz"));
        expect(qcowfuzz.args(line.split(' ')).current_dir(work.path()), 0, text)?;
    }
    println!("check-package: {} and {} pass", walker.display(), library.display());
    Ok(())
}

/// Unpacks a package, and returns its folder. Files in a crate have a date of long ago. Cargo rebuilds by dates, so
/// they get the date of today.
fn unpacked(packages: &Path, name: &str) -> Result<PathBuf> {
    let script = "tar -xmzf \"$0\"-[0-9]*.crate && ls -d \"$PWD/$0\"-[0-9]*/";
    let folder = output(command("sh").args(["-ec", script, name]).current_dir(packages))?;
    Ok(folder.trim_end().trim_end_matches('/').into())
}

/// Returns cargo in the folder of a packed crate. The dependencies are those of the other steps, built once. The
/// command of the packed crate must not take the place of ours, which other steps may be running.
fn packed(folder: &Path) -> Command {
    let mut cargo = command("cargo");
    cargo.current_dir(folder).env("CARGO_TARGET_DIR", root().join("target/packaged"));
    // Cargo before 1.91 ignores this variable and then shares nothing.
    cargo.env("CARGO_BUILD_BUILD_DIR", root().join("target"));
    cargo
}
