//! Packs the library and the walker as `cargo publish` would, then builds and tests the packed crates without the rest of
//! the repository. `tests/package.rs` states which files the packages contain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{command, expect, failed, passes, quiet, root, run};

const PROGRAM: &str = "\
image version=3 cluster_bits=16 refcount_order=4 features=none size=100<<16+0 rng_seed=0 blocks=append table=append tolerance=0
write at=start+4 clusters=8
";

/// Builds the packed crates, and runs their unit tests, their documentation tests, the example engine, and the command
/// from a text to a verdict.
pub fn check() -> Result<()> {
    let target = root().join("target");
    let packages = target.join("package");
    for folder in [&packages, &target.join("packaged")] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    // An uncommitted change is packed too, so that the check can run before the commit.
    let package = [
        "package",
        "--locked",
        "--no-verify",
        "--allow-dirty",
        "-p",
        "qcowfuzz-walker",
        "-p",
        "qcowfuzz",
    ];
    quiet(command("cargo").args(package).arg("--target-dir").arg(&target))?;
    let walker = unpacked(&packages, "qcowfuzz-walker-")?;
    let library = unpacked(&packages, "qcowfuzz-0")?;

    let patch = format!("patch.crates-io.qcowfuzz-walker.path='{}'", walker.display());
    let cargo = |folder: &Path, arguments: &[&str]| {
        let mut cargo = packed(Command::new("cargo"), folder);
        if folder == library {
            // Cargo names the files of a crate after its place in its workspace, which is the same for both crates, and
            // after its profile. With a profile of its own, the packed crate does not replace the library that the tests
            // beside this step use.
            cargo.args(["--config", "profile.dev.package.qcowfuzz.codegen-units=32"]);
            // The walker that the library depends on is the packed one, as if it were on crates.io. Cargo.lock then
            // changes in that.
            cargo.args(["--config", &patch]);
        }
        cargo.args(arguments);
        cargo
    };
    passes(&mut cargo(&library, &["build"]))?;
    passes(&mut cargo(&library, &["test"]))?;
    passes(&mut cargo(&walker, &["test", "--locked"]))?;
    let example = &mut cargo(&library, &["run", "-q", "--example", "engine"]);
    expect(example, 0, "programs have images that this engine supports")?;

    let work = tempfile::tempdir()?;
    fs::write(work.path().join("text"), PROGRAM)?;
    let verdicts = [
        ("asm text -o program", ""),
        ("replay program", "images verified: 1"),
        ("export --fill program -o disk.qcow2", ""),
        ("map disk.qcow2", "0x40000         0x80000"),
        ("check disk.qcow2", "No errors were found"),
    ];
    for (line, text) in verdicts {
        let mut qcowfuzz = command(target.join("packaged/debug/qcowfuzz"));
        expect(qcowfuzz.args(line.split(' ')).current_dir(work.path()), 0, text)?;
    }
    println!(
        "check-package: {} and {} build, and their tests pass",
        walker.display(),
        library.display()
    );
    Ok(())
}

/// Unpacks the package whose name begins like this, and returns its folder.
fn unpacked(packages: &Path, name: &str) -> Result<PathBuf> {
    let files = fs::read_dir(packages)?.filter_map(|it| Some(it.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(name) && file.ends_with(".crate")
    };
    let package =
        files.into_iter().find(is_it).ok_or_else(|| failed(format!("no package {name}*.crate")))?;
    // Files in a crate have a date of long ago. Cargo rebuilds by dates, so they get the date of today.
    run(command("tar").arg("-xmzf").arg(&package).arg("-C").arg(packages))?;
    let folder = package.with_extension("");
    folder.is_dir().then_some(folder).context("a package without a folder of its name")
}

/// Has cargo work in the folder of a packed crate. The dependencies are those of the other steps, built once. The command
/// of the packed crate must not take the place of ours, which other steps may be running.
fn packed(mut cargo: Command, folder: &Path) -> Command {
    cargo.current_dir(folder).env("CARGO_TARGET_DIR", root().join("target/packaged"));
    // Cargo before 1.91 ignores this variable and then shares nothing.
    cargo.env("CARGO_BUILD_BUILD_DIR", root().join("target"));
    cargo
}
