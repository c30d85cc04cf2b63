//! Measures which lines of walker, builder and recount the committed seeds reach, as the targets
//! run them. A line that is neither reached nor explained in `xtask/coverage.explained` fails the check. It counts code
//! that the targets can run: tests are not built, and derived implementations have no counters.

pub mod explained;
pub mod report;

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::coverage::report::report;
use crate::measured::{publish, verdict};
use crate::process::{attached, captured, command, output, quiet, root, target_folder};

/// Installs LLVM's tools beside the nightly compiler, whose profiles they read, and returns their folder.
fn llvm_tools() -> Result<PathBuf> {
    quiet(command("rustup").args(["component", "add", "llvm-tools", "--toolchain", "nightly"]))?;
    let libraries = output(command("rustc").args(["+nightly", "--print", "target-libdir"]))?;
    let folder = PathBuf::from(libraries.trim());
    Ok(folder.parent().context("a library folder without a parent")?.join("bin"))
}

/// Copies the committed seeds of a target, and nothing that a fuzzer has kept, to a folder that has nothing else.
pub fn copy_seeds(target: &str, folder: &std::path::Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let seeds = output(command("git").args(["ls-files", &format!("corpus/{target}")]))?;
    quiet(command("cp").args(seeds.lines()).arg(folder)).map(drop)
}

/// Runs the seeds of all targets with counters, and prints the table.
pub fn measure() -> Result<()> {
    let tools = llvm_tools()?;
    let work = target_folder("").join("coverage");
    let profiles = work.join("profiles");
    if profiles.exists() {
        fs::remove_dir_all(&profiles)?;
    }
    let mut cargo = command("cargo");
    cargo.args([
        "+nightly",
        "build",
        "--locked",
        "--example",
        "bounded",
        "--config",
        "profile.dev.opt-level=1",
    ]);
    cargo.args(["--config", "profile.dev.debug=\"none\"", "--target-dir"]).arg(work.join("build"));
    // Build scripts and macros write profiles, too.
    cargo.env("LLVM_PROFILE_FILE", work.join("build-profiles/%p"));
    quiet(cargo.env("RUSTFLAGS", "-Cinstrument-coverage"))?;
    let bounded = work.join("build/debug/examples/bounded");
    let mut merge = command(tools.join("llvm-profdata"));
    merge.args(["merge", "-sparse"]);
    let mut wrong = Vec::new();
    for target in fs::read_dir(root().join("corpus/text"))? {
        let target = target?.file_name().to_string_lossy().into_owned();
        let (seeds, profile) = (work.join("seeds"), profiles.join(&target));
        copy_seeds(&target, &seeds)?;
        let mut run = attached(&bounded);
        run.arg(&target).arg(&seeds).arg("0").env("LLVM_PROFILE_FILE", &profile);
        // A finding ends the process by exit, which writes the profile.
        let (status, shown) = captured(&mut run)?;
        if !status.success() {
            wrong.push(format!("{target}: {status}, a seed shows a bug: {}", shown.trim()));
        }
        merge.arg(profile);
    }
    let merged = work.join("merged");
    quiet(merge.arg("-o").arg(&merged))?;
    let mut export = command(tools.join("llvm-cov"));
    export.args(["export", "-format=lcov"]).arg(&bounded).arg("-instr-profile").arg(&merged);
    let lcov = output(export.args(["src", "crates/walker/src"]))?;
    let explained = fs::read_to_string(root().join("xtask/coverage.explained"))?;
    let read = |file: &str| fs::read_to_string(root().join(file)).context("no such file");
    let (table, faults) = report(&lcov, &explained, &read)?;
    publish("Lines that the seeds reach", &table);
    wrong.extend(faults);
    verdict("coverage", &wrong)
}
