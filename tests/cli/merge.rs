//! `merge` and `state`: one folder from several, in which no file is lost that a person named; the coverage of the
//! committed seeds, the difference of two corpora, and a smallest sufficient set of inputs. Each command of
//! `docs/campaigns.md` works; `tests/from_crash.rs` runs those on a testcase, `cargo xtask shared-corpus` those of
//! libFuzzer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
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

/// Copies the committed seeds of a target, without the fuzzer's finds beside them.
fn seeds(target: &str, into: &Path) -> PathBuf {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let dir = into.join(target);
    fs::create_dir(&dir).unwrap();
    for entry in fs::read_dir(corpus.join("text").join(target)).unwrap() {
        let name = entry.unwrap().path().file_stem().unwrap().to_owned();
        fs::copy(corpus.join(target).join(&name), dir.join(&name)).unwrap();
    }
    dir
}

fn json(dir: &Path, arguments: &[&str]) -> serde_json::Value {
    let output = qcowfuzz(dir, &[&["corpus", "--json"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_coverage_of_seeds_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    seeds("map_extents", dir.path());
    let printed = json(dir.path(), &["show", "map_extents", "--rarest", "3"]);
    let count = fs::read_dir(dir.path().join("map_extents")).unwrap().count();
    assert_eq!(printed["inputs"], count);
    assert_eq!(printed["violations"], 0);
    assert_eq!(printed["rarest_edges"].as_array().unwrap().len(), 3);
    assert!(printed["rarest_edges"][0]["inputs"] == 1, "{printed}");
    assert!(printed["rare_events"]["an L2 table is shared"].as_u64() > Some(1), "{printed}");
    assert!(printed["edges"]["walk L2"].as_u64() > Some(30), "{printed}");
    // Our walker reports events of its own, and so no accesses to files.
    let vitals = &printed["never_happened"]["vitals"];
    let never = ["file reads", "file writes"];
    assert_eq!(*vitals, serde_json::json!(never));
    // Only programs of `hostile` have attacks.
    let never = printed["never_happened"]["events"].as_array().unwrap();
    assert!(never.contains(&"attacked".into()), "{printed}");
    let output = qcowfuzz(dir.path(), &["corpus", "show", "map_extents", "--rarest", "1"]);
    let out = text(&output.stdout);
    // An earlier name of the command.
    let earlier = qcowfuzz(dir.path(), &["state", "show", "map_extents", "--rarest", "1"]);
    assert_eq!(text(&earlier.stdout), out);
    assert!(out.starts_with(&format!("map_extents: {count} inputs, ")), "{out}");
    assert!(out.contains("\nnever happened:\n") && out.contains("     1 input  build: "), "{out}");
}

#[test]
fn a_pruned_corpus_covers_the_same_and_no_file_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = seeds("map_extents", dir.path());
    // Twins: one of them is enough.
    fs::copy(corpus.join("windows"), corpus.join("a_twin")).unwrap();
    let before = fs::read_dir(&corpus).unwrap().count();
    let pruned = json(dir.path(), &["prune", "map_extents", "-o", "small"]);
    let kept = pruned["kept"].as_array().unwrap();
    assert!(kept.len() < before && kept.len() > 10, "{pruned}");
    assert!(!(kept.contains(&"a_twin".into()) && kept.contains(&"windows".into())), "{pruned}");
    assert_eq!(fs::read_dir(dir.path().join("small")).unwrap().count(), kept.len());
    assert_eq!(fs::read_dir(&corpus).unwrap().count(), before);
    let diff = json(dir.path(), &["diff", "map_extents", "small"]);
    let nothing = serde_json::json!([]);
    assert_eq!((&diff["only_one"], &diff["only_other"]), (&nothing, &nothing));
    // Again, into the folder that exists now.
    let output = qcowfuzz(dir.path(), &["corpus", "prune", "map_extents", "-o", "small"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(error_line(&output).ends_with("the file exists, expected a new one or --force"));
    json(dir.path(), &["prune", "map_extents", "-o", "small", "--force"]);
}

#[test]
fn two_corpora_are_compared_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = seeds("hostile", dir.path());
    fs::create_dir(dir.path().join("one")).unwrap();
    fs::copy(corpus.join("trapped_l1"), dir.path().join("one/trapped_l1")).unwrap();
    let diff = json(dir.path(), &["diff", "hostile", "one", "--target", "hostile"]);
    assert_eq!(diff["only_other"], serde_json::json!([]));
    let only = diff["only_one"].as_array().unwrap();
    assert!(only.contains(&"open: header → snapshot".into()), "{diff}");
    let output = qcowfuzz(dir.path(), &["corpus", "diff", "hostile", "one", "--target", "hostile"]);
    let out = text(&output.stdout);
    assert!(out.contains(&format!("\nonly hostile: {}\n", only.len())), "{out}");
    assert!(out.ends_with("\nonly one: 0\n"), "{out}");
}

#[test]
fn a_path_that_is_no_folder_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for (name, what) in [("nothing", "No such file"), ("file", "Not a directory")] {
        let output = qcowfuzz(dir.path(), &["corpus", "show", name]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            error_line(&output).starts_with(&format!("{name}: {what}")),
            "{}",
            error_line(&output)
        );
    }
    fs::create_dir(dir.path().join("empty")).unwrap();
    let empty = json(dir.path(), &["show", "empty"]);
    assert_eq!((empty["inputs"].as_u64(), empty["edges"]["emit"].as_u64()), (Some(0), Some(0)));
}

#[test]
fn the_state_of_a_campaign_has_parents() {
    let dir = tempfile::tempdir().unwrap();
    let missing = qcowfuzz(dir.path(), &["corpus", "campaign"]);
    assert_eq!(missing.status.code(), Some(2));
    let no_state = "./state/map_extents/job-0.json: No such file or directory (os error 2)";
    assert_eq!(error_line(&missing), no_state);
    // It creates nothing.
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let fuzz = ["fuzz", "--runs", "2000", "--jobs", "1", "--dir", "campaign"];
    assert_eq!(qcowfuzz(dir.path(), &fuzz).status.code(), Some(0));
    let printed = json(dir.path(), &["campaign", "campaign", "--most", "100000"]);
    let job = &printed["jobs"][0];
    assert_eq!((&job["runs"], printed["jobs"].as_array().unwrap().len()), (&2000.into(), 1));
    let parents = job["parents"].as_array().unwrap();
    let files = fs::read_dir(dir.path().join("campaign/corpus/map_extents")).unwrap();
    let files: BTreeSet<String> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    // If a shorter input replaces one, the file of the longer one stays.
    assert!(parents.iter().all(|one| files.contains(one["input"].as_str().unwrap())));
    assert!(parents.len() > files.len() * 9 / 10, "{} of {}", parents.len(), files.len());
    let ancestors: BTreeMap<&str, u64> = parents
        .iter()
        .map(|one| (one["input"].as_str().unwrap(), one["depth"].as_u64().unwrap()))
        .collect();
    let mut without_parent = 0;
    for one in parents {
        match one["parent"].as_str() {
            Some(parent) => assert_eq!(one["depth"], ancestors[parent] + 1, "{one}"),
            None => without_parent += 1,
        }
    }
    assert_eq!(job["without_parent"], without_parent);
    let sum = |what: &str| -> f64 { parents.iter().map(|one| one[what].as_f64().unwrap()).sum() };
    assert!((sum("chosen_percent") - 100.0).abs() < 0.001);
    assert_eq!(sum("children"), 2000.0);
    let text_form = qcowfuzz(dir.path(), &["corpus", "campaign", "campaign", "--most", "1"]);
    let names = parents[0]["input"].as_str().unwrap();
    assert!(text(&text_form.stdout).contains(names), "{text_form:?}");
}

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
