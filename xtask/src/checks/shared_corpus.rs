//! Proves the statements of `docs/campaigns.md` about a shared folder: two libFuzzers and the embedded loop run on one
//! folder, one libFuzzer is killed, and nothing is lost. Then `corpus merge` and libFuzzer distil the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{attached, command, output, quiet, root};
use crate::tree::sanitized;

/// The paths of the programs, from the root. All checks that build `map_extents` share this build.
const LIBFUZZER: &str = "fuzz/target/x86_64-unknown-linux-gnu/release/map_extents";
const QCOWFUZZ: &str = "target/debug/qcowfuzz";

/// The runs of the embedded loop.
const RUNS: &str = "4500";
/// The finds of the first libFuzzer before it is killed; the second must have a quarter.
const FINDS: usize = 200;
/// The seconds in which each of two waits must end.
const SECONDS: u64 = 120;

/// Runs the campaigns and judges what they leave. The named seeds are as they were, every find that a campaign has kept
/// is there and whole, and the others have taken in finds of the killed one. Distilling loses no seed.
pub fn check() -> Result<()> {
    let build = |line: &str, target: &str| {
        let mut cargo = command("cargo");
        cargo.args(line.split(' ')).env("CARGO_TARGET_DIR", root().join(target));
        quiet(if line.starts_with("+nightly fuzz") { sanitized(&mut cargo) } else { &mut cargo })
    };
    build("+nightly fuzz build --no-trace-compares map_extents", "fuzz/target")?;
    build("build -q --locked --bin qcowfuzz", "target")?;
    let work = tempfile::tempdir()?;
    let work = work.path();
    let seeds = output(command("git").args(["ls-files", "corpus/map_extents"]))?;
    for folder in ["shared", "seeds"] {
        fs::create_dir(work.join(folder))?;
        quiet(command("cp").args(seeds.lines()).arg(work.join(folder)))?;
    }
    run_campaigns(work)?;
    judge(work)?;
    distil(work)?;
    println!(
        "shared-corpus: {} inputs of three campaigns, one of them killed",
        files(work, "shared")?.len()
    );
    Ok(())
}

/// Starts a command, whose output goes to a file.
fn start(command: &mut Command, work: &Path, log: &str) -> Result<Child> {
    let log = File::create(work.join(log))?;
    Ok(command.current_dir(work).stdout(log.try_clone()?).stderr(log).spawn()?)
}

/// Returns the files that a libFuzzer names in lines that begin like this. At this verbosity it names each file.
fn named(work: &Path, log: &str, words: &str) -> Result<BTreeSet<String>> {
    let log = String::from_utf8_lossy(&fs::read(work.join(log))?).into_owned();
    let lines = log.lines().filter(|line| line.starts_with(words));
    Ok(lines.filter_map(|line| Some(line.split_once("shared/")?.1.to_owned())).collect())
}

/// Waits until a condition holds. Fails at once if a process has ended.
fn wait(running: &mut Child, what: &str, condition: impl Fn() -> Result<bool>) -> Result<()> {
    for _ in 0..SECONDS * 10 {
        if condition()? {
            return Ok(());
        }
        ensure!(running.try_wait()?.is_none(), "libFuzzer ended; expected {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("{SECONDS} seconds have passed; expected {what}");
}

fn run_campaigns(work: &Path) -> Result<()> {
    let campaign = |seed: u32| {
        let mut target = attached(root().join(LIBFUZZER));
        // By default libFuzzer replaces finds of its own by shorter ones, which would look like a loss.
        target.args(["shared", "-max_len=512", "-verbosity=2", "-reduce_inputs=0", "-reload=1"]);
        start(target.arg(format!("-seed={seed}")), work, &format!("{seed}.log"))
    };
    let (mut killed, mut survivor) = (campaign(1)?, campaign(2)?);
    let mut embedded = attached(root().join(QCOWFUZZ));
    embedded.args(["fuzz", "--dir", "embedded", "--corpus", "shared", "--jobs", "1", "--runs"]);
    let mut embedded = start(embedded.arg(RUNS), work, "embedded.log")?;

    let finds = |log: &str| Ok::<_, anyhow::Error>(named(work, log, "Written ")?.len());
    let many = || Ok(finds("1.log")? > FINDS && finds("2.log")? > FINDS / 4);
    wait(&mut survivor, "more finds", many)?;
    killed.kill()?;
    killed.wait()?;
    let reloads =
        || Ok(!named(work, "2.log", "Reloaded ")?.is_disjoint(&named(work, "1.log", "Written ")?));
    let what = "that the second libFuzzer takes in finds of the first";
    wait(&mut survivor, what, reloads)?;
    let status = embedded.wait()?;
    ensure!(
        status.success(),
        "the embedded loop: {status}: {}",
        fs::read_to_string(work.join("embedded.log"))?
    );
    survivor.kill()?;
    survivor.wait()?;
    Ok(())
}

/// Returns the files of a folder.
fn files(work: &Path, folder: &str) -> Result<BTreeMap<String, Vec<u8>>> {
    let paths = fs::read_dir(work.join(folder))?.filter_map(|entry| Some(entry.ok()?.path()));
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    paths.filter(|path| path.is_file()).map(|path| Ok((name(&path), fs::read(&path)?))).collect()
}

fn judge(work: &Path) -> Result<()> {
    let shared = files(work, "shared")?;
    for (name, seed) in files(work, "seeds")? {
        ensure!(shared.get(&name) == Some(&seed), "the seed {name} is not the same any more");
    }
    let sums = output(command("sha1sum").args(shared.keys()).current_dir(work.join("shared")))?;
    let finds =
        sums.lines().filter_map(|line| line.split_once("  ")).filter(|(_, name)| name.len() == 40);
    let (whole, torn): (BTreeSet<_>, BTreeSet<_>) = finds.partition(|(sum, name)| sum == name);
    // Both that were killed may have been writing.
    ensure!(torn.len() <= 2, "more than two finds are torn: {torn:?}");
    let mut written = named(work, "1.log", "Written ")?;
    written.append(&mut named(work, "2.log", "Written ")?);
    for name in &written {
        ensure!(whole.contains(&(name.as_str(), name.as_str())), "libFuzzer has lost {name}");
    }
    // The inputs that the embedded loop has kept, as its state says.
    let state = fs::read_to_string(work.join("embedded/state/map_extents/job-0.json"))?;
    let state: Value = serde_json::from_str(&state)?;
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let inputs: BTreeMap<_, _> = shared.iter().map(|(name, bytes)| (hex(bytes), name)).collect();
    let mut learnt = 0;
    for entry in state["entries"].as_array().context("no entries in the state")? {
        let name = entry["input"].as_str().and_then(|input| inputs.get(input));
        ensure!(name.is_some(), "the embedded loop has lost {}", entry["input"]);
        learnt += usize::from(
            entry["parent"].is_null() && name.is_some_and(|name| written.contains(*name)),
        );
    }
    ensure!(learnt > 0, "the embedded loop took in nothing of libFuzzer");
    println!("the embedded loop has learnt {learnt} of {} inputs of libFuzzer", written.len());
    Ok(())
}

fn distil(work: &Path) -> Result<()> {
    let run = |program: &str, line: &str| {
        quiet(command(root().join(program)).args(line.split(' ')).current_dir(work))
    };
    run(QCOWFUZZ, "corpus merge shared -o merged")?;
    let before = files(work, "merged")?;
    // As docs/campaigns.md has libFuzzer add what the compiler's coverage needs.
    run(LIBFUZZER, "-use_counters=0 -set_cover_merge=1 merged shared")?;
    let merged = files(work, "merged")?;
    for (name, bytes) in before.iter().chain(&files(work, "seeds")?) {
        ensure!(merged.get(name) == Some(bytes), "{name} is not in the merged folder any more");
    }
    let mut diff = command(root().join(QCOWFUZZ));
    diff.args(["corpus", "diff", "shared", "merged", "--json"]).current_dir(work);
    let diff: Value = serde_json::from_str(&output(&mut diff)?)?;
    let is_empty = diff["only_one"].as_array().is_some_and(Vec::is_empty);
    ensure!(is_empty, "less is covered after merging: {}", diff["only_one"]);
    let added = merged.len() - before.len();
    println!("merged: {} inputs, and {added} for the compiler's coverage", before.len());
    Ok(())
}
