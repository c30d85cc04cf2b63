//! `fuzz`: a campaign is reproducible, resumes where it ended, survives a kill, and shares its folder with others.

use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::Duration;

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::internal::base::files;
use serde_json::Value;
use test_support::prelude::*;

use crate::support::{self, Folder, Killed, processes, seeds, signal, until};

/// Runs a campaign in `dir`, and returns its summary.
fn campaign(dir: &Folder, options: &str) -> Value {
    dir.run(&format!("fuzz --json {options}")).ok().json()
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
    let run = |pieces: &[u32], seed: u32| {
        let dir = Folder::new();
        for runs in pieces {
            let summary = campaign(&dir, &format!("--jobs 1 --runs {runs} --rng-seed {seed}"));
            assert_eq!((&summary["runs"], &summary["jobs"]), (&(*runs).into(), &1.into()));
        }
        everything(&dir)
    };
    let whole = run(&[700], 5);
    assert!(whole.len() > 50, "{}", whole.len());
    assert!(whole == run(&[700], 5), "the same seed gave another campaign");
    assert!(whole == run(&[300, 400], 5), "in pieces it is another campaign");
    assert!(whole != run(&[700], 6), "another seed gave the same campaign");
}

/// Copies committed seeds to a new folder of a corpus.
fn copy_seeds(target: &str, names: &[&str], into: &Path) {
    fs::create_dir_all(into).unwrap();
    for name in names {
        fs::copy(support::corpus(target).join(name), into.join(name)).unwrap();
    }
}

/// Files instead of programs, from the committed seeds.
#[test]
fn a_campaign_of_files_is_the_same_in_pieces() {
    let run = |pieces: &[u32]| {
        let dir = Folder::new();
        let names = ["standard", "vpc_bitmaps", "vmdk_esx", "snapshots"];
        copy_seeds("raw_image", &names, &dir.join("corpus/raw_image"));
        for runs in pieces {
            campaign(&dir, &format!("--target raw_image --jobs 1 --runs {runs}"));
        }
        everything(&dir)
    };
    let whole = run(&[400]);
    assert!(whole.len() > 30, "{}", whole.len());
    assert!(whole == run(&[150, 250]), "in pieces it is another campaign");
}

/// Checks that the name of each input is the hash of its bytes.
fn assert_named(inputs: &[PathBuf]) {
    for path in inputs {
        let name = corpus::name(&fs::read(path).unwrap());
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), name);
    }
}

#[test]
fn every_target_is_fuzzed_and_its_finds_are_inputs() {
    for target in ["map_extents", "hostile", "refcounts", "raw_image", "writes", "hostile_writes"] {
        let dir = Folder::new();
        let words = format!("fuzz --json --target {target} --jobs 2 --runs 301");
        let ran =
            if target.ends_with("writes") { dir.small_writer(&words) } else { dir.run(&words) };
        let summary = ran.ok().json();
        assert_eq!((&summary["target"], &summary["runs"]), (&target.into(), &301.into()));
        assert!(summary["found"].as_array().unwrap().is_empty());
        let inputs = files::list(&dir.join("corpus").join(target)).unwrap();
        assert_eq!(summary["inputs"], inputs.len());
        assert!(summary["edges"].as_u64().unwrap() > 20 && inputs.len() > 20, "{summary}");
        assert_named(&inputs);
    }
}

#[test]
fn a_campaign_begins_with_the_seeds_and_does_not_change_them() {
    let dir = Folder::new();
    let into = dir.join("corpus/map_extents");
    copy_seeds("map_extents", &["chain_raw", "zero_kinds", "snapshots"], &into);
    fs::create_dir_all(into.join("folder")).unwrap();
    fs::write(into.join("empty"), "").unwrap();
    let before = everything(&into);
    let summary = campaign(&dir, "--jobs 1 --runs 50");
    assert!(summary["rare_events"].as_u64().unwrap() > 3, "{summary}");
    let after = everything(&into);
    assert!(before.iter().all(|file| after.contains(file)));
}

#[test]
fn any_file_in_the_corpus_is_harmless() {
    let dir = Folder::new();
    let corpus = dir.join("corpus/map_extents");
    fs::create_dir_all(&corpus).unwrap();
    let odd = OsStr::from_bytes(b"n\xFFme");
    fs::write(corpus.join(odd), [0, 1, 0, 0, 0, 12, 9]).unwrap();
    fs::write(corpus.join("long"), vec![7; 3 << 20]).unwrap();
    std::os::unix::fs::symlink("nowhere", corpus.join("dangling")).unwrap();
    assert!(Command::new("mkfifo").arg(corpus.join("fifo")).status().unwrap().success());
    assert_eq!(campaign(&dir, "--jobs 1 --runs 60")["runs"], 60);
    // Kept files are changed or removed. The saved state still has their inputs.
    fs::write(corpus.join(odd), "something else").unwrap();
    for path in files::list(&corpus).unwrap().iter().rev().take(9) {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(campaign(&dir, "--jobs 1 --runs 60")["found"], serde_json::json!([]));
    assert!(dir.read("state/map_extents/job-0.input").len() < 2 << 20);
}

#[test]
fn odd_numbers_and_names_are_accepted_or_refused() {
    let dir = Folder::new();
    assert_eq!(campaign(&dir, "--runs 10 --jobs 1 --max-operations 0 --dir=-x")["runs"], 10);
    assert!(dir.join("-x/state").exists());
    assert_eq!(campaign(&dir, "--runs 0")["runs"], 0);
    assert_eq!(campaign(&dir, "--seconds 0 --jobs 3")["jobs"], 3);
    let mut running = dir.start(&format!("fuzz --jobs 1 --seconds {}", u64::MAX));
    until("no state", || dir.join("state/map_extents/job-0.json").exists());
    assert_eq!(running.0.try_wait().unwrap(), None);
    for refused in ["--jobs 0", "--timeout 0", "--runs -1"] {
        dir.run(&format!("fuzz {refused}")).exits(2);
    }
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
    let dir = Folder::new();
    let inputs = || files::list(&dir.join("corpus/map_extents")).unwrap_or_default();
    for _ in 1..=3 {
        let mut running = dir.start("fuzz --jobs 2");
        let before = inputs().len();
        until("no new inputs", || inputs().len() > before + 10);
        let second = dir.run("fuzz --runs 1").exits(2);
        let expected = "another campaign is running in this folder, expected another --dir";
        assert!(second.line().ends_with(expected), "{second:?}");
        running.kill();
        // No supervisor is left.
        until("workers are left", || workers(&dir).is_empty());
        assert_named(&inputs());
    }
    assert_eq!(campaign(&dir, "--jobs 2 --runs 100")["runs"], 100);
    assert!(files::list(&dir.join("state/map_extents/scratch")).unwrap().is_empty());
}

// The test finds workers in /proc.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_is_killed_from_outside_is_no_finding() {
    let dir = Folder::new();
    let mut running = dir.start("fuzz --jobs 2");
    let victims = both_workers(&dir);
    signal("-KILL", &victims[0]);
    until("no new worker", || {
        let now = workers(&dir);
        now.len() == 2 && !now.contains(&victims[0])
    });
    assert_eq!(running.0.try_wait().unwrap(), None);
    assert!(files::list(&dir.join("artifacts/map_extents")).unwrap_or_default().is_empty());
}

// The test finds workers in /proc.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_hangs_does_not_outlive_its_campaign_for_long() {
    let dir = Folder::new();
    let mut running = dir.start("fuzz --jobs 2");
    let stopped = both_workers(&dir);
    stopped.iter().for_each(|worker| signal("-STOP", worker));
    running.kill();
    // The next campaign waits for them, because they would overwrite its state.
    let mut next = dir.start("fuzz --jobs 1 --runs 20 --restart --rng-seed 9");
    sleep(Duration::from_millis(500));
    assert_eq!(next.0.try_wait().unwrap(), None);
    stopped.iter().for_each(|worker| signal("-CONT", worker));
    assert!(next.0.wait().unwrap().success());
    let state = dir.read_text("state/map_extents/job-0.json");
    assert!(state.contains("\"rng_seed\":9,\"runs\":20,"), "{}", &state[..200]);
}

#[test]
fn a_campaign_that_cannot_resume_prints_the_reason() {
    let dir = Folder::new();
    campaign(&dir, "--jobs 1 --runs 20 --rng-seed 3");
    let resumed = |more: &str| dir.run(&format!("fuzz --runs 5 --jobs 1 {more}")).exits(2);
    let seed = resumed("--rng-seed 4");
    assert!(seed.line().ends_with("has --rng-seed 3, expected the same value or --restart"));
    let raw = resumed("--target raw_image --check-each");
    assert!(raw.line().starts_with("--check-each: raw_image reads image files"), "{raw:?}");
    // A file that is not a state.
    let state = "state/map_extents/job-0.json";
    let whole = dir.read(state);
    for damaged in [&whole[..whole.len() / 2], b"", b"[]"] {
        dir.write(state, damaged);
        let ran = resumed("");
        assert!(ran.line().contains("job-0.json: not the state of a campaign"), "{ran:?}");
        assert_eq!(dir.read(state), damaged);
    }
    // A restart is always possible.
    assert_eq!(campaign(&dir, "--jobs 1 --runs 5 --restart --rng-seed 9")["runs"], 5);
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
    let names = seeds("map_extents");
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    copy_seeds("map_extents", &names, &dir.join("shared"));
    inputs(dir)
}

/// Starts a campaign with one job.
fn started_beside(dir: &Folder, name: &str, more: &str) -> Killed {
    dir.start(&format!("fuzz --jobs 1 --corpus shared --dir {name} {more}"))
}

/// Returns the inputs in the saved state of a campaign, and whether each was made there.
fn kept(dir: &Path, name: &str) -> Vec<(Vec<u8>, bool)> {
    let state = fs::read(dir.join(name).join("state/map_extents/job-0.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let entries = state["entries"].as_array().unwrap().iter();
    let input = |entry: &Value| hex::decode(entry["input"].as_str().unwrap()).unwrap();
    entries.map(|entry| (input(entry), !entry["parent"].is_null())).collect()
}

#[test]
fn two_campaigns_share_a_folder_and_one_is_killed() {
    let dir = Folder::new();
    let seeds = seeded(&dir);
    let mut other = started_beside(&dir, "other", "--rng-seed 2 --runs 6500");
    let begun = |name: &str| dir.join(name).join("state/map_extents/job-0.json").exists();
    // It begins with the seeds alone.
    until("not begun", || begun("other"));
    let mut killed = started_beside(&dir, "killed", "--rng-seed 1");
    until("not begun", || begun("killed"));
    let before = inputs(&dir).len();
    until("no finds", || inputs(&dir).len() > before + 100);
    killed.kill();
    assert_eq!(other.0.try_wait().unwrap(), None, "both ran until one was killed");
    assert!(other.0.wait().unwrap().success());
    let after = inputs(&dir);
    // The seeds are unchanged, and every find is whole.
    for (name, bytes) in &seeds {
        assert!(after.get(name) == Some(bytes), "the seed {name}");
    }
    for (name, bytes) in after.iter().filter(|(name, _)| !seeds.contains_key(*name)) {
        assert_eq!(*name, corpus::name(bytes), "a find is torn");
    }
    // The folder has all inputs that either campaign has kept.
    let contents: BTreeSet<&Vec<u8>> = after.values().collect();
    for name in ["killed", "other"] {
        let kept = kept(&dir, name);
        assert!(kept.len() >= 20, "{name}: {}", kept.len());
        assert!(kept.iter().all(|(input, _)| contents.contains(input)), "{name} has lost an input");
    }
    // The survivor has inputs of the killed campaign: it neither made them nor began with them.
    let is_learnt =
        |(input, is_made): &(Vec<u8>, bool)| !is_made && !seeds.values().any(|seed| seed == input);
    assert!(kept(&dir, "other").iter().any(is_learnt), "the survivor has learnt no input");
    // A campaign that resumes the killed one loses no input either.
    dir.run("fuzz --jobs 1 --corpus shared --dir killed --runs 1").ok();
    assert!(inputs(&dir).len() >= after.len());
}

/// A campaign that has read half an input reads the whole one later.
#[test]
fn a_file_that_libfuzzer_is_still_writing_is_read_again() {
    let dir = Folder::new();
    let seeds = seeded(&dir);
    seeds.keys().for_each(|name| fs::remove_file(dir.join("shared").join(name)).unwrap());
    // An input of this length is not made soon.
    let whole = seeds.values().max_by_key(|input| input.len()).unwrap();
    let path = dir.join("shared").join(corpus::name(whole));
    fs::write(&path, &whole[..20]).unwrap();
    let mut campaign = started_beside(&dir, "one", "--runs 4100");
    until("not begun", || dir.join("one/state/map_extents/job-0.json").exists());
    assert!(kept(&dir, "one").iter().any(|(input, is_made)| *input == whole[..20] && !is_made));
    fs::write(&path, whole).unwrap();
    assert!(campaign.0.wait().unwrap().success());
    let is_read = kept(&dir, "one").iter().any(|(input, is_made)| input == whole && !is_made);
    assert!(is_read, "the whole input was never read");
    assert_eq!(fs::read(&path).unwrap(), *whole);
}
