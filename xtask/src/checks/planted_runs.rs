//! Proves, with planted bugs, that loops find them, survive them and report them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{captured, command, expect, files_below, run};
use crate::tree::{CANARY, Tree};

/// The violation that the canary causes, without its oracle.
const VIOLATION: &str = ": kind, zero-allocated → zero-plain";

/// The runs of each campaign of `survivor`.
const RUNS: &str = "700";

/// Proves that the embedded loop can fail: it must find the canary from an empty corpus, and the oracle `model` or
/// `snapshots` must report it. `oss-fuzz` proves the same of libFuzzer.
pub fn canary() -> Result<()> {
    let planted = Tree::planted(CANARY, &[CANARY])?;
    let work = tempfile::tempdir()?;
    let mut fuzz = planted.command("cargo");
    fuzz.args(["run", "-q", "--", "fuzz", "--until-found", "--runs", "200000", "--dir"]);
    let (status, log) = captured(fuzz.arg(work.path()))?;
    let is_it = |line: &&str| {
        ["model", "snapshots"].iter().any(|it| line.contains(&format!("{it}{VIOLATION}")))
    };
    let found = log.lines().find(is_it).filter(|_| !status.success());
    ensure!(found.is_some(), "{log}\n{status}, expected a finding '{VIOLATION}'");
    println!("{}", found.unwrap_or_default());
    Ok(())
}

/// Runs the commands of `docs/crash.md` with the canary planted, and compares their output with the page.
pub fn from_crash() -> Result<()> {
    let canary = Tree::planted(CANARY, &[CANARY])?.qcowfuzz()?;
    let test = ["test", "-q", "--locked", "--test", "from_crash"];
    run(command("cargo").args(test).env("QCOWFUZZ_CANARY", canary))
}

/// Runs `nightly-fuzz` for seconds. With the canary planted, the summary must contain the bug, and the program must
/// fail. Without it, the program must find nothing and keep the corpus, and a second run must continue from that
/// corpus.
pub fn nightly_fuzz() -> Result<()> {
    let work = tempfile::tempdir()?;
    let page = work.path().join("page");
    let night = |mut command: Command, dir: &str, target: &str, code: i32, text: &str| {
        command.args(["nightly-fuzz", "--no-trace-compares"]).arg(work.path().join(dir));
        command.args(["5", target]).env("GITHUB_STEP_SUMMARY", &page);
        expect(&mut command, code, text)
    };
    let sound = || Ok::<_, anyhow::Error>(command(std::env::current_exe()?));
    let planted = Tree::planted(CANARY, &[CANARY])?;
    night(planted.xtask()?, "canary", "map_extents", 1, VIOLATION)?;
    let found = fs::read_to_string(&page)?;
    let is_it = |line: &str| line.starts_with("new ") && line.contains(VIOLATION);
    ensure!(found.lines().any(is_it), "{found}\nexpected a new bug '{VIOLATION}'");
    let kept = || files_below(&work.path().join("sound/corpus/refcounts")).map_or(0, |it| it.len());
    for _ in 0..2 {
        let before = kept();
        night(sound()?, "sound", "refcounts", 0, "")?;
        let line = format!("\n## refcounts: {before} → {} inputs", kept());
        let found = fs::read_to_string(&page)?;
        ensure!(
            kept() > 0 && found.contains(&line),
            "{found}\nexpected inputs, and the line '{line}'"
        );
    }
    // A target that does not build must not count as one that found nothing.
    night(sound()?, "sound", "no_such_target", 1, "ended before its time")?;
    println!("check-nightly-fuzz: finds the canary, and nothing without it");
    Ok(())
}

/// Proves that a campaign survives a stack overflow, a hang, an allocation without measure and a panic, which are
/// planted in a copy of the tree (`bugs/deadly`). The campaign must find all four and make all runs, and a second
/// campaign must be the same.
pub fn survivor() -> Result<()> {
    // Not optimized: that build shares all dependencies, and most of the time goes to hangs.
    let qcowfuzz = Tree::planted("survivor", &["deadly/walk"])?.qcowfuzz()?;
    let work = tempfile::tempdir()?;
    let [one, other] = ["one", "other"].map(|name| work.path().join(name));
    let campaign = |dir: &Path| {
        fs::create_dir_all(dir.join("corpus"))?;
        run(command("cp").args(["-r", "corpus/map_extents"]).arg(dir.join("corpus")))?;
        let mut fuzz = command(&qcowfuzz);
        fuzz.args(["fuzz", "--jobs", "1", "--timeout", "2", "--runs", RUNS, "--dir"]);
        expect(fuzz.arg(dir), 1, &format!("map_extents: {RUNS} runs"))
    };
    let found = campaign(&one)?;
    println!("{found}");
    let overflow = "an answer → signal: 6 (SIGABRT)";
    let memory = "memory: allocation, within the limit → beyond";
    for text in [overflow, "an answer → none", memory, "panic: qcowfuzz, "] {
        ensure!(found.contains(text), "the campaign did not print '{text}'");
    }
    campaign(&other)?;
    for folder in ["corpus", "artifacts"] {
        run(command("diff").arg("-r").args([one.join(folder), other.join(folder)]))?;
    }
    // Each artifact in a process of its own; the one that overflows the stack is minimized like any other.
    let mut triage = command(&qcowfuzz);
    triage.args(["triage", "--timeout", "2"]).arg(one.join("artifacts/map_extents"));
    let bugs = expect(&mut triage, 1, overflow)?;
    println!("{bugs}");
    let new = bugs.lines().filter(|line| line.starts_with("new ")).count();
    ensure!(new >= 4, "triage listed {new} bugs, expected at least 4");
    let mut after = bugs.lines().skip_while(|line| !line.contains("SIGABRT")).take(3);
    let input = after.find_map(|line| line.split_once(" bytes  "));
    let (_, input) = input.context("triage listed no input of the stack overflow")?;
    let mut minimize = command(&qcowfuzz);
    expect(minimize.args(["minimize", input, "-o"]).arg(work.path().join("small")), 0, "SIGABRT")?;
    println!("survivor: {RUNS} runs and four ways to end, twice the same");
    Ok(())
}
