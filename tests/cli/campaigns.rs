//! Runs each command of `docs/campaigns.md`, in the order of the page, with few runs and in a folder of its own.
//! (`tests/from_crash.rs` runs the commands on a testcase, `cargo xtask shared-corpus` those of libFuzzer.)

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::text;

/// Returns the commands in the indented blocks, except the lines that begin with `$ `.
fn commands(document: &str) -> Vec<&str> {
    let lines = document.lines().filter_map(|line| line.strip_prefix("    "));
    lines.map(str::trim).filter(|line| line.starts_with("qcowfuzz ")).collect()
}

#[test]
fn every_command_works() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for folder in ["bin", "mnt/shared", "artifacts/map_extents", "corpus/map_extents", "days"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_qcowfuzz"), at("bin/qcowfuzz")).unwrap();
    for seed in ["zero_kinds", "chain_raw"] {
        let from = root.join("corpus/map_extents").join(seed);
        fs::copy(from, at("corpus/map_extents").join(seed)).unwrap();
    }
    fs::create_dir(at("days/2026-11-21")).unwrap();
    let path = format!("{}:{}", at("bin").display(), std::env::var("PATH").unwrap());
    let mut verbs = Vec::new();
    for command in commands(include_str!("../../docs/campaigns.md")) {
        let here = command.replace("/mnt/", "mnt/");
        let here = match here.split_once(" --seconds ") {
            Some((before, _)) => format!("{before} --runs 100"),
            None if here.starts_with("qcowfuzz fuzz") => format!("{here} --runs 100"),
            None => here,
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &here]).current_dir(dir.path()).env("PATH", &path);
        let done = shell.env("HOME", at("home")).output().unwrap();
        assert_eq!(done.status.code(), Some(0), "{here}: {}", text(&done.stderr));
        verbs.push(here.split(' ').skip(1).take(2).collect::<Vec<_>>().join(" "));
    }
    for verb in
        ["fuzz --dir", "corpus merge", "corpus show", "corpus diff", "triage artifacts/map_extents"]
    {
        assert!(verbs.iter().any(|it| it == verb), "{verb} is not among {verbs:?}");
    }
    assert!(at("home/campaign/state/map_extents").exists());
    assert!(at("distilled/zero_kinds").exists() && at("days/2026-11-22/chain_raw").exists());
}
