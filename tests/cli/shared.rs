//! Campaigns that share a folder of inputs: each uses the inputs of the others, and if one is killed, no input is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::internal::base::files;

use crate::processes::{Killed, until};
use crate::support::{qcowfuzz, text};

/// Returns the inputs of the shared folder, by name.
fn inputs(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let named = |path: PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        (name, fs::read(path).unwrap())
    };
    files::list(&dir.join("shared")).unwrap().into_iter().map(named).collect()
}

/// Copies the committed seeds to the shared folder, and returns them.
fn seeded(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    fs::create_dir(dir.join("shared")).unwrap();
    for entry in fs::read_dir(corpus.join("text/map_extents")).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_owned();
        fs::copy(corpus.join("map_extents").join(&name), dir.join("shared").join(&name)).unwrap();
    }
    inputs(dir)
}

/// Starts a campaign with one job.
fn started(dir: &Path, name: &str, more: &[&str]) -> Killed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    command.args(["fuzz", "--jobs", "1", "--corpus", "shared", "--dir", name]);
    command.args(more).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
    Killed(command.spawn().unwrap())
}

/// Returns the inputs in the saved state of a campaign, and whether each was bred there.
fn kept(dir: &Path, name: &str) -> Vec<(Vec<u8>, bool)> {
    let state = fs::read(dir.join(name).join("state/map_extents/job-0.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let entries = state["entries"].as_array().unwrap().iter();
    let input = |entry: &serde_json::Value| hex::decode(entry["input"].as_str().unwrap()).unwrap();
    entries.map(|entry| (input(entry), !entry["parent"].is_null())).collect()
}

#[test]
fn two_campaigns_share_a_folder_and_one_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let seeds = seeded(dir);
    let mut other = started(dir, "other", &["--rng-seed", "2", "--runs", "6500"]);
    let begun = |name: &str| dir.join(name).join("state/map_extents/job-0.json").exists();
    // It begins with the seeds alone.
    until("not begun", || begun("other"));
    let mut killed = started(dir, "killed", &["--rng-seed", "1"]);
    until("not begun", || begun("killed"));
    let before = inputs(dir).len();
    until("no finds", || inputs(dir).len() > before + 100);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    assert_eq!(other.0.try_wait().unwrap(), None, "both ran until one was killed");
    assert!(other.0.wait().unwrap().success());
    let after = inputs(dir);
    // The seeds are unchanged, and every find is whole.
    for (name, bytes) in &seeds {
        assert!(after.get(name) == Some(bytes), "the seed {name}");
    }
    let finds: BTreeMap<_, _> =
        after.iter().filter(|(name, _)| !seeds.contains_key(*name)).collect();
    for (name, bytes) in &finds {
        assert_eq!(**name, corpus::name(bytes), "a find is torn");
    }
    // The folder has all inputs that either campaign has kept.
    let contents: BTreeSet<&Vec<u8>> = after.values().collect();
    for name in ["killed", "other"] {
        let kept = kept(dir, name);
        assert!(kept.len() >= 20, "{name}: {}", kept.len());
        assert!(kept.iter().all(|(input, _)| contents.contains(input)), "{name} has lost an input");
    }
    // The survivor has inputs of the killed campaign: it neither bred them nor began with them.
    let learnt =
        |(input, bred): &(Vec<u8>, bool)| !bred && !seeds.values().any(|seed| seed == input);
    assert!(
        kept(dir, "other").iter().any(learnt),
        "the survivor has no input of the other campaign"
    );
    // A campaign that resumes the killed one loses no input either.
    let again = qcowfuzz(
        dir,
        &["fuzz", "--jobs", "1", "--corpus", "shared", "--dir", "killed", "--runs", "1"],
    );
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert!(inputs(dir).len() >= after.len());
}

/// A campaign that has read half an input reads the whole one later.
#[test]
fn a_file_that_libfuzzer_is_still_writing_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let seeds = seeded(dir);
    seeds.keys().for_each(|name| fs::remove_file(dir.join("shared").join(name)).unwrap());
    // An input of this length is not bred soon.
    let whole = seeds.values().max_by_key(|input| input.len()).unwrap();
    let path = dir.join("shared").join(corpus::name(whole));
    fs::write(&path, &whole[..20]).unwrap();
    let mut campaign = started(dir, "one", &["--runs", "4100"]);
    until("not begun", || dir.join("one/state/map_extents/job-0.json").exists());
    assert!(kept(dir, "one").iter().any(|(input, bred)| *input == whole[..20] && !bred));
    fs::write(&path, whole).unwrap();
    assert!(campaign.0.wait().unwrap().success());
    let looked_at = kept(dir, "one").iter().any(|(input, bred)| input == whole && !bred);
    assert!(looked_at, "the whole input was never looked at");
    assert_eq!(fs::read(&path).unwrap(), *whole);
}
