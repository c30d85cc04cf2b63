//! Proves that an empty folder becomes a fuzzer, as `docs/engines.md` says. `tests/cli/new_engine.rs` tests the folders
//! that the command refuses.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::process::{command, quiet, read, root, run};

use super::page::{self, Page, Step};

const PAGE: &str = "docs/engines.md";
/// Our walker as the engine.
const ENGINE: &str = include_str!("../../walker_engine.rs");
const SOUND: &str = "        self.0.read(guest, into)\n";
const PLANTED: &str =
    "        self.0.read(guest, into)?;\n        into.reverse();\n        Ok(())\n";
/// With the dev profile of this repository, the crates share the dependencies. The other builds run for seconds: not
/// optimized, they take half as long.
const PROFILES: [(&str, &str); 4] = [
    ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_DEV_DEBUG", "line-tables-only"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Checks the page and a crate with our walker, or that crate on OSS-Fuzz.
pub fn check(on_oss_fuzz: bool) -> Result<()> {
    // The profile of the tests, which use the same binary.
    let mut build = command("cargo");
    build.args(["build", "-q", "--locked", "--bin", "qcowfuzz"]);
    quiet(build.env("CARGO_TARGET_DIR", root().join("target")))?;
    let folder = tempfile::tempdir()?;
    if on_oss_fuzz {
        let walker = new_walker(folder.path())?;
        return run(command("cargo").args(["xtask", "oss-fuzz", "--crate"]).arg(walker));
    }
    follow_page(folder.path())?;
    fuzz_walker(folder.path())?;
    println!("check-new-engine: an empty folder becomes a fuzzer, and {PAGE} is true");
    Ok(())
}

/// Runs a command of the shell in a folder, as [`page::shell`] does. Builds share dependencies with those of this
/// repository.
fn shell(line: &str, folder: &Path, codes: &[i32]) -> Result<String> {
    let target = root().join("target");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut variables = PROFILES.map(|(name, value)| (name, value.to_string())).to_vec();
    variables.push(("CARGO_TARGET_DIR", target.display().to_string()));
    variables.push(("PATH", format!("{}/debug:{path}", target.display())));
    page::shell(line, folder, &variables, codes)
}

/// Runs the commands of the page, and writes its adapter.
fn follow_page(folder: &Path) -> Result<()> {
    let text = read(PAGE)?;
    let page = Page::parse(PAGE, &text);
    let commands = page.commands();
    let is_short = (5..=10).contains(&commands) && page.steps.len() > commands;
    ensure!(is_short, "{PAGE}: {commands} commands, expected 5 to 10, and an adapter");
    let mut folder = folder.to_owned();
    for step in &page.steps {
        match step {
            Step::Code(file, code) => {
                fs::write(folder.join(file), code)?;
                shell("cargo fmt --check", &folder, &[0])?;
            }
            Step::Command(line, expected) => match line.strip_prefix("cd ") {
                Some(inner) => folder.push(inner),
                // The exit code of a violation is 1, and the lines below say whether one is expected.
                None => page.compare(&shell(line, &folder, &[0, 1])?, expected)?,
            },
        }
    }
    let last = shell("cargo run -q -- replay small", &folder, &[1])?;
    ensure!(last.contains("operations"), "{last}\nthe last input of the page shows no violation");
    Ok(())
}

/// Makes a crate whose engine is our walker, and returns its folder.
fn new_walker(folder: &Path) -> Result<PathBuf> {
    shell("qcowfuzz new-engine walker", folder, &[0])?;
    let folder = folder.join("walker");
    shell("cargo fmt --check && cd fuzz && cargo fmt --check", &folder, &[0])?;
    fs::write(folder.join("src/lib.rs"), ENGINE)?;
    Ok(folder)
}

/// Fills in our walker: the self-test passes, and the loop finds nothing in five seconds. Then plants a bug in the
/// adapter, which the loop must find.
fn fuzz_walker(folder: &Path) -> Result<()> {
    let folder = &new_walker(folder)?;
    shell("cargo run -q -- selftest", folder, &[0])?;
    let found = shell("cargo run -q -- fuzz --seconds 5", folder, &[0])?;
    ensure!(found.contains("found: nothing"), "{found}\nexpected 'found: nothing'");
    ensure!(ENGINE.contains(SOUND), "walker_engine.rs: expected the line '{}'", SOUND.trim());
    fs::write(folder.join("src/lib.rs"), ENGINE.replace(SOUND, PLANTED))?;
    shell("cargo run -q -- selftest", folder, &[1])?;
    let found = shell("cargo run -q -- fuzz --until-found --seconds 60", folder, &[1])?;
    ensure!(found.contains("data: "), "{found}\nthe planted bug was not found");
    Ok(())
}
