//! `merge` and `state`: one folder from several, in which no file is lost that a person named; the coverage of the
//! committed seeds, the difference of two corpora, and a smallest sufficient set of inputs. Each command of
//! `docs/campaigns.md` works; `cargo xtask shared-corpus` runs those of libFuzzer.

use std::time::Duration;

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::internal::base::files;
use serde_json::{Value, json};
use test_support::prelude::*;

use crate::support::{self, Folder, OURS, Ran, names_in};

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

/// Returns a generated input.
fn generated(rng_seed: u64, operations: usize) -> Vec<u8> {
    generate(rng_seed, GenerateSettings { operations, compressed: true }).encode()
}

/// Writes finds of a fuzzer, each with the hash of its content as its name.
fn write_finds(dir: &Path, rng_seeds: std::ops::Range<u64>) {
    for rng_seed in rng_seeds {
        let input = generated(rng_seed, 1 + (rng_seed % 30) as usize);
        write(dir, &[(&corpus::name(&input), &input)]);
    }
}

/// Runs a verb of `corpus`, and returns its output.
fn corpus_json(dir: &Folder, words: &str) -> Value {
    dir.run(&format!("corpus --json {words}")).ok().json()
}

/// Checks that `one` covers no counter that `other` does not cover.
fn assert_covers(dir: &Folder, one: &str, other: &str) {
    let printed = dir.run(&format!("corpus diff --json {one} {other}")).json();
    assert_eq!(printed["only_one"], json!([]), "{one}");
}

#[test]
fn all_seeds_and_the_finds_that_matter_are_merged() {
    let dir = Folder::new();
    let seed = |name: &str| fs::read(support::corpus("map_extents").join(name)).unwrap();
    // The same seed in both, a twin of it, and a hidden file.
    let (zeros, chain) = (seed("zero_kinds"), seed("chain_raw"));
    let one = [("zero_kinds", &zeros[..]), ("a_twin", &zeros), (".gitkeep", b"")];
    write(&dir.join("one"), &one);
    let two = [("zero_kinds", &zeros[..]), ("chain", &chain), (&corpus::name(&zeros), &zeros)];
    write(&dir.join("two"), &two);
    write_finds(&dir.join("one"), 0..120);
    write_finds(&dir.join("two"), 60..180);
    let before = ["one", "two"].map(|name| contents(&dir.join(name)));
    let merged = corpus_json(&dir, "merge one two -o all");
    let all = contents(&dir.join("all"));
    assert_eq!(["one", "two"].map(|name| contents(&dir.join(name))), before);
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
    fs::remove_file(dir.join("one/.gitkeep")).unwrap();
    assert!(!dir.join("all/.gitkeep").exists());
    for source in ["one", "two"] {
        assert_covers(&dir, source, "all");
    }
    // A merge into another folder gives the same. A second merge into this folder adds nothing.
    corpus_json(&dir, "merge one two -o again");
    assert_eq!(contents(&dir.join("again")), all);
    let nothing = corpus_json(&dir, "merge one two -o all");
    assert_eq!((&nothing["seeds"], &nothing["finds"]), (&merged["torn"], &merged["torn"]));
    assert_eq!(nothing["before"], all.len());
    assert_eq!(contents(&dir.join("all")), all);
}

#[test]
fn no_existing_file_is_removed_or_replaced() {
    let dir = Folder::new();
    let (mine, theirs, spare) = (generated(1, 9), generated(2, 9), generated(3, 9));
    // A seed with the same name and other content, and a find without new coverage.
    let all = [("seed", &mine[..]), (&corpus::name(&spare), &spare), ("a_copy", &spare)];
    write(&dir.join("all"), &all);
    write(&dir.join("from"), &[("seed", &theirs)]);
    let before = contents(&dir.join("all"));
    let merged = corpus_json(&dir, "merge from -o all");
    let after = contents(&dir.join("all"));
    assert!(before.iter().all(|(name, bytes)| after.get(name) == Some(bytes)));
    assert_eq!(after.get(&corpus::name(&theirs)), Some(&theirs), "{merged}");
    assert_eq!(after.len(), before.len() + 1);
    assert_eq!(merged["renamed"], json!(["from/seed"]));
    dir.run("corpus merge from -o all").begins("all: 4 inputs before\nadded: 0 seeds");
    for refused in ["from -o from/seed", "-o new"] {
        dir.run(&format!("corpus merge {refused}")).exits(2);
    }
    dir.run("corpus merge nowhere -o new").fails(2, "nowhere: No such file");
    // A folder has the name of the seed.
    fs::create_dir_all(dir.join("taken/seed")).unwrap();
    let expected = "taken/seed: another file or folder has this name, expected none";
    assert_eq!(dir.run("corpus merge from -o taken").exits(2).line(), expected);
}

/// If libFuzzer is killed while it writes, it leaves a part of an input under the name of the whole.
#[test]
fn a_torn_file_is_reported_and_replaced_by_the_whole_one() {
    let dir = Folder::new();
    let whole = generated(5, 20);
    let name = corpus::name(&whole);
    write(&dir.join("all"), &[(&name, &whole[..30])]);
    write(&dir.join("from"), &[(&name, &whole)]);
    let merged = corpus_json(&dir, "merge from -o all");
    assert_eq!(merged["torn"], json!([format!("all/{name}")]));
    assert_eq!(contents(&dir.join("all")).get(&name), Some(&whole), "{merged}");
    assert_eq!(corpus_json(&dir, "merge from -o all")["torn"], json!([]));
}

#[test]
fn a_killed_merge_leaves_whole_files_and_is_completed() {
    let dir = Folder::new();
    write_finds(&dir.join("from"), 0..400);
    for number in 0..300 {
        write(&dir.join("from"), &[(&format!("seed_{number}"), &generated(number, 3))]);
    }
    let from = contents(&dir.join("from"));
    let mut interrupted = 0;
    for _ in 0..20 {
        let mut running = dir.start("corpus merge from -o all");
        let all = || contents(&dir.join("all"));
        let before = all().len();
        while running.0.try_wait().unwrap().is_none() && all().len() < before + 5 {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.0.kill().unwrap();
        interrupted += usize::from(running.0.wait().unwrap().code().is_none());
        for (name, bytes) in all() {
            assert_eq!(from.get(&name), Some(&bytes), "{name} is not whole");
        }
        if interrupted == 3 {
            break;
        }
    }
    assert_eq!(interrupted, 3, "no merge was killed in the middle");
    corpus_json(&dir, "merge from -o all");
    let all = contents(&dir.join("all"));
    assert!(from.keys().filter(|name| name.starts_with("seed")).all(|it| all.contains_key(it)));
    assert_covers(&dir, "from", "all");
    assert_eq!(contents(&dir.join("from")), from);
}

/// Copies the committed seeds of a target, without the fuzzer's finds beside them.
fn seeds(target: &str, into: &Folder) -> PathBuf {
    let dir = into.join(target);
    fs::create_dir(&dir).unwrap();
    for name in support::seeds(target) {
        fs::copy(support::corpus(target).join(&name), dir.join(&name)).unwrap();
    }
    dir
}

#[test]
fn the_coverage_of_seeds_is_printed() {
    let dir = Folder::new();
    let count = names_in(&seeds("map_extents", &dir)).len();
    let printed = corpus_json(&dir, "show map_extents --rarest 3");
    assert_eq!((&printed["inputs"], &printed["violations"]), (&count.into(), &0.into()));
    assert_eq!(printed["rarest_edges"].as_array().unwrap().len(), 3);
    assert!(printed["rarest_edges"][0]["inputs"] == 1, "{printed}");
    assert!(printed["rare_events"]["an L2 table is shared"].as_u64() > Some(1), "{printed}");
    assert!(printed["edges"]["walk L2"].as_u64() > Some(30), "{printed}");
    // Our walker reports events of its own, and so no accesses to files.
    let never = json!(["file reads", "file writes"]);
    assert_eq!(printed["never_happened"]["vitals"], never);
    // Only programs of `hostile` have attacks.
    let never = printed["never_happened"]["events"].as_array().unwrap();
    assert!(never.contains(&"attacked".into()), "{printed}");
    let shown = dir.run("corpus show map_extents --rarest 1");
    // An earlier name of the command.
    assert_eq!(dir.run("state show map_extents --rarest 1").out, shown.out);
    let shown = shown.begins(&format!("map_extents: {count} inputs, "));
    shown.has("\nnever happened:\n").has("     1 input  build: ");
}

#[test]
fn a_pruned_corpus_covers_the_same_and_no_file_is_lost() {
    let dir = Folder::new();
    let corpus = seeds("map_extents", &dir);
    // Twins: one of them is enough.
    fs::copy(corpus.join("windows"), corpus.join("a_twin")).unwrap();
    let before = names_in(&corpus);
    let pruned = corpus_json(&dir, "prune map_extents -o small");
    let kept = pruned["kept"].as_array().unwrap();
    assert!(kept.len() < before.len() && kept.len() > 10, "{pruned}");
    assert!(!(kept.contains(&"a_twin".into()) && kept.contains(&"windows".into())), "{pruned}");
    assert_eq!(names_in(&dir.join("small")).len(), kept.len());
    assert_eq!(names_in(&corpus), before);
    let diff = corpus_json(&dir, "diff map_extents small");
    assert_eq!((&diff["only_one"], &diff["only_other"]), (&json!([]), &json!([])));
    // Again, into the folder that exists now.
    let again = dir.run("corpus prune map_extents -o small").exits(2);
    assert!(again.line().ends_with("the file exists, expected a new one or --force"), "{again:?}");
    corpus_json(&dir, "prune map_extents -o small --force");
}

#[test]
fn two_corpora_are_compared_both_ways() {
    let dir = Folder::new();
    let corpus = seeds("hostile", &dir);
    fs::create_dir(dir.join("one")).unwrap();
    fs::copy(corpus.join("trapped_l1"), dir.join("one/trapped_l1")).unwrap();
    let diff = corpus_json(&dir, "diff hostile one --target hostile");
    assert_eq!(diff["only_other"], json!([]));
    let only = diff["only_one"].as_array().unwrap();
    assert!(only.contains(&"open: header → snapshot".into()), "{diff}");
    let ran = dir.run("corpus diff hostile one --target hostile");
    let ran = ran.has(&format!("\nonly hostile: {}\n", only.len()));
    assert!(ran.out.ends_with("\nonly one: 0\n"), "{ran:?}");
}

#[test]
fn a_path_that_is_no_folder_is_an_error() {
    let dir = Folder::of([("file", b"")]);
    for (name, what) in [("nothing", "No such file"), ("file", "Not a directory")] {
        dir.run(&["corpus", "show", name]).fails(2, &format!("{name}: {what}"));
    }
    fs::create_dir(dir.join("empty")).unwrap();
    let empty = corpus_json(&dir, "show empty");
    assert_eq!((empty["inputs"].as_u64(), empty["edges"]["emit"].as_u64()), (Some(0), Some(0)));
}

#[test]
fn the_state_of_a_campaign_has_parents() {
    let dir = Folder::new();
    let no_state = "./state/map_extents/job-0.json: No such file or directory (os error 2)";
    assert_eq!(dir.run("corpus campaign").exits(2).line(), no_state);
    // It creates nothing.
    assert_eq!(dir.names().len(), 0);
    dir.run("fuzz --runs 2000 --jobs 1 --dir campaign").ok();
    let printed = corpus_json(&dir, "campaign campaign --most 100000");
    let job = &printed["jobs"][0];
    assert_eq!((&job["runs"], printed["jobs"].as_array().unwrap().len()), (&2000.into(), 1));
    let parents = job["parents"].as_array().unwrap();
    let files: BTreeSet<String> =
        names_in(&dir.join("campaign/corpus/map_extents")).into_iter().collect();
    // If a shorter input replaces one, the file of the longer one stays.
    assert!(parents.iter().all(|one| files.contains(one["input"].as_str().unwrap())));
    assert!(parents.len() > files.len() * 9 / 10, "{} of {}", parents.len(), files.len());
    let depth = |one: &Value| one["depth"].as_u64().unwrap();
    let ancestors: BTreeMap<&str, u64> =
        parents.iter().map(|one| (one["input"].as_str().unwrap(), depth(one))).collect();
    let mut without_parent = 0;
    for one in parents {
        match one["parent"].as_str() {
            Some(parent) => assert_eq!(depth(one), ancestors[parent] + 1, "{one}"),
            None => without_parent += 1,
        }
    }
    assert_eq!(job["without_parent"], without_parent);
    let sum = |what: &str| -> f64 { parents.iter().map(|one| one[what].as_f64().unwrap()).sum() };
    assert!((sum("chosen_percent") - 100.0).abs() < 0.001);
    assert_eq!(sum("children"), 2000.0);
    let first = parents[0]["input"].as_str().unwrap();
    dir.run("corpus campaign campaign --most 1").has(first);
}

/// Returns the commands in the indented blocks, except the lines that begin with `$ `.
fn commands(document: &str) -> Vec<&str> {
    let lines = document.lines().filter_map(|line| line.strip_prefix("    "));
    lines.map(str::trim).filter(|line| line.starts_with("qcowfuzz ")).collect()
}

#[test]
fn every_command_works() {
    let dir = Folder::new();
    for folder in ["bin", "mnt/shared", "artifacts/map_extents", "corpus/map_extents", "days"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    std::os::unix::fs::symlink(OURS, dir.join("bin/qcowfuzz")).unwrap();
    for seed in ["zero_kinds", "chain_raw"] {
        let from = support::corpus("map_extents").join(seed);
        fs::copy(from, dir.join("corpus/map_extents").join(seed)).unwrap();
    }
    fs::create_dir(dir.join("days/2026-11-21")).unwrap();
    let path = format!("{}:{}", dir.join("bin").display(), std::env::var("PATH").unwrap());
    let mut verbs = Vec::new();
    for command in commands(include_str!("../../docs/campaigns.md")) {
        let here = command.replace("/mnt/", "mnt/");
        let here = match here.split_once(" --seconds ") {
            Some((before, _)) => format!("{before} --runs 100"),
            None if here.starts_with("qcowfuzz fuzz") => format!("{here} --runs 100"),
            None => here,
        };
        let mut shell = dir.command("sh", &["-c", &here]);
        Ran::of(shell.env("PATH", &path).env("HOME", dir.join("home"))).ok();
        verbs.push(here.split(' ').skip(1).take(2).collect::<Vec<_>>().join(" "));
    }
    for verb in
        ["fuzz --dir", "corpus merge", "corpus show", "corpus diff", "triage artifacts/map_extents"]
    {
        assert!(verbs.iter().any(|it| it == verb), "{verb} is not among {verbs:?}");
    }
    assert!(dir.join("home/campaign/state/map_extents").exists());
    assert!(dir.join("merged/zero_kinds").exists());
    assert!(dir.join("days/2026-11-22/chain_raw").exists());
}
