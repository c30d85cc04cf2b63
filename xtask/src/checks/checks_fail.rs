//! Proves that the checks of workflows, dependencies, the minimum Rust version and findings can fail.
//! `tests/package.rs` does the same for the package.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};

use crate::process::{ROOT, captured, command, end, root};
use crate::tree::{Changes, copy};

/// A fault in a file: a text, the text that takes its place, the command that must fail, and what it must print. An
/// empty text stands for the end of the file. A command of this program begins with `xtask`.
struct Fault(&'static str, &'static str, &'static str, &'static str, &'static str);

const WORKFLOW: &str = ".github/workflows/advisories.yml";

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault(WORKFLOW, "runs-on:", "runs_on:", "xtask check-workflows", "'runs-on' is a required property"),
    Fault(WORKFLOW, "checkout@", "checkout@v7 # ", "xtask check-workflows", "unpinned-uses"),
    Fault(WORKFLOW, "\npermissions: {}", "\npermissions: write-all", "xtask check-workflows", "excessive-permissions"),
    Fault(WORKFLOW, "run: cargo xtask check", "run: echo \"${{ github.event.pull_request.title }}\" #",
        "xtask check-workflows", "template-injection"),
    Fault(".ci/run", "\nstep tests", "\nstep planted true\nstep tests", "xtask check-workflows",
        "no job runs the step 'planted'"),
    // A version that is too old for a dependency of both crates, two that differ, and a newer item of the standard
    // library.
    Fault("Cargo.toml", "\nrust-version = ", "\nrust-version = \"1.85\" #", "xtask check-msrv", "Cargo.toml: \"backtrace"),
    Fault("Cargo.toml", "\nrust-version = ", "\nrust-version = \"1.85\" #", "xtask check-msrv",
        "fuzz/Cargo.toml: \"backtrace"),
    Fault("fuzz/Cargo.toml", "\nrust-version = ", "\nrust-version = \"1.99\" #", "xtask check-msrv",
        "states rust-version 1.99"),
    Fault("src/lib.rs", "", "/// Planted.\npub fn planted(text: &str) -> usize { text.ceil_char_boundary(1) }\n",
        "cargo clippy --locked --no-default-features --lib -- -D warnings", "this item is stable since `1.91.0`"),
    Fault("deny.toml", "{ crate = \"zstd-sys\"", "# ", "xtask check-dependencies",
        "failed to satisfy license requirements"),
    Fault("deny.toml", "{ crate = \"libfuzzer-sys\"", "# ", "xtask check-dependencies",
        "failed to satisfy license requirements"),
    Fault("deny.toml", "{ crate = \"syn@2\"", "# ", "xtask check-dependencies",
        "found 2 duplicate entries for crate 'syn'"),
    Fault("deny.toml", "\"syn@2\"", "\"syn@1\"", "xtask check-dependencies", "unmatched-skip"),
    Fault("deny.toml", "\nunknown-registry", "\nallow-registry = []\nunknown-registry", "xtask check-dependencies",
        "source-not-allowed"),
    Fault("engines/findings/fstool.toml", "severity = \"wrong data\"", "severity = \"low\"", "xtask findings",
        "BUGS.md is out of date"),
    Fault("engines/findings/qemu.toml", "same_cause_as = \"killed_in_apply\"", "same_cause_as = \"none\"", "xtask findings",
        "qemu/power_cut_in_apply: same_cause_as names no finding"),
];

/// Plants a fault for each check in a copy of the tree. The check must fail and name the fault.
pub fn check() -> Result<()> {
    let work = tempfile::tempdir()?;
    copy(work.path(), &Changes::new())?;
    let target = root().join("target");
    fs::create_dir_all(&target)?;
    // The copy uses what is built already.
    symlink(target, work.path().join("target"))?;
    for Fault(file, text, planted, line, expected) in FAULTS {
        let path = work.path().join(file);
        let sound = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let faulty = match text.is_empty() {
            true => format!("{sound}{planted}"),
            false => sound.replace(text, planted),
        };
        ensure!(faulty != sound, "{file}: '{text}' not found");
        fs::write(&path, faulty)?;
        let mut words = line.split(' ');
        let program = words.next().context("an empty command")?;
        let program = if program == "xtask" { std::env::current_exe()? } else { program.into() };
        let mut check = command(program);
        check.args(words).current_dir(work.path()).env(ROOT, work.path());
        let (status, output) = captured(&mut check)?;
        let is_found = !status.success() && output.contains(expected);
        let log = end(&output);
        ensure!(is_found, "{log}\n'{planted}' in {file}: {line}: {status}, expected '{expected}'");
        fs::write(path, sound)?;
    }
    println!("checks-fail: {} planted faults, all found", FAULTS.len());
    Ok(())
}
