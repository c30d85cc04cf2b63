//! Proves that both loops find bugs, and measures how soon: each patch of `bugs/` is planted in a copy of the tree and
//! must be found from an empty corpus, as one of the fingerprints that the patch expects.

pub mod hunt;
pub mod writer_faults;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;
use regex::Regex;

use crate::measured::{Measurements, publish, run_limited, verdict};
use crate::process::{captured, command, quiet, root, run};
use crate::rates::fuzz_rate::SETTINGS;
use crate::tree::{self, Tree};
use hunt::{Hunt, Values};

/// Which bugs, and how often and how long to search for each.
#[derive(Args)]
pub struct Options {
    /// A bug: the name of its patch without `.patch`. Without a name, all bugs of one folder
    names: Vec<String>,
    /// Take the bugs of bugs/hard/, which need half a minute and more to be found
    #[arg(long)]
    hard: bool,
    /// Only check that the smallest input of each bug, beside its patch, shows the bug
    #[arg(long)]
    smallest: bool,
    /// Measure with the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// A loop; may be repeated
    #[arg(long = "loop", value_name = "LOOP", value_parser = LOOPS, default_values = LOOPS)]
    loops: Vec<String>,
    /// A setting of libFuzzer; may be repeated
    #[arg(long, value_parser = SETTINGS.map(|it| it.0), default_value = "default")]
    setting: Vec<String>,
    /// End a campaign after this number of CPU seconds [default: 120, with --hard 300]
    #[arg(long, value_name = "CPU_SECONDS")]
    limit: Option<f64>,
    /// Write the table to docs/results/NAME.md
    #[arg(long, value_name = "NAME")]
    results: Option<String>,
}

const LOOPS: [&str; 2] = ["embedded", "libfuzzer"];

/// A patch with its header lines.
pub struct Bug {
    /// The name of the patch without `.patch`.
    pub name: String,
    /// The path of the patch.
    pub patch: PathBuf,
    /// The beginnings of the fingerprints that are right.
    pub expected: Regex,
    target: String,
    loops: Vec<&'static str>,
    needs_tracing: bool,
}

impl Bug {
    /// Reads the header of a patch.
    pub fn read(patch: &Path) -> Result<Self> {
        let text = fs::read_to_string(patch)?;
        let header = || text.lines().take_while(|line| !line.is_empty());
        let field =
            |name: &str| header().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let expected = field("Found as")
            .with_context(|| format!("{}: expected a line `Found as: …`", patch.display()))?;
        let target = field("Target").unwrap_or("map_extents");
        // The embedded loop breeds programs only.
        let loops = match field("Loops") {
            None if target != "raw_image" => LOOPS.to_vec(),
            None | Some("libfuzzer") => vec!["libfuzzer"],
            Some(other) => {
                bail!("{}: expected `Loops: libfuzzer`, found '{other}'", patch.display())
            }
        };
        Ok(Self {
            name: patch.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            patch: patch.to_owned(),
            expected: Regex::new(&format!("(?:{expected}).*"))?,
            target: target.to_owned(),
            loops,
            needs_tracing: field("Needs") == Some("compare tracing"),
        })
    }

    /// Returns the bugs with these names among patches, or all.
    pub fn chosen(patches: &[PathBuf], names: &[String]) -> Result<Vec<Self>> {
        let all: Vec<_> = patches.iter().map(|it| Self::read(it)).collect::<Result<_>>()?;
        for name in names {
            if !all.iter().any(|bug| bug.name == *name) {
                let known: Vec<_> = all.iter().map(|bug| bug.name.as_str()).collect();
                bail!("no bug is called {name}, expected one of: {}", known.join(" "));
            }
        }
        Ok(all.into_iter().filter(|it| names.is_empty() || names.contains(&it.name)).collect())
    }

    /// Returns the options of a setting for the build and for the target. `raw_image` keeps compare tracing and hit
    /// counts where README's options have none.
    fn options(&self, setting: &str) -> (&'static [&'static str], &'static [&'static str]) {
        let of_raw = self.target == "raw_image" && setting == "readme";
        let known = SETTINGS.iter().find(|it| it.0 == setting && !of_raw);
        known.map_or((&[], &[]), |it| (it.1, it.2))
    }
}

/// Returns the patches of a folder, sorted.
pub fn patches(folder: &str) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root().join(folder))?.map(|it| Ok(it?.path()));
    let mut all: Vec<_> = entries.collect::<Result<_>>()?;
    all.retain(|path| path.extension().is_some_and(|it| it == "patch"));
    all.sort();
    Ok(all)
}

/// Builds the command in the copy, and returns its path. The build takes half the time of a release build; its program
/// is a little slower.
fn build_command(tree: &Tree) -> Result<PathBuf> {
    quiet(hurried(&mut tree.cargo("build")).args(["build", "--release", "--bin", "qcowfuzz"]))?;
    Ok(tree.work.join("build/release/qcowfuzz"))
}

fn hurried(cargo: &mut Command) -> &mut Command {
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

/// Searches for a bug with the embedded loop.
fn measure_embedded(tree: &Tree, bug: &Bug, seed: &str, limit: f64) -> Result<Values> {
    let mut fuzz = command(build_command(tree)?);
    fuzz.args(["fuzz", "--until-found", "--target", &bug.target, "--rng-seed", seed]);
    let dir = tree.work.join("campaign");
    let reached = hunt::embedded(&mut fuzz, &dir, limit)?;
    let found = reached.found.iter().find(|it| bug.expected.is_match(it));
    if found.is_none() && !reached.is_limited {
        bail!("{}: the loop ended with {:?}, expected the bug", bug.name, reached.found);
    }
    Ok(hunt::values(reached.cpu_seconds, reached.runs, found.map(String::as_str)))
}

/// Searches for a bug with libFuzzer.
fn measure_libfuzzer(
    tree: &Tree,
    bug: &Bug,
    setting: &str,
    seed: &str,
    limit: f64,
) -> Result<Values> {
    let (build, options) = bug.options(setting);
    // A folder for each way to build: cargo builds everything anew whenever RUSTFLAGS change.
    let builds = format!("fuzz{}", build.concat());
    let mut cargo = tree.cargo(&builds);
    let fuzz = ["+nightly", "fuzz", "build", "-s", "none", &bug.target];
    quiet(hurried(&mut cargo).args(fuzz).args(build))?;
    let dir = tree.work.join("campaign");
    let corpus = dir.join("corpus");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&corpus)?;
    let folder = tree.work.join(builds).join("x86_64-unknown-linux-gnu/release");
    let mut fuzz = command(folder.join(&bug.target));
    fuzz.arg(&corpus).args([&format!("-seed={seed}"), "-max_len=512", "-print_final_stats=1"]);
    fuzz.arg(format!("-artifact_prefix={}/", dir.display())).args(options);
    let spent = run_limited(&fuzz, &dir, limit)?;
    let found = bug.expected.find(&spent.log).map(|it| it.as_str());
    if found.is_none() && !spent.is_limited {
        bail!(
            "{}: libFuzzer ended with {:?}, expected the bug: {}",
            bug.name,
            spent.code,
            spent.log
        );
    }
    let runs = Regex::new(r"(?m)^(?:#|stat::number_of_executed_units: *)(\d+)")?;
    let runs =
        runs.captures_iter(&spent.log).last().context("libFuzzer names no number of runs")?;
    Ok(hunt::values(spent.cpu_seconds, runs[1].parse()?, found))
}

/// Replays the smallest input of each bug, which must show the bug.
fn check_smallest(tree: &Tree, bugs: &[Bug]) -> Result<()> {
    let mut missed = Vec::new();
    for bug in bugs {
        tree.plant(&bug.patch)?;
        let qcowfuzz = build_command(tree)?;
        let mut input = bug.patch.with_extension("bin");
        if bug.target != "raw_image" {
            input = tree.work.join("smallest");
            let text = bug.patch.with_extension("txt");
            run(command(&qcowfuzz).args(["asm", "--force", "-o"]).args([&input, &text]))?;
        }
        let mut replay = command(&qcowfuzz);
        let (_, shown) =
            captured(replay.args(["replay", "--brief", "--target", &bug.target]).arg(&input))?;
        let prefix = format!("{}: ", input.display());
        println!("{}: {}", bug.name, shown.trim().trim_start_matches(&prefix));
        if !bug.expected.is_match(&shown) {
            missed.push(bug.name.clone());
        }
    }
    verdict("not shown by the smallest input", &missed)
}

/// Measures each bug with each loop, setting and seed, unless the same code was measured before, and prints the table.
pub fn measure(options: &Options) -> Result<()> {
    let folder = if options.hard { "bugs/hard" } else { "bugs" };
    let bugs = Bug::chosen(&patches(folder)?, &options.names)?;
    let tree = Tree::new("bugs", &[])?;
    if options.smallest {
        return check_smallest(&tree, &bugs);
    }
    let limit = options.limit.unwrap_or(if options.hard { 300.0 } else { 120.0 });
    let names = ["bug", "loop", "setting", "seed", "limit", "code"];
    let mut kept = Measurements::open(&tree.work, names, hunt::VALUES)?;
    let code = tree::files(&["src", "crates", "fuzz", "Cargo.toml", "Cargo.lock"])?;
    let mut hunts = Vec::new();
    for bug in &bugs {
        let patch = bug.patch.strip_prefix(root())?.to_string_lossy().into_owned();
        let code = tree::hash_of(&[&code[..], &[patch]].concat())?;
        for name in LOOPS.iter().filter(|it| bug.loops.contains(it)) {
            if !options.loops.iter().any(|it| it == name) {
                continue;
            }
            // The embedded loop has no settings.
            let is_embedded = *name == "embedded";
            let settings = if is_embedded { &["default".to_owned()][..] } else { &options.setting };
            for setting in settings {
                let mut measured = Vec::new();
                for seed in 1..=options.seeds {
                    let seed = seed.to_string();
                    let limit_text = limit.to_string();
                    let key = [bug.name.as_str(), name, setting, &seed, &limit_text, &code];
                    let key = key.map(str::to_owned);
                    if kept.get(&key).is_none() {
                        tree.plant(&bug.patch)?;
                        let values = match is_embedded {
                            true => measure_embedded(&tree, bug, &seed, limit),
                            false => measure_libfuzzer(&tree, bug, setting, &seed, limit),
                        };
                        kept.add(key.clone(), values?)?;
                    }
                    measured.extend(kept.get(&key).cloned());
                }
                let is_traced = !is_embedded && bug.options(setting).0.is_empty();
                let enough = if bug.needs_tracing && !is_traced { f64::INFINITY } else { limit };
                let cells = vec![format!("`{}`", bug.name), name.to_string(), setting.clone()];
                hunts.push(Hunt { cells, measured, enough, in_all_seeds: false });
            }
        }
    }
    let (table, missed) = hunt::table(&["bug", "loop", "setting"], &hunts, limit)?;
    publish(options.results.as_deref(), "Planted bugs", &table)?;
    verdict("not found in time by enough seeds", &missed)
}
