//! Compares the harness's speed with that of another commit. Both builds take turns, so that a slow minute affects
//! both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::measured::{head, median, publish, row};
use crate::process::{attached, command, output, quiet, root, target_folder};

/// The options of the measurement.
#[derive(Args)]
pub struct Options {
    /// The commit to compare with. It must be able to build this tree's benchmarks
    revision: String,
    /// The number of measurements of each build
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// The tables of the benchmark `rate` that this measurement compares.
const TABLES: [&str; 3] = ["evolved", "rate", "growth"];

/// Builds the benchmark of a tree, and returns the path of the program.
fn benchmark(tree: &Path, target: &Path) -> Result<PathBuf> {
    let mut cargo = command("cargo");
    cargo.args(["bench", "--locked", "--bench", "rate", "--no-run", "--message-format=json"]);
    let lines = output(cargo.current_dir(tree).env("CARGO_TARGET_DIR", target))?;
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let built = messages.filter_map(|it| it["executable"].as_str().map(PathBuf::from)).next_back();
    built.context("cargo names no benchmark")
}

/// Returns the numbers of a printed table, by the first cell of the row and the title of the column.
fn figures(printed: &str) -> BTreeMap<(String, String), f64> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let mut rows = printed.lines().filter(|line| line.starts_with('|')).map(cells);
    let titles = rows.next().unwrap_or_default();
    let mut found = BTreeMap::new();
    for row in rows {
        for (title, cell) in titles.iter().zip(&row).skip(1) {
            let end = cell.find(|it: char| !it.is_ascii_digit() && it != '.');
            if let Ok(number) = cell[..end.unwrap_or(cell.len())].parse() {
                found.insert((row[0].clone(), title.clone()), number);
            }
        }
    }
    found
}

/// Measures both trees, and prints the median of each figure and the ratio.
pub fn measure(options: &Options) -> Result<()> {
    let (work, revision) = (target_folder("").join("against"), &options.revision);
    let other = work.join("tree");
    // A checkout has the date of now: cargo would take older files for those of the revision measured before.
    let script =
        "rm -rf \"$1\" && git worktree prune && git worktree add -q --detach \"$1\" \"$2\" &&
        rm -r \"$1/benches\" && cp -r benches \"$1\"";
    quiet(command("sh").args(["-c", script, "sh"]).arg(&other).arg(revision))?;
    let programs =
        [benchmark(&other, &work.join("build"))?, benchmark(root(), &target_folder(""))?];
    let mut text = head(&["", "", revision, "this tree", "ratio"]);
    for table in TABLES {
        let mut measured = BTreeMap::<_, [Vec<f64>; 2]>::new();
        for _ in 0..options.rounds.max(1) {
            for (at, program) in programs.iter().enumerate() {
                let printed = output(attached(program).args(["--bench", table]))?;
                for (name, figure) in figures(&printed) {
                    measured.entry(name).or_default()[at].push(figure);
                }
            }
        }
        ensure!(!measured.is_empty(), "the benchmark prints no table '{table}'");
        for ((name, title), figures) in measured {
            let [before, now] = figures.map(|it| median(&it));
            let [ratio, before, now] = [now / before, before, now].map(|it| format!("{it:.2}"));
            text += &row(&[&name, &title, &before, &now, &format!("{ratio} ×")]);
        }
    }
    quiet(command("git").args(["worktree", "remove", "--force"]).arg(&other))?;
    publish(&format!("Benchmarks, against {revision}"), &text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_names_of_their_row_and_column() {
        let found = figures("|  | time | ratio |\n|---|---|---|\n| mean | 12.5 µs | 3 × |\n");
        let name = |title: &str| ("mean".to_owned(), title.to_owned());
        assert_eq!(found, BTreeMap::from([(name("time"), 12.5), (name("ratio"), 3.0)]));
    }
}
