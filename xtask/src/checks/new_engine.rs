//! Proves that an empty folder becomes a fuzzer, as `docs/engines.md` says. `tests/cli/new_engine.rs` tests the folders
//! that the command refuses.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::process::{captured, command, quiet, read, root, run};

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

/// Runs a command of the shell in a folder, and returns its output. It must end with one of the exit codes, and without
/// a warning. Builds share dependencies with those of this repository.
fn shell(line: &str, folder: &Path, codes: &[i32]) -> Result<String> {
    let start = Instant::now();
    let target = root().join("target");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("bash");
    shell.args(["-c", line]).current_dir(folder).envs(PROFILES).env("CARGO_TARGET_DIR", &target);
    shell.env("PATH", format!("{}/debug:{path}", target.display()));
    let (status, output) = captured(&mut shell)?;
    println!("{line}: {:.1} s", start.elapsed().as_secs_f32());
    let warns = output.lines().any(|line| line.starts_with("warning: "));
    let ends = status.code().is_some_and(|code| codes.contains(&code));
    ensure!(ends && !warns, "{output}\n{line}: {status}, expected {codes:?} and no warning");
    Ok(output)
}

/// A step of the page.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    /// A command and the lines below it.
    Command(&'a str, Vec<&'a str>),
    /// The code of `src/lib.rs`.
    Code(&'a str),
}

/// Returns the steps of the page.
fn parse(page: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for (number, block) in page.split("```").enumerate() {
        if number % 2 == 1 {
            steps.extend(block.strip_prefix("rust\n").map(Step::Code));
            continue;
        }
        for line in block.lines().filter_map(|line| line.strip_prefix("    ")) {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step::Command(command, Vec::new())),
                (None, Some(Step::Command(_, lines))) => lines.push(line),
                (None, _) => {}
            }
        }
    }
    steps
}

/// Fails unless the output has the expected lines in their order. `...` stands for any lines.
fn compare(output: &str, expected: &[&str]) -> Result<()> {
    let mut rest = output.lines().peekable();
    let mut skips = expected.is_empty();
    for line in expected {
        if *line == "..." {
            skips = true;
            continue;
        }
        let found = if skips { rest.find(|it| it == line) } else { rest.next_if_eq(line) };
        ensure!(found.is_some(), "{output}\nthe output lacks '{line}', which {PAGE} shows there");
        skips = false;
    }
    let more = rest.next().filter(|_| !skips);
    ensure!(more.is_none(), "the output contains {more:?}, which {PAGE} does not show");
    Ok(())
}

/// Runs the commands of the page, and writes its adapter.
fn follow_page(folder: &Path) -> Result<()> {
    let page = read(PAGE)?;
    let steps = parse(&page);
    let commands = steps.iter().filter(|step| matches!(step, Step::Command(..))).count();
    let is_short = (5..=10).contains(&commands) && steps.len() > commands;
    ensure!(is_short, "{PAGE}: {commands} commands, expected 5 to 10, and an adapter");
    let mut folder = folder.to_owned();
    for step in steps {
        match step {
            Step::Code(code) => {
                fs::write(folder.join("src/lib.rs"), code)?;
                shell("cargo fmt --check", &folder, &[0])?;
            }
            Step::Command(line, expected) => match line.strip_prefix("cd ") {
                Some(inner) => folder.push(inner),
                // The exit code of a violation is 1, and the lines below say whether one is expected.
                None => compare(&shell(line, &folder, &[0, 1])?, &expected)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_steps() {
        let page =
            "a\n\n    $ b\n    c\n    ...\n\n```rust\nd\n```\n\n    e\n\n```text\n    $ f\n```\n";
        assert_eq!(parse(page), [Step::Command("b", vec!["c", "..."]), Step::Code("d\n")]);
    }

    #[test]
    fn other_lines_are_found() {
        let matches = |output: &str, expected: &[&str]| compare(output, expected).is_ok();
        assert!(matches("a\nb\nc\n", &["a", "...", "c"]) && matches("a\nb\n", &["a", "..."]));
        assert!(matches("a\n", &[]) && matches("a\n", &["...", "a"]));
        assert!(
            !matches("a\nb\n", &["a"])
                && !matches("a\nb\n", &["b"])
                && !matches("a\n", &["a", "b"])
        );
        assert!(!matches("a\nb\nc\n", &["a", "...", "d"]));
    }
}
