//! Measures which mutants of the functions that encode images a bounded run of the targets finds: in the committed
//! seeds, or in more runs of the embedded loop with a fixed rng seed. `xtask/mutants.explained` explains the survivors.
//! `raw_image` runs nothing of the build. A fuzzer reports a mutant that does not end as a time-out.

pub mod build;
pub mod list;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use anyhow::{Result, bail, ensure};
use clap::Args;

use crate::coverage::copy_seeds;
use crate::coverage::explained::{Explanation, parse};
use crate::measured::{head, publish, row, verdict};
use crate::mutants::build::{Mutants, SELECT, all_at_once, single};
use crate::mutants::list::{Mutant, QCOW2, listed};
use crate::process::{attached, root};
use crate::tree::Tree;

/// Which mutants, and how much to run.
#[derive(Args)]
pub struct Options {
    /// A part of the names of mutants; without one, all
    patterns: Vec<String>,
    /// The runs of a target after its seeds
    #[arg(long, default_value_t = 2000)]
    runs: u64,
    /// Only print the names of the mutants
    #[arg(long)]
    list: bool,
    /// Prove that the measurement can fail: each result comes out for a mutant that has it
    #[arg(long)]
    self_test: bool,
}

const TARGETS: [&str; 3] = ["map_extents", "refcounts", "hostile"];
const KINDS: [&str; 3] = ["equivalent", "choice", "tests"];
const RESULTS: [&str; 4] = ["found", "not found", "does not end", "does not build"];
const NOT_FOUND: &str = RESULTS[1];
/// A bounded run without a mutant takes a few CPU seconds.
const LIMIT_CPU_SECONDS: &str = "--cpu=60";

/// The result of a mutant: one of [`RESULTS`], the target, and the fingerprint.
type Judged = [String; 3];

fn judgement(result: &str, target: &str, found: &str) -> Judged {
    [result, target, found].map(str::to_owned)
}

/// Runs the targets with a mutant, until one finds it.
fn judge(bounded: &Path, number: usize, seeds: &Path, runs: u64) -> Result<Judged> {
    for target in TARGETS {
        let mut run = attached("prlimit");
        run.args([LIMIT_CPU_SECONDS]).arg(bounded).arg(target).arg(seeds.join(target));
        let done = run.arg(runs.to_string()).env(SELECT, number.to_string()).output()?;
        let shown = String::from_utf8_lossy(&done.stdout);
        let first = shown.lines().next().unwrap_or_default();
        match (done.status.code(), done.status.signal()) {
            (Some(0), _) => {}
            (Some(1), _) if !first.is_empty() => return Ok(judgement("found", target, first)),
            // SIGXCPU, and SIGKILL after it.
            (_, Some(24 | 9)) => return Ok(judgement("does not end", target, "")),
            (_, Some(signal)) => {
                return Ok(judgement("found", target, &format!("process: signal {signal}")));
            }
            _ => bail!("{target}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr)),
        }
    }
    Ok(judgement(NOT_FOUND, "", ""))
}

/// Measures the mutants, and returns the results of all, by name.
fn measured(tree: &Tree, mutants: &Mutants, runs: u64) -> Result<BTreeMap<String, Judged>> {
    let seeds = tempfile::tempdir()?;
    TARGETS.iter().try_for_each(|target| copy_seeds(target, &seeds.path().join(target)))?;
    let (bounded, alone) = all_at_once(tree, mutants)?;
    let sound = judge(&bounded, 0, seeds.path(), runs)?;
    ensure!(sound[0] == NOT_FOUND, "a run without a mutant: {sound:?}, expected nothing");
    let mut judged = BTreeMap::new();
    // A single mutant replaces the program with all others.
    let together = mutants.iter().filter(|it| !alone.contains(it.0));
    for (number, mutant) in together.chain(mutants.iter().filter(|it| alone.contains(it.0))) {
        let command = match alone.contains(number) {
            true => single(tree, mutant)?,
            false => Some(bounded.clone()),
        };
        let values = match command {
            Some(command) => judge(&command, *number, seeds.path(), runs)?,
            None => judgement("does not build", "", ""),
        };
        eprintln!("{}\t{}", mutant.name, values.join("\t"));
        judged.insert(mutant.name.clone(), values);
    }
    Ok(judged)
}

/// Returns the table, and what is wrong: survivors without an explanation, and explanations of none.
fn report(
    judged: &BTreeMap<String, Judged>,
    explained: &[Explanation],
    has_all: bool,
) -> (String, Vec<String>) {
    let mut counts = BTreeMap::<[&str; 3], usize>::new();
    for [result, target, found] in judged.values() {
        let oracle = found.split(':').next().unwrap_or_default();
        *counts.entry([result, target, oracle]).or_default() += 1;
    }
    let mut text = head(&["result", "target", "oracle", "mutants"]);
    for ([result, target, oracle], count) in counts {
        text += &row(&[result, target, oracle, &count.to_string()]);
    }
    let (mut wrong, mut names) = (Vec::new(), BTreeSet::new());
    for name in explained.iter().flat_map(|it| &it.names) {
        names.insert(name);
        match judged.get(name) {
            Some([result, ..]) if result != NOT_FOUND => {
                wrong.push(format!("{name}: explained, but {result}"))
            }
            None if has_all => {
                wrong.push(format!("{name}: explained, but there is no such mutant"))
            }
            _ => {}
        }
    }
    let left = judged.iter().filter(|it| it.1[0] == NOT_FOUND && !names.contains(it.0));
    wrong.extend(left.map(|it| format!("{}: not found, and not explained", it.0)));
    (text, wrong)
}

/// Proves that each result can come out.
fn self_test(tree: &Tree) -> Result<()> {
    let file = format!("{QCOW2}encoding/entries.rs");
    let text = fs::read_to_string(root().join(&file))?;
    let find = |what: &str, from: usize| text[from..].find(what).map_or(from, |it| from + it);
    let start = find("pub fn l1_entry", 0);
    let (end, body) = (find("\n}\n", start) + 2, find("table.get()", start));
    ensure!(start < body && body < end, "{file}: expected a function l1_entry with table.get()");
    let expected = [
        ("table.get() + 512", RESULTS[0]),
        ("table.get() + 0", RESULTS[1]),
        ("({ loop {} } as u64)", RESULTS[2]),
        ("there_is_no_such_function()", RESULTS[3]),
    ];
    let mutant = |replacement: &str| Mutant {
        name: replacement.to_owned(),
        file: file.clone(),
        function: Some(start..end),
        piece: body..body + "table.get()".len(),
        replacement: replacement.to_owned(),
    };
    let mutants = expected.iter().zip(1..).map(|(it, number)| (number, mutant(it.0))).collect();
    let judged = measured(tree, &mutants, 200)?;
    for (name, result) in expected {
        let actual = &judged[name];
        anyhow::ensure!(
            actual[0] == result,
            "self-test: {name}: expected '{result}', found {actual:?}"
        );
    }
    println!("mutants: each result came out as planted");
    Ok(())
}

/// Measures the mutants, and prints the tables. Fails if a survivor has no explanation, or if an explanation is wrong.
pub fn measure(options: &Options) -> Result<()> {
    let tree = Tree::new("mutants")?;
    if options.self_test {
        return self_test(&tree);
    }
    let is_chosen = |it: &Mutant| {
        options.patterns.is_empty() || options.patterns.iter().any(|text| it.name.contains(text))
    };
    let mutants: Mutants = (1..).zip(listed()?).filter(|it| is_chosen(&it.1)).collect();
    ensure!(!mutants.is_empty(), "no mutant's name contains {}", options.patterns.join(" or "));
    if options.list {
        mutants.values().for_each(|it| println!("{}", it.name));
        return Ok(());
    }
    let judged = measured(&tree, &mutants, options.runs)?;
    let explained = parse(&fs::read_to_string(root().join("xtask/mutants.explained"))?, &KINDS)?;
    let (text, wrong) = report(&judged, &explained, options.patterns.is_empty());
    publish("Mutants of the encoding functions", &text);
    verdict("mutants", &wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_and_explanations_must_agree() {
        let judged = BTreeMap::from([
            ("a.rs: one".to_owned(), judgement("found", "hostile", "model: extents")),
            ("a.rs: two".to_owned(), judgement(NOT_FOUND, "", "")),
        ]);
        let wrong = |names: &str, has_all| {
            let explained = parse(&format!("equivalent: w\n{names}"), &KINDS).unwrap();
            report(&judged, &explained, has_all).1
        };
        assert_eq!(wrong("    a.rs: two", true), [""; 0]);
        assert_eq!(wrong("", true), ["a.rs: two: not found, and not explained"]);
        assert_eq!(
            wrong("    a.rs: two\n    a.rs: one", true),
            ["a.rs: one: explained, but found"]
        );
        let other = "    a.rs: two\n    a.rs: three";
        assert_eq!(wrong(other, true), ["a.rs: three: explained, but there is no such mutant"]);
        assert_eq!(wrong(other, false), [""; 0]);
    }
}
