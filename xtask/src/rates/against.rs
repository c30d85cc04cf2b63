//! Compares the harness's speed with that of another commit. Both builds take turns, so that a slow minute affects
//! both.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::measured::{head, median, publish, row};
use crate::process::{attached, command, files_below, output, quiet, root, target_folder};

/// The options of the measurement.
#[derive(Args)]
pub struct Options {
    /// The commit to compare with. It must be able to build this tree's benchmarks
    revision: String,
    /// The number of measurements of each build
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Write the table to docs/results/NAME.md
    #[arg(long, value_name = "NAME")]
    results: Option<String>,
}

/// Each figure: the benchmark's table, the first cell of the row, the column, the title, and whether more is better.
const FIGURES: [(&str, &str, usize, &str, bool); 10] = [
    ("evolved", "mean", 3, "evolved set, runs a second", true),
    ("evolved", "median", 1, "evolved set, median run, µs", false),
    ("evolved", "99%", 3, "evolved set, share of the costliest 1% of the runs, %", false),
    ("evolved", "worst", 2, "evolved set, worst run, × the median", false),
    (
        "rate",
        "without compressed clusters",
        3,
        "frozen set without compressed clusters, images a second",
        true,
    ),
    ("rate", "with them", 3, "frozen set with them, images a second", true),
    ("growth", "1 MiB → 1 PiB, 64 KiB clusters", 1, "1 MiB → 1 PiB, 64 KiB clusters", false),
    ("growth", "64 KiB → 2 MiB clusters, 1 GiB", 1, "64 KiB → 2 MiB clusters, 1 GiB", false),
    ("growth", "64 KiB → 512-byte clusters, 1 GiB", 1, "64 KiB → 512-byte clusters, 1 GiB", false),
    ("growth", "20 → 40 operations, 64 KiB clusters, 1 GiB", 1, "20 → 40 operations, 1 GiB", false),
];

/// Builds the benchmark of a tree, and returns the path of the program.
fn benchmark(tree: &Path, target: &Path) -> Result<PathBuf> {
    let mut cargo = command("cargo");
    cargo.args(["bench", "--locked", "--bench", "rate", "--no-run", "--message-format=json"]);
    let lines = output(cargo.current_dir(tree).env("CARGO_TARGET_DIR", target))?;
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let built = messages.filter_map(|it| it["executable"].as_str().map(PathBuf::from)).next_back();
    built.context("cargo names no benchmark")
}

/// Returns the rows of a table that a program prints, by their first cells.
fn rows(printed: &str) -> BTreeMap<String, Vec<String>> {
    let cells = |line: &str| -> Vec<_> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    printed.lines().map(cells).map(|cells| (cells[0].clone(), cells)).collect()
}

/// Returns the number at the beginning of a cell. A figure that the benchmark no longer prints is an error.
fn figure(rows: &BTreeMap<String, Vec<String>>, name: &str, column: usize) -> Result<f64> {
    let cell = rows.get(name).and_then(|row| row.get(column));
    let cell =
        cell.with_context(|| format!("the benchmark has no row '{name}' with column {column}"))?;
    let end = cell.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(cell.len());
    cell[..end].parse().with_context(|| format!("'{name}': expected a number, found '{cell}'"))
}

/// Unpacks a commit into a folder, and removes everything else there.
pub fn unpack(revision: &str, to: &Path) -> Result<()> {
    let archive = to.with_extension("tar");
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to)?;
    let mut git = command("git");
    git.args(["archive", "-o"]).arg(&archive).arg(format!("{revision}^{{commit}}"));
    quiet(&mut git).with_context(|| format!("expected a commit, found '{revision}'"))?;
    // With the date of now: Cargo would take files as old as their commit for those of the revision measured before.
    quiet(command("tar").args(["-x", "-m", "-f"]).arg(&archive).arg("-C").arg(to)).map(drop)
}

/// Gives an unpacked commit the benchmarks of this tree.
fn copy_benchmarks(to: &Path) -> Result<()> {
    fs::remove_dir_all(to.join("benches"))?;
    for path in files_below(&root().join("benches"))? {
        let copy = to.join(path.strip_prefix(root())?);
        fs::create_dir_all(copy.parent().context("a file without a folder")?)?;
        fs::copy(path, copy)?;
    }
    Ok(())
}

/// Measures both trees, and prints the median of each figure and the ratio.
pub fn measure(options: &Options) -> Result<()> {
    let work = target_folder("").join("against");
    let other = work.join("tree");
    unpack(&options.revision, &other)?;
    copy_benchmarks(&other)?;
    let programs =
        [benchmark(&other, &work.join("build"))?, benchmark(root(), &target_folder(""))?];
    let mut figures = BTreeMap::<_, Vec<f64>>::new();
    for _ in 0..options.rounds.max(1) {
        for table in ["evolved", "rate", "growth"] {
            let of_table = FIGURES.iter().filter(|it| it.0 == table);
            for (at, program) in programs.iter().enumerate() {
                let rows = rows(&output(attached(program).args(["--bench", table]))?);
                for (_, name, column, title, _) in of_table.clone() {
                    figures.entry((*title, at)).or_default().push(figure(&rows, name, *column)?);
                }
            }
        }
    }
    let mut text = head(&["", &options.revision, "this tree", "better by"]);
    for (.., title, more_is_better) in FIGURES {
        let [before, now] =
            [0, 1].map(|at| figures.get(&(title, at)).map_or(f64::NAN, |it| median(it)));
        let ratio = if more_is_better { now / before } else { before / now };
        text += &row(&[title, &before.to_string(), &now.to_string(), &format!("{ratio:.2} ×")]);
    }
    publish(options.results.as_deref(), &format!("Benchmarks, against {}", options.revision), &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_that_is_not_printed_is_an_error() {
        let rows = rows("|  | time |\n|---|---|\n| mean | 12.5 µs | 3 × |\n");
        assert_eq!(figure(&rows, "mean", 1).unwrap(), 12.5);
        assert!(figure(&rows, "median", 1).is_err());
        assert!(figure(&rows, "mean", 3).is_err());
    }
}
