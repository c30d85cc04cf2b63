//! `fuzz`: a campaign is reproducible, resumes where it ended, survives a kill, and shares its folder with others.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::internal::base::files;

use crate::support::{Killed, error_line, processes, qcowfuzz, small_writer, text, until};

#[cfg(target_os = "linux")]
use crate::support::signal;

/// The verb with an option, so that a test can read its summary.
const FUZZ: [&str; 2] = ["fuzz", "--json"];

/// Runs a campaign in `dir`, and returns its summary.
fn campaign(dir: &Path, arguments: &[&str]) -> serde_json::Value {
    summary(&qcowfuzz(dir, &[&FUZZ[..], arguments].concat()))
}

/// Returns the summary that a campaign has printed.
fn summary(ran: &Output) -> serde_json::Value {
    assert_eq!(ran.status.code(), Some(0), "{}{}", text(&ran.stdout), text(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Returns all files under `dir` by their relative paths, except the slots, which hold the last input.
fn everything(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|it| it != "input") {
                all.push((path.strip_prefix(dir).unwrap().to_path_buf(), fs::read(&path).unwrap()));
            }
        }
    }
    all.sort();
    all
}

#[test]
fn the_same_seed_gives_the_same_campaign_even_in_pieces() {
    let dirs: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let run = |at: usize, runs: &str, seed: &str| {
        campaign(dirs[at].path(), &["--jobs", "1", "--runs", runs, "--rng-seed", seed])
    };
    let whole = run(0, "700", "5");
    assert_eq!((&whole["runs"], &whole["jobs"]), (&700.into(), &1.into()));
    run(1, "700", "5");
    run(2, "300", "5");
    run(2, "400", "5");
    run(3, "700", "6");
    let all: Vec<_> = dirs.iter().map(|dir| everything(dir.path())).collect();
    assert!(all[0].len() > 50, "{}", all[0].len());
    assert!(all[0] == all[1], "the same seed gave another campaign");
    assert!(all[0] == all[2], "in pieces it is another campaign");
    assert!(all[0] != all[3], "another seed gave the same campaign");
}

/// Files instead of programs, from the committed seeds.
#[test]
fn a_campaign_of_files_is_the_same_in_pieces() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/raw_image");
    let run = |pieces: &[&str]| {
        let dir = tempfile::tempdir().unwrap();
        let into = dir.path().join("corpus/raw_image");
        fs::create_dir_all(&into).unwrap();
        for name in ["standard", "vpc_bitmaps", "vmdk_esx", "snapshots"] {
            fs::copy(seeds.join(name), into.join(name)).unwrap();
        }
        for runs in pieces {
            campaign(dir.path(), &["--target", "raw_image", "--jobs", "1", "--runs", runs]);
        }
        everything(dir.path())
    };
    let whole = run(&["400"]);
    assert!(whole.len() > 30, "{}", whole.len());
    assert!(whole == run(&["150", "250"]), "in pieces it is another campaign");
}

#[test]
fn every_target_is_fuzzed_and_its_finds_are_inputs() {
    for target in ["map_extents", "hostile", "refcounts", "raw_image", "writes"] {
        let dir = tempfile::tempdir().unwrap();
        let runs = ["--target", target, "--jobs", "2", "--runs", "301"];
        let summary = match target {
            "writes" => summary(&small_writer(dir.path(), &[&FUZZ[..], &runs].concat())),
            _ => campaign(dir.path(), &runs),
        };
        assert_eq!((&summary["target"], &summary["runs"]), (&target.into(), &301.into()));
        assert!(summary["found"].as_array().unwrap().is_empty());
        let inputs = files::list(&dir.path().join("corpus").join(target)).unwrap();
        assert_eq!(summary["inputs"], inputs.len());
        assert!(summary["edges"].as_u64().unwrap() > 20 && inputs.len() > 20, "{summary}");
        for path in inputs {
            let name = corpus::name(&fs::read(&path).unwrap());
            assert_eq!(path.file_name().unwrap().to_str().unwrap(), name);
        }
    }
}

#[test]
fn a_campaign_begins_with_the_seeds_and_does_not_change_them() {
    let dir = tempfile::tempdir().unwrap();
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/map_extents");
    let into = dir.path().join("corpus/map_extents");
    fs::create_dir_all(into.join("folder")).unwrap();
    for name in ["chain_raw", "zero_kinds", "snapshots"] {
        if seeds.join(name).exists() {
            fs::copy(seeds.join(name), into.join(name)).unwrap();
        }
    }
    fs::write(into.join("empty"), "").unwrap();
    let before = everything(&into);
    assert!(before.len() >= 3);
    let summary = campaign(dir.path(), &["--jobs", "1", "--runs", "50"]);
    assert!(summary["rare_events"].as_u64().unwrap() > 3, "{summary}");
    let after = everything(&into);
    assert!(before.iter().all(|file| after.contains(file)));
}

#[test]
fn any_file_in_the_corpus_is_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = dir.path().join("corpus/map_extents");
    fs::create_dir_all(&corpus).unwrap();
    let odd = OsStr::from_bytes(b"n\xFFme");
    fs::write(corpus.join(odd), [0, 1, 0, 0, 0, 12, 9]).unwrap();
    fs::write(corpus.join("long"), vec![7; 3 << 20]).unwrap();
    std::os::unix::fs::symlink("nowhere", corpus.join("dangling")).unwrap();
    let fifo = Command::new("mkfifo").arg(corpus.join("fifo")).status().unwrap();
    assert!(fifo.success());
    let run = || campaign(dir.path(), &["--jobs", "1", "--runs", "60"]);
    assert_eq!(run()["runs"], 60);
    // Kept files are changed or removed. The saved state still has their inputs.
    fs::write(corpus.join(odd), "something else").unwrap();
    for path in files::list(&corpus).unwrap().iter().rev().take(9) {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(run()["found"], serde_json::json!([]));
    let slot = fs::metadata(dir.path().join("state/map_extents/job-0.input")).unwrap();
    assert!(slot.len() < 2 << 20);
}

#[test]
fn odd_numbers_and_names_are_accepted_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let few = ["--runs", "10", "--jobs", "1", "--max-operations", "0"];
    assert_eq!(campaign(dir.path(), &[&few[..], &["--dir=-x"]].concat())["runs"], 10);
    assert!(dir.path().join("-x/state").exists());
    assert_eq!(campaign(dir.path(), &["--runs", "0"])["runs"], 0);
    assert_eq!(campaign(dir.path(), &["--seconds", "0", "--jobs", "3"])["jobs"], 3);
    let endless = u64::MAX.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    command.args(["fuzz", "--jobs", "1", "--seconds", &endless]).current_dir(dir.path());
    let mut running = Killed(command.stdout(Stdio::null()).spawn().unwrap());
    until("no state", || dir.path().join("state/map_extents/job-0.json").exists());
    assert_eq!(running.0.try_wait().unwrap(), None);
    for refused in [["--jobs", "0"], ["--timeout", "0"], ["--runs", "-1"]] {
        let ran = qcowfuzz(dir.path(), &[&["fuzz"], &refused[..]].concat());
        assert_eq!(ran.status.code(), Some(2), "{refused:?}");
    }
}

fn started(dir: &Path) -> Killed {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    command.args(["fuzz", "--jobs", "2"]).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Killed(command.spawn().unwrap())
}

/// Returns the workers of the campaign in `dir`, which it finds by their command lines in Linux's /proc.
fn workers(dir: &Path) -> Vec<String> {
    let dir = dir.canonicalize().unwrap();
    processes(|process, command| {
        command.contains("fuzz-worker")
            && fs::read_link(process.join("cwd")).is_ok_and(|folder| folder == dir)
    })
}

/// Waits until both workers of a campaign have saved their first state, and returns the workers.
#[cfg(target_os = "linux")]
fn both_workers(dir: &Path) -> Vec<String> {
    until("no workers", || {
        workers(dir).len() == 2 && dir.join("state/map_extents/job-1.json").exists()
    });
    workers(dir)
}

#[test]
fn a_killed_campaign_leaves_whole_files_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let inputs = || files::list(&dir.path().join("corpus/map_extents")).unwrap_or_default();
    for round in 1..=3 {
        let mut running = started(dir.path());
        let before = inputs().len();
        until("no new inputs", || inputs().len() > before + 10);
        let second = qcowfuzz(dir.path(), &["fuzz", "--runs", "1"]);
        assert_eq!(second.status.code(), Some(2), "round {round}");
        assert!(
            error_line(&second)
                .ends_with("another campaign is running in this folder, expected another --dir")
        );
        running.0.kill().unwrap();
        running.0.wait().unwrap();
        // No supervisor is left.
        until("workers are left", || workers(dir.path()).is_empty());
        for path in inputs() {
            let name = corpus::name(&fs::read(&path).unwrap());
            assert_eq!(path.file_name().unwrap().to_str().unwrap(), name);
        }
    }
    let summary = campaign(dir.path(), &["--jobs", "2", "--runs", "100"]);
    assert_eq!(summary["runs"], 100);
    assert!(files::list(&dir.path().join("state/map_extents/scratch")).unwrap().is_empty());
}

// The test finds workers in /proc.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_is_killed_from_outside_is_no_finding() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut running = started(dir);
    let victims = both_workers(dir);
    signal("-KILL", &victims[0]);
    until("no new worker", || {
        let now = workers(dir);
        now.len() == 2 && !now.contains(&victims[0])
    });
    assert_eq!(running.0.try_wait().unwrap(), None);
    assert!(files::list(&dir.join("artifacts/map_extents")).unwrap_or_default().is_empty());
}

// The test finds workers in /proc.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_hangs_does_not_outlive_its_campaign_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut running = started(dir);
    let stopped = both_workers(dir);
    stopped.iter().for_each(|worker| signal("-STOP", worker));
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    // The next campaign waits for them, because they would overwrite its state.
    let mut next = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    next.args(["fuzz", "--jobs", "1", "--runs", "20", "--restart", "--rng-seed", "9"]);
    next.current_dir(dir).stdout(Stdio::null());
    let mut next = Killed(next.spawn().unwrap());
    sleep(Duration::from_millis(500));
    assert_eq!(next.0.try_wait().unwrap(), None);
    stopped.iter().for_each(|worker| signal("-CONT", worker));
    assert!(next.0.wait().unwrap().success());
    let state = fs::read_to_string(dir.join("state/map_extents/job-0.json")).unwrap();
    assert!(state.contains("\"rng_seed\":9,\"runs\":20,"), "{}", &state[..200]);
}

#[test]
fn a_campaign_that_cannot_resume_prints_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    campaign(dir, &["--jobs", "1", "--runs", "20", "--rng-seed", "3"]);
    let refused = |arguments: &[&str]| {
        let ran = qcowfuzz(dir, &[&["fuzz", "--runs", "5", "--jobs", "1"], arguments].concat());
        assert_eq!(ran.status.code(), Some(2), "{}", text(&ran.stdout));
        error_line(&ran).to_string()
    };
    let seed = refused(&["--rng-seed", "4"]);
    assert!(seed.ends_with("has --rng-seed 3, expected the same value or --restart"), "{seed}");
    let raw = refused(&["--target", "raw_image", "--check-each"]);
    assert!(raw.starts_with("--check-each: raw_image reads image files"), "{raw}");
    // A file that is not a state.
    let state = dir.join("state/map_extents/job-0.json");
    let whole = fs::read(&state).unwrap();
    for damaged in [&whole[..whole.len() / 2], b"", b"[]"] {
        fs::write(&state, damaged).unwrap();
        let printed = refused(&[]);
        assert!(printed.contains("job-0.json: not the state of a campaign"), "{printed}");
        assert_eq!(fs::read(&state).unwrap(), damaged);
    }
    // A restart is always possible.
    let again = campaign(dir, &["--jobs", "1", "--runs", "5", "--restart", "--rng-seed", "9"]);
    assert_eq!(again["runs"], 5);
}

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
fn started_beside(dir: &Path, name: &str, more: &[&str]) -> Killed {
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
    let mut other = started_beside(dir, "other", &["--rng-seed", "2", "--runs", "6500"]);
    let begun = |name: &str| dir.join(name).join("state/map_extents/job-0.json").exists();
    // It begins with the seeds alone.
    until("not begun", || begun("other"));
    let mut killed = started_beside(dir, "killed", &["--rng-seed", "1"]);
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
    let mut campaign = started_beside(dir, "one", &["--runs", "4100"]);
    until("not begun", || dir.join("one/state/map_extents/job-0.json").exists());
    assert!(kept(dir, "one").iter().any(|(input, bred)| *input == whole[..20] && !bred));
    fs::write(&path, whole).unwrap();
    assert!(campaign.0.wait().unwrap().success());
    let looked_at = kept(dir, "one").iter().any(|(input, bred)| input == whole && !bred);
    assert!(looked_at, "the whole input was never looked at");
    assert_eq!(fs::read(&path).unwrap(), *whole);
}
