//! Measures how soon the target `writes` finds each fault that can be planted in the small writer.

use std::fs;

use anyhow::{Result, bail};
use clap::Args;
use regex::Regex;

use crate::bugs::hunt::{self, Hunt};
use crate::measured::{Measurements, publish, verdict};
use crate::process::{command, quiet, root, target_folder};
use crate::tree;

/// The highest median that is good enough, in CPU seconds.
const MAX_MEDIAN_SECONDS: f64 = 10.0;

/// Which faults, and how often and how long to search for each.
#[derive(Args)]
pub struct Options {
    /// A fault, by its name in tests/small_writer/src/fault.rs; without a name, all
    names: Vec<String>,
    /// Measure with the seeds 1 to N
    #[arg(long, value_name = "N", default_value_t = 3)]
    seeds: u64,
    /// End a campaign after this number of CPU seconds
    #[arg(long, value_name = "CPU_SECONDS", default_value_t = 60.0)]
    limit: f64,
    /// Judge the image after every operation. Then a fault must be found within the limit only
    #[arg(long)]
    check_each: bool,
    /// Write the table to docs/results/NAME.md
    #[arg(long, value_name = "NAME")]
    results: Option<String>,
}

/// Returns the names of all faults, in the order of the source.
fn faults() -> Result<Vec<String>> {
    let source = fs::read_to_string(root().join("tests/small_writer/src/fault.rs"))?;
    let line = Regex::new(r#"(?m)^    [A-Z]\w+ "(\w+)",$"#)?;
    let names: Vec<_> = line.captures_iter(&source).map(|it| it[1].to_owned()).collect();
    match names.is_empty() {
        true => bail!("found no fault of the small writer"),
        false => Ok(names),
    }
}

/// Measures each fault with each seed, unless the same code was measured before, and prints the table.
pub fn measure(options: &Options) -> Result<()> {
    let all = faults()?;
    if let Some(unknown) = options.names.iter().find(|it| !all.contains(it)) {
        bail!("no fault is called {unknown}, expected one of: {}", all.join(" "));
    }
    quiet(command("cargo").args(["build", "--locked", "--release", "--example", "small_writer"]))?;
    let work = target_folder("").join("writer-faults");
    let checks = if options.check_each { "each" } else { "checkpoints" };
    let names = ["fault", "seed", "limit", "checks", "code"];
    let mut kept = Measurements::open(&work, names, hunt::VALUES)?;
    let code = ["src", "crates", "tests/small_writer", "examples", "Cargo.toml", "Cargo.lock"];
    let code = tree::hash_of(&tree::files(&code)?)?;
    let mut hunts = Vec::new();
    for fault in all.iter().filter(|it| options.names.is_empty() || options.names.contains(it)) {
        let mut measured = Vec::new();
        for seed in 1..=options.seeds {
            let seed = seed.to_string();
            let key = [fault, &seed, &options.limit.to_string(), checks, &code].map(str::to_owned);
            if kept.get(&key).is_none() {
                let mut fuzz = command(target_folder("").join("release/examples/small_writer"));
                fuzz.args(["fuzz", "--target", "writes", "--until-found", "--rng-seed", &seed]);
                fuzz.args(options.check_each.then_some("--check-each"));
                fuzz.env("QCOWFUZZ_WRITER_FAULT", fault);
                let reached = hunt::embedded(&mut fuzz, &work.join("campaign"), options.limit)?;
                let found = reached.found.first().map(String::as_str);
                kept.add(key.clone(), hunt::values(reached.cpu_seconds, reached.runs, found))?;
            }
            measured.extend(kept.get(&key).cloned());
        }
        let enough = if options.check_each { options.limit } else { MAX_MEDIAN_SECONDS };
        hunts.push(Hunt {
            cells: vec![format!("`{fault}`")],
            measured,
            enough,
            in_all_seeds: true,
        });
    }
    let (table, missed) = hunt::table(&["fault"], &hunts, options.limit)?;
    publish(options.results.as_deref(), "Faults of a writer, found by `writes`", &table)?;
    verdict("not found in time by enough seeds", &missed)
}
