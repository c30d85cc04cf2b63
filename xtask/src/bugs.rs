//! Measures how soon the loops find planted bugs from an empty corpus. Each patch of `bugs/` is planted in a copy of
//! the tree; the small writer of the tests plants its faults itself. A loop must find each bug in time, as one of the
//! fingerprints that the patch expects.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use regex::Regex;
use serde_json::Value;
use wait4::Wait4;

use crate::measured::{head, median, publish, row, verdict};
use crate::process::{attached, captured, command, quiet, read, root, run, target_folder, text_of};
use crate::tree::Tree;

/// Which bugs, and how often and how long to search for each.
#[derive(Args)]
pub struct Options {
    /// The bugs: "easy" are those of bugs/, "hard" those of bugs/hard/, which need half a minute and more to be found;
    /// the campaign that compares answers with QEMU's finds "differential", and the target `writes` "writer", the
    /// faults of tests/small_writer/
    #[arg(value_parser = ["easy", "hard", "differential", "writer"])]
    kind: String,
    /// A bug: the name of its patch without `.patch`, or a fault of the writer [default: all]
    names: Vec<String>,
    /// Only check that the smallest input of each bug, beside its patch, shows the bug
    #[arg(long)]
    smallest: bool,
    /// Measure with the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    /// A loop for the easy and the hard bugs: embedded or libfuzzer [default: both]
    #[arg(long = "loop", value_name = "LOOP", value_parser = LOOPS)]
    only: Option<String>,
    /// End a search after this number of seconds
    #[arg(long, default_value_t = 120)]
    seconds: u64,
}

const LOOPS: [&str; 2] = ["embedded", "libfuzzer"];
/// Easy bugs in walkers of qcow2, VMDK, VHD and VHDX that images of QEMU show.
const SHARED: [&str; 7] = [
    "merge_across_layers",
    "merge_across_tables",
    "subcluster_halves_swapped",
    "unaligned_start",
    "vhdx_zero_block_stored",
    "vmdk_zero_grain_stored",
    "vpc_unallocated_is_absent",
];

/// A bug, as the header of its patch describes it, or a fault of the writer.
struct Bug {
    /// The path of the patch below `bugs/` without `.patch`, or the name of the fault.
    name: String,
    /// The beginnings of the fingerprints that are right.
    expected: Regex,
    target: String,
    loops: Vec<&'static str>,
}

impl Bug {
    fn read(name: &str, is_differential: bool) -> Result<Self> {
        let text = read(&format!("bugs/{name}.patch"))?;
        let header = || text.lines().take_while(|line| !line.is_empty());
        let field =
            |name: &str| header().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let found = field("Found as").with_context(|| format!("{name}: expected 'Found as: …'"))?;
        // The header of a shared bug names fingerprints of oracles, and the campaign has others.
        let expected = if is_differential && SHARED.contains(&name) { "" } else { found };
        let target = field("Target").unwrap_or("map_extents");
        // The embedded loop mutates programs only.
        let both = target != "raw_image" && field("Loops").is_none();
        let loops = match is_differential {
            true => vec!["differential"],
            false => LOOPS.into_iter().filter(|it| both || *it == "libfuzzer").collect(),
        };
        let expected = Regex::new(&format!("(?:{expected}).*"))?;
        Ok(Self { name: name.to_owned(), expected, target: target.to_owned(), loops })
    }

    /// Returns the path of a file beside the patch.
    fn beside(&self, extension: &str) -> PathBuf {
        root().join("bugs").join(&self.name).with_extension(extension)
    }
}

/// Returns the bugs of a kind.
fn bugs_of(kind: &str) -> Result<Vec<Bug>> {
    if kind == "writer" {
        let source = read("tests/small_writer/src/fault.rs")?;
        let fault = |line: regex::Captures| {
            let (name, expected) = (line[1].to_owned(), Regex::new("(?s).*")?);
            Ok(Bug { name, expected, target: "writes".to_owned(), loops: vec!["writer"] })
        };
        let line = Regex::new(r#"(?m)^    [A-Z]\w+ "(\w+)",$"#)?;
        return line.captures_iter(&source).map(fault).collect();
    }
    let folder = if kind == "easy" { "" } else { kind };
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("bugs").join(folder))? {
        let name = Path::new(folder).join(entry?.file_name());
        names.extend(name.to_string_lossy().strip_suffix(".patch").map(str::to_owned));
    }
    let is_differential = kind == "differential";
    names.extend(SHARED.iter().filter(|_| is_differential).map(|it| (*it).to_owned()));
    names.sort();
    names.iter().map(|name| Bug::read(name, is_differential)).collect()
}

/// Builds a program in the copy with little optimization of the linker, which takes half of the time.
fn build(tree: &Tree, words: &str) -> Result<PathBuf> {
    let mut cargo = tree.command("cargo");
    cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    quiet(cargo.args(words.split(' ')))?;
    let name = words.rsplit(' ').next().unwrap_or_default();
    let folder =
        if words.contains(" fuzz ") { "x86_64-unknown-linux-gnu/release" } else { "release" };
    Ok(tree.target.join(folder).join(name))
}

/// Returns the command that searches for a bug from an empty corpus.
fn search(
    tree: &Tree,
    bug: &Bug,
    by: &str,
    seed: u64,
    seconds: u64,
    dir: &Path,
) -> Result<Command> {
    let text = match by {
        "libfuzzer" => {
            let line = format!("+nightly fuzz build -s none {}", bug.target);
            let mut fuzz = attached(build(tree, &line)?);
            let line = format!("-seed={seed} -max_len=512 -max_total_time={seconds}");
            fuzz.arg(dir).args(line.split(' '));
            fuzz.arg(format!("-artifact_prefix={}/found-", dir.display()));
            return Ok(fuzz);
        }
        "differential" => {
            // No image of QEMU has an unknown feature, and images of programs may have any.
            let mut campaign = attached(build(tree, "build --release --locked --bin qcowfuzz")?);
            let line =
                format!("differential --seed {seed} --jobs 1 --fail-fast --iterations 300 --lacks");
            campaign.args(line.split(' ')).args(["unknown feature bits", "--workdir"]).arg(dir);
            campaign.arg("--json");
            return Ok(campaign);
        }
        _ => format!("fuzz --until-found --jobs 1 --rng-seed {seed} --seconds {seconds} --dir"),
    };
    let program = match by {
        "writer" => target_folder("").join("release/examples/small_writer"),
        _ => build(tree, "build --release --locked --bin qcowfuzz")?,
    };
    let mut fuzz = attached(program);
    fuzz.args(text.split(' ')).arg(dir).args(["--json", "--target", &bug.target]);
    fuzz.env("QCOWFUZZ_WRITER_FAULT", &bug.name).env("RUST_BACKTRACE", "0");
    Ok(fuzz)
}

/// Runs a search. Returns its CPU seconds, and the fingerprint if it has found the bug.
fn found(mut search: Command, bug: &Bug, folder: &Path) -> Result<(f64, Option<String>)> {
    let paths = [folder.join("output"), folder.join("log")];
    search.stdout(File::create(&paths[0])?).stderr(File::create(&paths[1])?);
    let spent = search.spawn()?.wait4()?;
    let seconds = (spent.rusage.utime + spent.rusage.stime).as_secs_f64();
    let [output, log] = paths.map(|it| fs::read(it).unwrap_or_default());
    let (words, log) = (text_of(&search), String::from_utf8_lossy(&log).into_owned());
    if !words.contains(" --json") {
        // libFuzzer.
        let found = bug.expected.find(&log).map(|it| it.as_str().to_owned());
        ensure!(found.is_some() != spent.status.success(), "{words}: {}: {log}", spent.status);
        return Ok((seconds, found));
    }
    ensure!(matches!(spent.status.code(), Some(0 | 1)), "{words}: {}: {log}", spent.status);
    let summary: Value = serde_json::from_slice(&output).with_context(|| words)?;
    // The loop has two lists, and the differential campaign has an object.
    let list = |name: &str| summary[name].as_array().cloned().unwrap_or_default();
    let known = list("known").into_iter().filter(|it| it["times"].as_u64() > Some(0));
    let bugs = list("found").into_iter().chain(known);
    let names = bugs.filter_map(|it| it["fingerprint"].as_str().map(str::to_owned));
    let names: Vec<_> = names
        .chain(summary["found"].as_object().into_iter().flat_map(|it| it.keys().cloned()))
        .collect();
    let found = names.iter().find(|it| bug.expected.find(it).is_some_and(|it| it.start() == 0));
    if found.is_none() && !names.is_empty() {
        bail!("{}: the loop found {names:?}, expected {}", bug.name, bug.expected);
    }
    Ok((seconds, found.cloned()))
}

/// Replays the smallest input of each bug, which must show the bug.
fn check_smallest(tree: &Tree, bugs: &[Bug]) -> Result<()> {
    let mut missed = Vec::new();
    for bug in bugs {
        tree.plant(&[&bug.name])?;
        let qcowfuzz = build(tree, "build --release --locked --bin qcowfuzz")?;
        let mut input = bug.beside("bin");
        if bug.target != "raw_image" {
            input = tree.target.join("release/smallest");
            run(command(&qcowfuzz)
                .args(["asm", "--force", "-o"])
                .args([&input, &bug.beside("txt")]))?;
        }
        let mut replay = command(&qcowfuzz);
        replay.args(["replay", "--brief", "--target", &bug.target]).arg(&input);
        let (_, shown) = captured(&mut replay)?;
        let prefix = format!("{}: ", input.display());
        println!("{}: {}", bug.name, shown.trim().trim_start_matches(&prefix));
        if !bug.expected.is_match(&shown) {
            missed.push(bug.name.clone());
        }
    }
    verdict("not shown by the smallest input", &missed)
}

/// Searches for each bug with each loop and seed, and prints the table. Fails if fewer than half of the seeds find a
/// bug, or if the differential campaign gives two bugs one name.
pub fn measure(options: &Options) -> Result<()> {
    let mut bugs = bugs_of(&options.kind)?;
    let is_it = |bug: &Bug, name: &String| bug.name.rsplit('/').next() == Some(name);
    for name in &options.names {
        ensure!(bugs.iter().any(|bug| is_it(bug, name)), "no bug '{name}' is {}", options.kind);
    }
    bugs.retain(|bug| {
        options.names.is_empty() || options.names.iter().any(|name| is_it(bug, name))
    });
    let tree = Tree::new("bugs")?;
    if options.smallest {
        return check_smallest(&tree, &bugs);
    }
    if options.kind == "writer" {
        let line = "build --locked --release --example small_writer";
        quiet(command("cargo").args(line.split(' ')))?;
    }
    let mut table = head(&["bug", "loop", "CPU s, median", "highest", "seeds", "found as"]);
    let (mut missed, mut names) = (Vec::new(), BTreeSet::new());
    for bug in &bugs {
        for by in bug.loops.iter().filter(|it| options.only.as_ref().is_none_or(|only| only == *it))
        {
            if *by != "writer" {
                tree.plant(&[&bug.name])?;
            }
            let (mut times, mut found_as) = (Vec::new(), BTreeSet::new());
            for seed in 1..=options.seeds {
                let (dir, work) = (tempfile::tempdir()?, tempfile::tempdir()?);
                let search = search(&tree, bug, by, seed, options.seconds, dir.path())?;
                let (seconds, found) = found(search, bug, work.path())?;
                times.push(if found.is_some() { seconds } else { f64::INFINITY });
                found_as.extend(found);
            }
            let highest = times.iter().copied().fold(0.0, f64::max);
            let [middle, highest] = [median(&times), highest].map(|it| format!("{it:.1}"));
            let count = times.iter().filter(|it| it.is_finite()).count();
            // A fingerprint that another bug has, too, distinguishes neither of them.
            let is_told = *by != "differential" || found_as.is_disjoint(&names);
            if median(&times).is_infinite() || !is_told {
                missed.push(format!("{}, {by}", bug.name));
            }
            names.extend(found_as.iter().cloned());
            let found_as = found_as.iter().map(|it| format!("`{it}`")).collect::<Vec<_>>();
            let line = row(&[
                &format!("`{}`", bug.name),
                *by,
                &middle,
                &highest,
                &format!("{count} of {}", times.len()),
                &found_as.join("<br>"),
            ]);
            eprint!("{line}");
            table += &line;
        }
    }
    publish("Planted bugs", &table);
    verdict("not found in time, or not told from others", &missed)
}
