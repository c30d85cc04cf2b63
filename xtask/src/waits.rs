//! Measures what a user waits for: each command of README and of the page about engines, on a copy of the last commit
//! and with empty target folders. The sources of the dependencies are there already.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use wait4::Wait4;

use crate::measured::{head, publish, row};
use crate::process::{quiet, root, text_of};

/// Measure what a user waits for: seconds, and CPU seconds of the process with its children
#[derive(clap::Args)]
pub struct Options {
    /// The waits to measure; earlier waits run, too, except before 'tests' [default: all but 'tests']
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(WAITS.map(|wait| wait.name)))]
    names: Vec<String>,
}

/// A command of a user.
struct Wait {
    name: &'static str,
    /// The line of the shell. `$BIN` is the folder of installed programs.
    line: &'static str,
    /// The folder below that of the measurement in which it runs.
    folder: &'static str,
    /// The exit codes that are right.
    codes: &'static [i32],
    /// Changes the files before the command.
    prepare: fn(&Path) -> Result<()>,
}

const NOTHING: fn(&Path) -> Result<()> = |_| Ok(());
/// The waits in their order: later ones use the programs and the crate of earlier ones.
const WAITS: [Wait; 7] = [
    Wait {
        name: "cargo-fuzz",
        line: "cargo install -q --locked cargo-fuzz --root \"$BIN\"",
        folder: "copy",
        codes: &[0],
        prepare: NOTHING,
    },
    Wait {
        name: "first-run",
        line: "\"$BIN\"/bin/cargo-fuzz fuzz run --no-trace-compares map_extents -- -use_counters=0 -runs=1",
        folder: "copy",
        codes: &[0],
        prepare: NOTHING,
    },
    Wait {
        name: "command",
        line: "cargo install -q --locked --path . --root \"$BIN\"",
        folder: "copy",
        codes: &[0],
        prepare: NOTHING,
    },
    Wait {
        name: "new-engine",
        line: "\"$BIN\"/bin/qcowfuzz new-engine engine && cd engine && cargo run -q -- selftest",
        folder: "",
        codes: &[1],
        prepare: NOTHING,
    },
    Wait {
        name: "first-verdict",
        line: "cargo run -q -- selftest && cargo run -q -- fuzz --jobs 1 --runs 1",
        folder: "engine",
        codes: &[0],
        prepare: |folder| Ok(fs::write(folder.join("engine/src/lib.rs"), ENGINE)?),
    },
    Wait {
        name: "edit",
        line: "cargo run -q -- selftest",
        folder: "engine",
        codes: &[0],
        prepare: |folder| Ok(fs::write(folder.join("engine/src/lib.rs"), format!("{ENGINE}\n"))?),
    },
    Wait {
        name: "tests",
        line: "cargo test -q --locked",
        folder: "copy",
        codes: &[0],
        prepare: NOTHING,
    },
];
/// Our walker as the engine.
const ENGINE: &str = include_str!("../walker_engine.rs");

/// Measures the waits, and prints a page.
pub fn measure(options: &Options) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("copy");
    quiet(Command::new("git").args(["clone", "-q"]).arg(root()).arg(&copy))?;
    let is_named = |wait: &Wait| match options.names.is_empty() {
        true => wait.name != "tests",
        false => options.names.iter().any(|name| name == wait.name),
    };
    // The tests need no program that was installed.
    let last = WAITS.iter().rposition(|wait| is_named(wait) && wait.name != "tests");
    let runs = |(at, wait): &(usize, &Wait)| match wait.name {
        "tests" => is_named(wait),
        _ => last.is_some_and(|last| *at <= last),
    };
    let mut table = head(&["wait", "seconds", "CPU seconds", "command"]);
    for (_, wait) in WAITS.iter().enumerate().filter(runs) {
        let [seconds, cpu] = spent(wait, folder.path())?.map(|spent| format!("{spent:.1}"));
        eprintln!("{}: {seconds} s, {cpu} s of CPU time", wait.name);
        table += &row(&[wait.name, &seconds, &cpu, &format!("`{}`", wait.line)]);
    }
    publish("What a user waits for", &table);
    Ok(())
}

/// Returns the seconds and the CPU seconds of a wait.
fn spent(wait: &Wait, folder: &Path) -> Result<[f64; 2]> {
    (wait.prepare)(folder)?;
    let own: PathBuf = folder.join(wait.folder);
    let mut shell = Command::new("bash");
    shell.args(["-c", wait.line]).current_dir(&own).stdin(Stdio::null()).stdout(Stdio::null());
    shell.env("BIN", folder.join("bin"));
    // A user's target folders are empty, and those of no other workspace.
    shell.env_remove("CARGO_TARGET_DIR").env("RUSTUP_TOOLCHAIN", toolchain_of(wait));
    let start = Instant::now();
    let ended = shell.spawn().with_context(|| text_of(&shell))?.wait4()?;
    let is_right = ended.status.code().is_some_and(|code| wait.codes.contains(&code));
    ensure!(is_right, "{}: {}, expected exit code {:?}", wait.line, ended.status, wait.codes);
    let cpu = ended.rusage.utime + ended.rusage.stime;
    Ok([start.elapsed().as_secs_f64(), cpu.as_secs_f64()])
}

fn toolchain_of(wait: &Wait) -> &'static str {
    if wait.name == "first-run" { "nightly" } else { "stable" }
}
