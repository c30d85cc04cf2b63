//! `corpus merge` makes one folder from several. It loses no file that a person named, and a kill leaves whole files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::internal::base::files;
use qcowfuzz::programs::generate::{GenerateSettings, generate};

use crate::support::{error_line, qcowfuzz, text};

/// Returns the files of a folder by name, without hidden files and folders.
fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let named = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_string();
    let files = files::list(dir).unwrap_or_default();
    let visible = files.iter().filter(|path| !named(path).starts_with('.'));
    visible.map(|path| (named(path), fs::read(path).unwrap())).collect()
}

fn write(dir: &Path, inputs: &[(&str, &[u8])]) {
    fs::create_dir_all(dir).unwrap();
    inputs.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).unwrap());
}

/// Writes finds of a fuzzer, each with the hash of its content as its name.
fn write_finds(dir: &Path, rng_seeds: std::ops::Range<u64>) {
    for rng_seed in rng_seeds {
        let operations = 1 + (rng_seed % 30) as usize;
        let input = generate(rng_seed, GenerateSettings { operations, compressed: true }).encode();
        write(dir, &[(&corpus::name(&input), &input)]);
    }
}

fn merge(dir: &Path, arguments: &[&str]) -> serde_json::Value {
    let ran = qcowfuzz(dir, &[&["corpus", "merge", "--json"], arguments].concat());
    assert_eq!(ran.status.code(), Some(0), "{}{}", text(&ran.stdout), text(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Returns the counters that `one` covers and `other` does not.
fn only(dir: &Path, one: &str, other: &str) -> serde_json::Value {
    let ran = qcowfuzz(dir, &["corpus", "diff", "--json", one, other]);
    let printed: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    printed["only_one"].clone()
}

#[test]
fn all_seeds_and_the_finds_that_matter_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/map_extents");
    let seed = |name: &str| fs::read(seeds.join(name)).unwrap();
    // The same seed in both, a twin of it, and a hidden file.
    let (zeros, chain) = (seed("zero_kinds"), seed("chain_raw"));
    write(&at("one"), &[("zero_kinds", &zeros), ("a_twin", &zeros), (".gitkeep", b"")]);
    write(
        &at("two"),
        &[("zero_kinds", &zeros), ("chain", &chain), (&corpus::name(&zeros), &zeros)],
    );
    write_finds(&at("one"), 0..120);
    write_finds(&at("two"), 60..180);
    let before = ["one", "two"].map(|name| contents(&at(name)));
    let merged = merge(dir.path(), &["one", "two", "-o", "all"]);
    let all = contents(&at("all"));
    assert_eq!(["one", "two"].map(|name| contents(&at(name))), before);
    for (name, bytes) in [("zero_kinds", &zeros), ("a_twin", &zeros), ("chain", &chain)] {
        assert_eq!(all.get(name), Some(bytes), "{name}");
    }
    assert_eq!(merged["seeds"].as_array().unwrap().len(), 3);
    let finds = merged["finds"].as_array().unwrap().len();
    assert!(finds > 10 && finds < 150 && finds + 3 == all.len(), "{merged}");
    for (name, bytes) in all.iter().filter(|(name, _)| name.len() == 40) {
        assert_eq!(*name, corpus::name(bytes));
    }
    // Removes the hidden file. 'merge' ignores it, but 'diff' would count it.
    fs::remove_file(at("one/.gitkeep")).unwrap();
    assert!(!at("all/.gitkeep").exists());
    for source in ["one", "two"] {
        assert_eq!(only(dir.path(), source, "all"), serde_json::json!([]), "{source}");
    }
    // A merge into another folder gives the same. A second merge into this folder adds nothing.
    merge(dir.path(), &["one", "two", "-o", "again"]);
    assert_eq!(contents(&at("again")), all);
    let nothing = merge(dir.path(), &["one", "two", "-o", "all"]);
    assert_eq!((&nothing["seeds"], &nothing["finds"]), (&merged["torn"], &merged["torn"]));
    assert_eq!(nothing["before"], all.len());
    assert_eq!(contents(&at("all")), all);
}

#[test]
fn no_existing_file_is_removed_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let program = |rng_seed| {
        generate(rng_seed, GenerateSettings { operations: 9, compressed: true }).encode()
    };
    let (mine, theirs, spare) = (program(1), program(2), program(3));
    // A seed with the same name and other content, and a find without new coverage.
    write(&at("all"), &[("seed", &mine), (&corpus::name(&spare), &spare), ("a_copy", &spare)]);
    write(&at("from"), &[("seed", &theirs)]);
    let before = contents(&at("all"));
    let merged = merge(dir.path(), &["from", "-o", "all"]);
    let after = contents(&at("all"));
    assert!(before.iter().all(|(name, bytes)| after.get(name) == Some(bytes)));
    assert_eq!(after.get(&corpus::name(&theirs)), Some(&theirs), "{merged}");
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(merged["renamed"], serde_json::json!(["from/seed"]));
    let ran = qcowfuzz(dir.path(), &["corpus", "merge", "from", "-o", "all"]);
    assert!(text(&ran.stdout).starts_with("all: 4 inputs before\nadded: 0 seeds"), "{ran:?}");
    for refused in [&["nowhere", "-o", "new"][..], &["from", "-o", "from/seed"], &["-o", "new"]] {
        let ran = qcowfuzz(dir.path(), &[&["corpus", "merge"], refused].concat());
        assert_eq!(ran.status.code(), Some(2), "{refused:?}");
    }
    let ran = qcowfuzz(dir.path(), &["corpus", "merge", "nowhere", "-o", "new"]);
    assert!(error_line(&ran).starts_with("nowhere: No such file"), "{}", error_line(&ran));
    // A folder has the name of the seed.
    std::fs::create_dir_all(at("taken/seed")).unwrap();
    let ran = qcowfuzz(dir.path(), &["corpus", "merge", "from", "-o", "taken"]);
    let expected = "taken/seed: another file or folder has this name, expected none";
    assert_eq!((error_line(&ran), ran.status.code()), (expected, Some(2)));
}

/// If libFuzzer is killed while it writes, it leaves a part of an input under the name of the whole.
#[test]
fn a_torn_file_is_reported_and_replaced_by_the_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let whole = generate(5, GenerateSettings { operations: 20, compressed: true }).encode();
    let name = corpus::name(&whole);
    write(&at("all"), &[(&name, &whole[..30])]);
    write(&at("from"), &[(&name, &whole)]);
    let merged = merge(dir.path(), &["from", "-o", "all"]);
    assert_eq!(merged["torn"], serde_json::json!([format!("all/{name}")]));
    assert_eq!(contents(&at("all")).get(&name), Some(&whole), "{merged}");
    assert_eq!(merge(dir.path(), &["from", "-o", "all"])["torn"], serde_json::json!([]));
}

#[test]
fn a_killed_merge_leaves_whole_files_and_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    write_finds(&at("from"), 0..400);
    for name in 0..300 {
        let input = generate(name, GenerateSettings { operations: 3, compressed: false }).encode();
        write(&at("from"), &[(&format!("seed_{name}"), &input)]);
    }
    let from = contents(&at("from"));
    let mut interrupted = 0;
    for _ in 0..20 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
        command.args(["corpus", "merge", "from", "-o", "all"]).current_dir(dir.path());
        let mut running = command.stdout(Stdio::null()).spawn().unwrap();
        let before = contents(&at("all")).len();
        while running.try_wait().unwrap().is_none() && contents(&at("all")).len() < before + 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.kill().unwrap();
        interrupted += usize::from(running.wait().unwrap().code().is_none());
        for (name, bytes) in contents(&at("all")) {
            assert_eq!(from.get(&name), Some(&bytes), "{name} is not whole");
        }
        if interrupted == 3 {
            break;
        }
    }
    assert_eq!(interrupted, 3, "no merge was killed in the middle");
    merge(dir.path(), &["from", "-o", "all"]);
    let all: BTreeSet<_> = contents(&at("all")).into_keys().collect();
    let seeds: BTreeSet<_> = from.keys().filter(|name| name.starts_with("seed")).cloned().collect();
    assert!(all.is_superset(&seeds));
    assert_eq!(only(dir.path(), "from", "all"), serde_json::json!([]));
    assert_eq!(contents(&at("from")), from);
}
