//! Measures libFuzzer: the rate, the edges and the inputs of targets from their committed corpora, under several
//! settings. An empty target shows the cost of libFuzzer alone. All settings take turns, and each has the same CPU
//! time, because the machine may be shared.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use regex::Regex;

use crate::measured::{head, median, publish, row, run_limited};
use crate::process::{command, quiet, root, target_folder};
use crate::rates::against::unpack;

/// The options of the measurement.
#[derive(Args)]
pub struct Options {
    /// The CPU seconds of each run
    #[arg(long, default_value_t = 20.0)]
    cpu_seconds: f64,
    /// The number of runs of each setting, each with another seed
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// A target; may be repeated
    #[arg(long, default_value = "map_extents")]
    target: Vec<String>,
    /// A sanitizer; may be repeated
    #[arg(long, default_values = ["none", "address"])]
    sanitizer: Vec<String>,
    /// Also measure cargo-fuzz's options at another commit
    #[arg(long, value_name = "REVISION")]
    against: Option<String>,
    /// Write the table to docs/results/NAME.md
    #[arg(long, value_name = "NAME")]
    results: Option<String>,
}

/// The settings of libFuzzer: the name, the options of `cargo fuzz build`, and those of the target. `readme` is
/// README's first command, and `default` has the options of cargo-fuzz.
pub const SETTINGS: [(&str, &[&str], &[&str]); 3] = [
    ("readme", &["--no-trace-compares"], &["-use_counters=0"]),
    ("no-trace", &["--no-trace-compares"], &[]),
    ("default", &[], &[]),
];

/// A way to build and to run a target.
struct Setting<'a> {
    name: String,
    folder: PathBuf,
    target: &'a str,
    build: &'static [&'static str],
    run: &'static [&'static str],
}

const EMPTY_MANIFEST: &str = r#"[package]
name = "fuzz-rate"
version = "0.0.0"
edition = "2024"
[package.metadata]
cargo-fuzz = true
[workspace]
[dependencies]
libfuzzer-sys = "0.4"
[[bin]]
name = "empty"
path = "empty.rs"
"#;
const EMPTY_TARGET: &str = "#![no_main]\nlibfuzzer_sys::fuzz_target!(|_input: &[u8]| {});\n";

/// Returns the settings of a target; the ratios are those to the last one.
fn settings<'a>(target: &'a str, work: &Path, revision: Option<&str>) -> Vec<Setting<'a>> {
    let setting = |name: &str, folder: PathBuf, target, build, run| Setting {
        name: name.to_owned(),
        folder,
        target,
        build,
        run,
    };
    let mut all = vec![setting("empty target", work.join("empty"), "empty", &[], &[])];
    let ours = root().join("fuzz");
    all.extend(SETTINGS.map(|(name, build, run)| setting(name, ours.clone(), target, build, run)));
    let other = |revision| {
        setting(&format!("default at {revision}"), work.join("tree/fuzz"), target, &[], &[])
    };
    all.extend(revision.map(other));
    all
}

/// Builds a setting, and returns the program. Cargo builds everything anew whenever RUSTFLAGS change, so each way to
/// build has a folder.
fn build(setting: &Setting, work: &Path, sanitizer: &str) -> Result<PathBuf> {
    let is_ours = setting.folder == root().join("fuzz");
    let of = if is_ours {
        "this"
    } else if setting.target == "empty" {
        "empty"
    } else {
        "other"
    };
    let builds = work.join(format!("{of}-{sanitizer}{}", setting.build.concat()));
    let mut cargo = command("cargo");
    cargo.args(["+nightly", "fuzz", "build", "-s", sanitizer, "--fuzz-dir"]).arg(&setting.folder);
    quiet(cargo.arg("--target-dir").arg(&builds).args(setting.build).arg(setting.target))?;
    Ok(builds.join("x86_64-unknown-linux-gnu/release").join(setting.target))
}

/// Runs a target for its CPU time. Returns the runs a CPU second, the edges and the inputs.
fn rate(program: &Path, setting: &Setting, work: &Path, seed: u64, limit: f64) -> Result<[f64; 3]> {
    let run = work.join("run");
    if run.exists() {
        fs::remove_dir_all(&run)?;
    }
    fs::create_dir_all(run.join("finds"))?;
    let mut fuzz = command(program);
    fuzz.arg(run.join("finds"));
    if setting.target != "empty" {
        fuzz.arg(root().join("corpus").join(setting.target));
    }
    fuzz.args([&format!("-seed={seed}"), "-max_len=512", "-print_final_stats=1"]).args(setting.run);
    let spent = run_limited(&fuzz, &run, limit)?;
    if !spent.is_limited {
        bail!("{}, {}: ended before its time: {}", setting.target, setting.name, spent.log);
    }
    let last = |pattern: &str| -> Result<f64> {
        let found =
            Regex::new(pattern)?.captures_iter(&spent.log).last().map(|it| it[1].to_owned());
        Ok(found
            .with_context(|| format!("libFuzzer prints no '{pattern}': {}", spent.log))?
            .parse()?)
    };
    let runs = last(r"stat::number_of_executed_units: (\d+)")?;
    // The line of statistics is missing in the first moments. The empty target has no edge.
    let of_empty = |it: Result<f64>| if setting.target == "empty" { Ok(0.0) } else { it };
    let (edges, inputs) = (of_empty(last(r"cov: (\d+)"))?, of_empty(last(r"corp: (\d+)"))?);
    Ok([runs / spent.cpu_seconds, edges, inputs])
}

/// Measures each target with each sanitizer and setting, and prints the medians of the rounds.
pub fn measure(options: &Options) -> Result<()> {
    let work = target_folder("").join("fuzz-rate");
    fs::create_dir_all(work.join("empty"))?;
    fs::write(work.join("empty/Cargo.toml"), EMPTY_MANIFEST)?;
    fs::write(work.join("empty/empty.rs"), EMPTY_TARGET)?;
    if let Some(revision) = &options.against {
        unpack(revision, &work.join("tree"))?;
    }
    let titles = [
        "sanitizer",
        "target",
        "setting",
        "runs a CPU second",
        "× the last row",
        "edges",
        "inputs",
    ];
    let mut text = head(&titles);
    for sanitizer in &options.sanitizer {
        for target in &options.target {
            let settings = settings(target, &work, options.against.as_deref());
            let programs = settings.iter().map(|it| build(it, &work, sanitizer));
            let programs: Vec<_> = programs.collect::<Result<_>>()?;
            let mut measured = vec![[const { Vec::new() }; 3]; settings.len()];
            for seed in 1..=options.rounds.max(1) {
                for ((setting, program), columns) in
                    settings.iter().zip(&programs).zip(&mut measured)
                {
                    let figures = rate(program, setting, &work, seed, options.cpu_seconds)?;
                    columns
                        .iter_mut()
                        .zip(figures)
                        .for_each(|(column, figure)| column.push(figure));
                }
            }
            let last = measured.last().map_or(f64::NAN, |it| median(&it[0]));
            for (setting, columns) in settings.iter().zip(&measured) {
                let [rate, edges, inputs] = [0, 1, 2].map(|at| median(&columns[at]));
                let ratio = format!("{:.2} ×", rate / last);
                let figures = [rate, edges, inputs].map(|it| format!("{it:.0}"));
                let [rate, edges, inputs] = figures.each_ref().map(String::as_str);
                text += &row(&[sanitizer, target, &setting.name, rate, &ratio, edges, inputs]);
            }
        }
    }
    publish(options.results.as_deref(), "libFuzzer from the committed corpus", &text)
}
