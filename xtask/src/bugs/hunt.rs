//! Campaigns that search for planted faults, the table of their times, and the embedded loop's summary.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::measured::{Spent, head, median, row, run_limited};

/// The result of a campaign.
pub struct Reached {
    /// The CPU seconds of the loop and its workers.
    pub cpu_seconds: f64,
    /// The number of runs.
    pub runs: u64,
    /// The fingerprints of the findings, known ones included.
    pub found: Vec<String>,
    /// The limit ended the campaign.
    pub is_limited: bool,
}

/// Runs the embedded loop in an empty folder for at most `limit` CPU seconds.
pub fn embedded(command: &mut Command, dir: &Path, limit: f64) -> Result<Reached> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    command.args(["--json", "--jobs", "1", "--dir"]).arg(dir).env("RUST_BACKTRACE", "0");
    let Spent { cpu_seconds, is_limited, code, output, log } = run_limited(command, dir, limit)?;
    let summary: Option<Value> = serde_json::from_str(&output).ok();
    let Some(summary) = summary.filter(|_| matches!(code, Some(0 | 1))) else {
        bail!(
            "{}: ended with {code:?}, expected exit code 0 or 1 and a summary: {log}",
            dir.display()
        );
    };
    let found = listed(&summary, "found")?.iter();
    let known = listed(&summary, "known")?.iter().filter(|it| it["times"].as_u64() > Some(0));
    let found = found.chain(known).filter_map(|bug| bug["fingerprint"].as_str());
    let (found, runs) = (found.map(str::to_owned).collect(), summary["runs"].as_u64());
    Ok(Reached { cpu_seconds, runs: runs.context("a summary without `runs`")?, found, is_limited })
}

fn listed<'a>(summary: &'a Value, name: &str) -> Result<&'a Vec<Value>> {
    summary[name].as_array().with_context(|| format!("expected a list '{name}' in a summary"))
}

/// One measured campaign: its CPU seconds, its runs, and the fingerprint, which is `none` if the limit ended it.
pub type Values = [String; 3];

/// The columns of [`Values`].
pub const VALUES: [&str; 3] = ["cpu_seconds", "runs", "found"];

/// The text that stands for no finding.
const NONE: &str = "none";

/// Returns what is kept of a campaign.
pub fn values(cpu_seconds: f64, runs: u64, found: Option<&str>) -> Values {
    [format!("{cpu_seconds:.1}"), runs.to_string(), found.unwrap_or(NONE).to_owned()]
}

/// The campaigns of one fault with all seeds.
pub struct Hunt {
    /// The first cells of the row: the name of the fault, the loop, and so on.
    pub cells: Vec<String>,
    /// The campaigns.
    pub measured: Vec<Values>,
    /// The highest median that is good enough, in CPU seconds; infinite where the fault need not be found.
    pub enough: f64,
    /// A campaign that finds nothing is a miss, even if most find the fault.
    pub in_all_seeds: bool,
}

/// Returns the table of all hunts with the sum of the medians, and the faults that were not found in time.
pub fn table(titles: &[&str], hunts: &[Hunt], limit: f64) -> Result<(String, Vec<String>)> {
    let columns = ["median CPU s", "lowest", "highest", "runs, median", "seeds", "found as"];
    let (mut text, mut missed, mut sum) = (head(&[titles, &columns].concat()), Vec::new(), 0.0);
    for hunt in hunts {
        let (mut times, mut runs, mut found) = (Vec::new(), Vec::new(), BTreeSet::new());
        for [time, count, fingerprint] in &hunt.measured {
            let is_found = fingerprint != NONE;
            found.extend(is_found.then(|| format!("`{fingerprint}`")));
            times.push(if is_found { time.parse()? } else { f64::INFINITY });
            runs.push(count.parse()?);
        }
        times.sort_by(f64::total_cmp);
        let in_time = times.iter().filter(|it| it.is_finite()).count();
        let seconds = |it: Option<&f64>| match it {
            Some(it) if it.is_finite() => format!("{it:.1}"),
            _ => format!("above {limit}"),
        };
        let median_time = median(&times);
        let numbers = [Some(&median_time), times.first(), times.last()].map(seconds);
        let count = format!("{in_time} of {}", times.len());
        let found = match found.is_empty() {
            true => "**nothing**".to_owned(),
            false => found.into_iter().collect::<Vec<_>>().join("<br>"),
        };
        let mut cells = hunt.cells.clone();
        cells.extend(numbers.into_iter().chain([format!("{:.0}", median(&runs)), count, found]));
        text += &row(&cells);
        let is_enough = !hunt.in_all_seeds || in_time == times.len();
        if !is_enough || median_time > hunt.enough {
            missed.push(hunt.cells.join(", "));
        }
        // A fault that was not found counts with the limit, so the sum is a lower bound.
        sum += median_time.min(limit);
    }
    text += &format!("\nSum of the medians of {}: {sum:.1} CPU seconds.\n", hunts.len());
    Ok((text, missed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_most_seeds_do_not_find_in_time_is_missed() {
        let hunt = |name: &str, found: [Option<&str>; 3], enough| Hunt {
            cells: vec![name.to_owned()],
            measured: found.map(|it| values(8.0, 100, it)).to_vec(),
            enough,
            in_all_seeds: name == "all",
        };
        let model = Some("model: extents");
        let hunts = [
            hunt("two", [model, None, model], 10.0),
            hunt("one", [model, None, None], 10.0),
            hunt("slow", [model; 3], 7.0),
            hunt("blind", [None; 3], f64::INFINITY),
            hunt("all", [model, model, None], 10.0),
        ];
        let (text, missed) = table(&["bug"], &hunts, 30.0).unwrap();
        assert_eq!(missed, ["one", "slow", "all"]);
        assert!(
            text.contains("| two | 8.0 | 8.0 | above 30 | 100 | 2 of 3 | `model: extents` |"),
            "{text}"
        );
        assert!(
            text.contains(
                "| blind | above 30 | above 30 | above 30 | 100 | 0 of 3 | **nothing** |"
            )
        );
        assert!(text.ends_with("Sum of the medians of 5: 84.0 CPU seconds.\n"), "{text}");
    }
}
