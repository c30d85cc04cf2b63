//! Campaigns that compare our answers with QEMU's: several seeds, and bugs of our own that a campaign must find.

pub mod kills;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::bugs::{Bug, patches};
use crate::measured::{head, publish, row, verdict};
use crate::process::{attached, quiet, root, target_folder};
use crate::tree::{Tree, hash_of};

/// Where, how long, and with which seeds.
#[derive(Args)]
pub struct Options {
    /// The folder that has a folder for each seed, with the reports of its divergences and its page
    dir: PathBuf,
    /// The iterations of each seed
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// The seeds, one after the other
    #[arg(required = true)]
    seeds: Vec<u64>,
    /// The profile of the build. Without optimization, the walker has debug assertions and overflow checks
    #[arg(long, default_value = "dev")]
    profile: String,
}

/// Builds the command, and returns its path.
pub fn build(profile: &str) -> Result<PathBuf> {
    let mut cargo = crate::process::command("cargo");
    quiet(cargo.args(["build", "--locked", "--profile", profile, "--bin", "qcowfuzz"]))?;
    Ok(target_folder("").join(profile.replace("dev", "debug")).join("qcowfuzz"))
}

/// Runs a campaign for each seed that the same build has not completed. Fails if one has a divergence.
pub fn run(options: &Options) -> Result<()> {
    let qcowfuzz = build(&options.profile)?;
    fs::create_dir_all(&options.dir)?;
    let dir = fs::canonicalize(&options.dir)?;
    let build = hash_of(&[qcowfuzz.to_string_lossy().into_owned()])?;
    let mut diverging = Vec::new();
    for seed in &options.seeds {
        let folder = dir.join(format!("seed-{seed}"));
        println!("seed {seed}:");
        if let Some(summary) = completed(&folder, &build, options.iterations) {
            println!("complete, {} divergences, see {}", found(&summary)?.len(), folder.display());
            diverging.extend((!found(&summary)?.is_empty()).then_some(seed.to_string()));
            continue;
        }
        let mut campaign = attached(&qcowfuzz);
        campaign.args(["differential", "--seed", &seed.to_string()]);
        campaign.args(["--iterations", &options.iterations.to_string(), "--workdir"]).arg(&dir);
        let status = campaign.arg("--report").arg(&folder).status()?;
        match status.code() {
            Some(0) => {}
            Some(1) => diverging.push(seed.to_string()),
            _ => bail!("seed {seed}: {status}, expected exit code 0 or 1"),
        }
        crate::measured::replace(&folder.join("build"), &build)?;
    }
    verdict("seeds with divergences", &diverging)
}

/// Returns the summary of a campaign that a build has completed.
fn completed(folder: &Path, build: &str, iterations: u64) -> Option<Value> {
    let summary = fs::read_to_string(folder.join("summary.json")).ok()?;
    let summary: Value = serde_json::from_str(&summary).ok()?;
    let is_same = fs::read_to_string(folder.join("build")).is_ok_and(|it| it == build);
    let all = summary["distribution"]["iterations"].as_u64() == Some(iterations);
    (is_same && all && summary["is_complete"] == true).then_some(summary)
}

fn found(summary: &Value) -> Result<&serde_json::Map<String, Value>> {
    summary["found"].as_object().context("a summary without `found`")
}

/// Bugs of `bugs/` in walkers of qcow2, VMDK, VHD and VHDX that images of QEMU show, beside those of
/// `bugs/differential/`.
const SHARED: [&str; 7] = [
    "merge_across_layers",
    "merge_across_tables",
    "subcluster_halves_swapped",
    "unaligned_start",
    "vhdx_zero_block_stored",
    "vmdk_zero_grain_stored",
    "vpc_unallocated_is_absent",
];

/// Which bugs, and how long to search for each.
#[derive(Args)]
pub struct BugOptions {
    /// A bug, by the name of its patch; without a name, all
    names: Vec<String>,
    /// The most iterations of a campaign
    #[arg(long, default_value_t = 300)]
    iterations: u64,
    /// Write the table to docs/results/NAME.md
    #[arg(long, value_name = "NAME")]
    results: Option<String>,
}

/// Plants bugs in our own code, one after the other. A campaign must find each of them, name it otherwise than the
/// other bugs, and minimize it.
pub fn bugs(options: &BugOptions) -> Result<()> {
    let mut all = SHARED.map(|name| root().join(format!("bugs/{name}.patch"))).to_vec();
    all.extend(patches("bugs/differential")?);
    let tree = Tree::new("differential-bugs", &[])?;
    let titles = ["bug", "result", "iteration", "fingerprint", "commands that make the image"];
    let (mut table, mut names, mut missed) = (head(&titles), BTreeSet::new(), Vec::new());
    for bug in Bug::chosen(&all, &options.names)? {
        tree.plant(&bug.patch)?;
        quiet(tree.cargo("build").args(["build", "--locked", "--bin", "qcowfuzz"]))?;
        let (cells, name) = judged(&bug, &campaign(&tree, options.iterations)?)?;
        table += &row(&cells);
        // A fingerprint that another bug has, too, distinguishes neither of them.
        if name.is_none_or(|it| !names.insert(it)) {
            missed.push(bug.name);
        }
    }
    table += &format!("\n{} different fingerprints of the right kind.\n", names.len());
    publish(
        options.results.as_deref(),
        "Bugs of our own that the differential campaign finds",
        &table,
    )?;
    verdict("not found, or not told from others", &missed)
}

/// Returns the summary of a campaign with the planted bug. It runs in one job and ends at the first divergence, so that
/// its result does not depend on the machine.
fn campaign(tree: &Tree, iterations: u64) -> Result<Value> {
    let mut campaign = attached(tree.work.join("build/debug/qcowfuzz"));
    campaign.args(["differential", "--seed", "1", "--jobs", "1", "--fail-fast", "--json"]);
    // No image of QEMU has this feature, and images of programs may have any. The oracles judge those before QEMU does.
    campaign.args(["--lacks", "unknown feature bits", "--iterations", &iterations.to_string()]);
    let done = campaign.arg("--workdir").arg(tree.work.join("campaign")).output()?;
    if !matches!(done.status.code(), Some(0 | 1)) {
        bail!("a campaign: {}: {}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    Ok(serde_json::from_slice(&done.stdout)?)
}

/// Returns the cells of a bug, and the fingerprint if the campaign found the bug as it should. The expected
/// fingerprints of `bugs/` are those of oracles.
fn judged(bug: &Bug, summary: &Value) -> Result<(Vec<String>, Option<String>)> {
    let name = format!("`{}`", bug.name);
    let Some((fingerprint, divergence)) = found(summary)?.iter().next() else {
        let iterations = summary["distribution"]["iterations"].to_string();
        return Ok((
            vec![name, "not found".to_owned(), iterations, String::new(), String::new()],
            None,
        ));
    };
    let is_shared = SHARED.contains(&bug.name.as_str());
    let is_expected = is_shared || bug.expected.find(fingerprint).is_some_and(|it| it.start() == 0);
    let result = if is_expected { "found" } else { "found as another" };
    let commands =
        divergence["commands"].as_array().context("a divergence without commands")?.len();
    // The last two commands ask QEMU and the program under test.
    let making = if commands > 2 { commands - 2 } else { commands };
    let iteration = divergence["iteration"].to_string();
    let cells =
        [name, result.to_owned(), iteration, format!("`{fingerprint}`"), making.to_string()];
    Ok((cells.to_vec(), is_expected.then(|| fingerprint.clone())))
}
