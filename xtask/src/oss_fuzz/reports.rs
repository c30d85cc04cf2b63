//! The reports for people: of a crash, and of coverage.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::runner::{Sandbox, names_in};
use crate::process::{command, end, quiet};

/// The target whose reports are checked.
pub const TARGET: &str = "map_extents";
/// The canary's fingerprints.
const FINGERPRINTS: [&str; 2] =
    ["model: kind, zero-allocated → zero-plain", "snapshots: kind, zero-allocated → zero-plain"];
/// The files that walk, look up and read. Files that only decode have lines that the seeds of one target miss.
const WALKER: [&str; 4] = ["layer/inflate", "layer/kept", "layer/mod", "layer/walk"];

/// A planted bug is found in the seeds, and by libFuzzer from an empty corpus. Each input reproduces it, the
/// fingerprint first, with a symbolised stack.
pub fn check_crash(out: &Path, llvm: &Path) -> Result<()> {
    let sandbox = Sandbox::new(out, llvm)?;
    sandbox.unpack_seeds(TARGET)?;
    check_found(&sandbox, &["-runs=0", "/tmp/seeds"])?;
    let sandbox = Sandbox::new(out, llvm)?;
    sandbox.folder("empty")?;
    let search = ["-use_counters=0", "-seed=1", "-max_len=512", "-runs=200000", "/tmp/empty"];
    check_found(&sandbox, &search)
}

/// libFuzzer finds the planted bug with these arguments. Its input reproduces it.
fn check_found(sandbox: &Sandbox, arguments: &[&str]) -> Result<()> {
    let (code, output) = sandbox.fuzz(TARGET, "/out", arguments)?;
    let mut crashes = names_in(sandbox.tmp.path())?;
    crashes.retain(|name| name.starts_with("crash-"));
    let found = crashes.len();
    let crash = crashes.first().filter(|_| code != 0).with_context(|| {
        format!("{}\nexit code {code} and {found} crashes, expected the planted bug", end(&output))
    })?;
    let (code, output) = sandbox.fuzz(TARGET, "/out", &[&format!("/tmp/{crash}")])?;
    let first = output.lines().find(|line| !is_before_report(line)).unwrap_or_default();
    let is_it = code != 0 && FINGERPRINTS.contains(&first);
    ensure!(is_it, "{}\nthe report of a crash begins with '{first}'", end(&output));
    let is_symbolised = output.lines().any(is_own_frame);
    ensure!(is_symbolised, "{}\nthe stack names no function of qcowfuzz", end(&output));
    Ok(())
}

/// Reports whether libFuzzer prints a line before a run, or Rust to say where it panicked.
fn is_before_report(line: &str) -> bool {
    line.is_empty()
        || line.starts_with("INFO: ")
        || line.starts_with("Running: ")
        || (line.contains(": Running ") && line.contains(" inputs "))
        || (line.starts_with("thread '") && line.contains(" panicked at "))
}

/// Reports whether a line is a stack frame of the library or the walker with its place, as llvm-symbolizer prints it.
fn is_own_frame(line: &str) -> bool {
    let (Some((head, place)), true) = (line.rsplit_once(' '), line.trim_start().starts_with('#'))
    else {
        return false;
    };
    let is_ours = ["qcowfuzz::", "qcowfuzz_walker::"].iter().any(|of| head.contains(of));
    let number = place.split_once(".rs:").map(|(file, number)| (file.contains("/src/"), number));
    is_ours
        && number.is_some_and(|(in_src, number)| {
            in_src && number.starts_with(|it: char| it.is_ascii_digit())
        })
}

/// The seeds cover every file of the walker that walks, and the report is about this crate alone.
pub fn check_coverage(out: &Path, llvm: &Path, tree: &Path) -> Result<()> {
    let sandbox = Sandbox::new(out, llvm)?;
    sandbox.unpack_seeds(TARGET)?;
    sandbox.folder("empty")?;
    // The runner merges too: a crash does not end a merge.
    let (code, output) = sandbox.fuzz(TARGET, "/out", &["-merge=1", "/tmp/empty", "/tmp/seeds"])?;
    let mut profiles = names_in(sandbox.tmp.path())?;
    profiles.retain(|name| name.ends_with(".profraw"));
    let is_merged = code == 0 && !profiles.is_empty();
    ensure!(is_merged, "{}\nexit code {code}, {} profiles", end(&output), profiles.len());
    let (tmp, data) = (sandbox.tmp.path(), sandbox.tmp.path().join("profile"));
    let mut merge = command(llvm.join("bin/llvm-profdata"));
    merge.args(["merge", "-sparse"]).args(profiles.iter().map(|name| tmp.join(name)));
    quiet(merge.arg("-o").arg(&data))?;
    let mut export = command(llvm.join("bin/llvm-cov"));
    export.args(["export", "-summary-only", &format!("-instr-profile={}", data.display())]);
    let project = fs::read_to_string(tree.join("oss-fuzz/project.yaml"))?;
    let extra = project.lines().find_map(|line| line.strip_prefix("coverage_extra_args: "));
    let extra = extra.context("no line coverage_extra_args in project.yaml")?;
    let summary = quiet(export.arg(out.join(TARGET)).args(extra.split(' ')))?;
    judge_coverage(&serde_json::from_str(&summary)?, tree)
}

/// Judges the summary of `llvm-cov export`.
fn judge_coverage(summary: &Value, tree: &Path) -> Result<()> {
    let files = summary["data"][0]["files"].as_array().context("no files in the report")?;
    let mut covered = BTreeMap::new();
    for file in files {
        let name = Path::new(file["filename"].as_str().unwrap_or_default());
        let own = name.strip_prefix(tree);
        let own = own.with_context(|| format!("{}: a file of another crate", name.display()))?;
        covered.insert(own.to_owned(), file["summary"]["lines"]["covered"].as_u64());
    }
    for name in WALKER {
        let path = Path::new("crates/walker/src/formats/qcow2").join(name).with_extension("rs");
        ensure!(tree.join(&path).is_file(), "no source of the walker: {}", path.display());
        let lines = covered.get(&path).copied().flatten();
        ensure!(lines > Some(0), "the report has no covered lines of {}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::root;

    #[test]
    fn a_frame_names_our_function_and_its_line() {
        assert!(is_own_frame(
            "    #9 0x5 in qcowfuzz::fuzzing::libfuzzer::report::h1 /src/qcowfuzz/src/lib.rs:17:5"
        ));
        assert!(is_own_frame(
            "    #9 0x5 in <T as qcowfuzz_walker::Walk>::walk /src/qcowfuzz/src/walk.rs:7"
        ));
        assert!(!is_own_frame("    #9 0x5 in qcowfuzz::report (/out/map_extents+0x5)"));
        assert!(!is_own_frame(
            "    #9 0x5 in std::panicking::panic /rustc/library/src/panicking.rs:17:5"
        ));
    }

    #[test]
    fn the_report_covers_the_walker_and_nothing_else() {
        let path = |name: &str| root().join(format!("crates/walker/src/formats/qcow2/{name}.rs"));
        let file = |name: &str, lines: u64| {
            serde_json::json!({
                "filename": path(name), "summary": {"lines": {"covered": lines}},
            })
        };
        let judge = |files: &[Value]| {
            judge_coverage(&serde_json::json!({"data": [{"files": files}]}), root())
        };
        let mut files = WALKER.map(|name| file(name, 1)).to_vec();
        judge(&files).unwrap();
        files[2] = file(WALKER[2], 0);
        assert!(judge(&files).is_err() && judge(&files[3..]).is_err());
        files[2] = serde_json::json!({"filename": "/rustc/library/src/vec.rs"});
        assert!(judge(&files).unwrap_err().to_string().contains("/rustc/"));
    }
}
