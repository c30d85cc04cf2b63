//! Kills the differential campaign at random moments, and checks that nothing is lost or left behind. The program under
//! test has faults, so that campaigns write and minimize reports all the time.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::check;
use crate::process::{attached, captured};

/// Where, and how often.
#[derive(Args)]
pub struct Options {
    /// A new folder
    dir: PathBuf,
    /// The number of kills; about three seconds each
    kills: u64,
    /// The seed of the moments
    #[arg(default_value_t = 1)]
    seed: u64,
}

/// The variable by which a campaign marks its processes.
const MARK: &str = "QCOWFUZZ_DIFFERENTIAL_FOLDER";
/// The longest time until a kill, in milliseconds.
const MAX_WAIT_MS: u64 = 6000;
/// The files of a report.
const REPORT_FILES: [&str; 4] = ["commands.sh", "issue.md", "qemu.stdout", "tested.stdout"];
/// A program under test in which each verb has a fault.
const FAULTY: &str = r#"#!/bin/sh
"QCOWFUZZ" "$@" >"$0.$$"
code=$?
sed -e 's/"offset": [1-9][0-9]*/"offset": 512/' -e 's/"image-end-offset": [0-9]*/"image-end-offset": 1/' \
    -e 's/^cluster_size/cluster size/' "$0.$$"
rm "$0.$$"
exit $code
"#;

/// Returns the names in a folder. A name with a dot is of a report that was not complete.
fn names_in(folder: &Path, wanted: impl Fn(&Path) -> bool) -> Result<BTreeSet<String>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(BTreeSet::new()) };
    let paths = entries.map(|it| Ok(it?.path())).collect::<Result<Vec<_>>>()?;
    let names = paths.iter().filter(|it| wanted(it)).filter_map(|it| it.file_name());
    Ok(names
        .map(|it| it.to_string_lossy().into_owned())
        .filter(|it| !it.starts_with('.'))
        .collect())
}

fn json(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// Checks that all reports are whole, that none of the earlier ones is gone, and that each finding of the summary has
/// its report. Returns the names of the reports, and how many are minimized.
fn check(reports: &Path, earlier: &BTreeSet<String>) -> Result<(BTreeSet<String>, usize)> {
    let names = names_in(reports, Path::is_dir)?;
    let lost: Vec<_> = earlier.difference(&names).collect();
    check!(lost.is_empty(), "reports are gone: {lost:?}");
    let mut minimized = 0;
    for name in &names {
        let folder = reports.join(name);
        let report = json(&folder.join("divergence.json"));
        check!(report.is_ok(), "{}: expected a whole divergence.json", folder.display());
        minimized += usize::from(report?["is_minimized"] == true);
        let missing: Vec<_> = REPORT_FILES.iter().filter(|it| !folder.join(it).is_file()).collect();
        check!(missing.is_empty(), "{} has no {missing:?}", folder.display());
    }
    if reports.join("summary.json").exists() {
        let summary = json(&reports.join("summary.json"));
        check!(summary.is_ok(), "expected a whole summary.json");
        for (fingerprint, found) in summary?["found"].as_object().context("no `found`")? {
            let is_there = found["folder"].as_str().is_some_and(|it| names.contains(it));
            check!(is_there, "the summary names {fingerprint}, which has no report");
        }
    }
    Ok((names, minimized))
}

/// Returns the processes that a campaign started below a folder.
fn processes_below(folder: &Path) -> Result<Vec<String>> {
    let mark = format!("{MARK}={}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        // A process may end at any time, and those of other users are not ours.
        let path = entry?.path();
        let Ok(environment) = fs::read(path.join("environ")) else { continue };
        if environment.split(|it| *it == 0).any(|it| it.starts_with(mark.as_bytes())) {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}

/// Kills, checks, starts the next campaign in the same folders, and lets the last one run to its end.
pub fn run(options: &Options) -> Result<()> {
    anyhow::ensure!(
        !options.dir.exists(),
        "{} exists, expected a new folder",
        options.dir.display()
    );
    let qcowfuzz = crate::differential::build("dev")?;
    fs::create_dir_all(options.dir.join("work"))?;
    let folder = fs::canonicalize(&options.dir)?;
    let (work, reports, faulty) =
        (folder.join("work"), folder.join("reports"), folder.join("faulty"));
    fs::write(work.join("mine"), "mine")?;
    fs::copy("/bin/sh", &faulty)?;
    // With the permissions of the copied program.
    fs::write(&faulty, FAULTY.replace("QCOWFUZZ", &qcowfuzz.to_string_lossy()))?;
    let campaign = |iterations: &str, seed: u64| -> Command {
        let mut campaign = attached(&qcowfuzz);
        campaign.args([
            "differential",
            "--iterations",
            iterations,
            "--seed",
            &seed.to_string(),
            "--command",
        ]);
        campaign.arg(&faulty).arg("--workdir").arg(&work).arg("--report").arg(&reports);
        campaign
    };
    let (mut moment, mut names, mut unfinished, mut outlived) =
        (options.seed, BTreeSet::new(), 0, 0);
    for kill in 0..options.kills {
        // Another seed makes other divergences: there is always one to minimize.
        let mut command = campaign("100000", kill / 5 + 1);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        // Knuth's generator: its upper bits are random enough for a moment.
        moment =
            moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        sleep(Duration::from_millis(50 + (moment >> 33) % MAX_WAIT_MS));
        let ended = child.try_wait()?;
        check!(ended.is_none(), "the campaign ended by itself: {ended:?}");
        child.kill()?;
        child.wait()?;
        outlived += usize::from(!processes_below(&work)?.is_empty());
        let (now, minimized) = check(&reports, &names)?;
        unfinished += usize::from(minimized < now.len());
        names = now;
    }
    let (status, log) = captured(&mut campaign("20", 1))?;
    check!(status.code() == Some(1), "the last campaign ended with {status}, expected 1: {log}");
    let (names, _) = check(&reports, &names)?;
    let rest = names_in(&work, |_| true)?;
    check!(
        rest.iter().eq(["mine"]) && fs::read(work.join("mine"))? == b"mine",
        "left behind: {rest:?}"
    );
    let files = names_in(&reports, |it| !it.is_dir())?;
    check!(files.iter().eq(["index.html", "summary.json"]), "left behind: {files:?}");
    let left = processes_below(&work)?;
    check!(left.is_empty(), "processes are left: {left:?}");
    println!(
        "{} kills: {} reports, none lost and all whole; nothing is left behind.",
        options.kills,
        names.len()
    );
    println!(
        "After {unfinished} kills, a report was not minimized yet; after {outlived}, processes of the campaign still ran."
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_and_incomplete_reports_fail() {
        let folder = tempfile::tempdir().unwrap();
        let (reports, none) = (folder.path(), BTreeSet::new());
        let one = reports.join("one");
        fs::create_dir(&one).unwrap();
        let fault = |earlier: &BTreeSet<String>| check(reports, earlier).unwrap_err().to_string();
        assert!(fault(&none).contains("expected a whole divergence.json"));
        fs::write(one.join("divergence.json"), r#"{"is_minimized": true}"#).unwrap();
        assert!(fault(&none).contains("has no [\"commands.sh\""));
        REPORT_FILES.iter().for_each(|name| fs::write(one.join(name), "").unwrap());
        assert_eq!(check(reports, &none).unwrap(), (BTreeSet::from(["one".to_owned()]), 1));
        assert!(fault(&BTreeSet::from(["two".to_owned()])).contains("reports are gone: [\"two\"]"));
        fs::write(reports.join("summary.json"), r#"{"found": {"map": {"folder": "two"}}}"#)
            .unwrap();
        assert!(fault(&none).contains("the summary names map"));
        fs::write(reports.join("summary.json"), "{").unwrap();
        assert!(fault(&none).contains("a whole summary.json"));
    }
}
