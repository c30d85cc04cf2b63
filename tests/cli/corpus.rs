//! `corpus`: the coverage of the committed seeds, the difference of two corpora, and a smallest sufficient set of
//! inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{error_line, qcowfuzz, text};

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
    let never = ["file reads", "file writes", "accesses per request"];
    assert_eq!(*vitals, serde_json::json!(never));
    // Only programs of `hostile` have attacks.
    let never = printed["never_happened"]["events"].as_array().unwrap();
    assert!(never.contains(&"attacked".into()), "{printed}");
    // The output names an edge of the walker together with its kind of walk.
    let printed = json(dir.path(), &["show", "map_extents", "--rarest", "400"]);
    for edge in printed["rarest_edges"].as_array().unwrap() {
        let walks = edge["edge"].as_str().unwrap().starts_with("walk ");
        assert_eq!(edge["walk"].is_string(), walks, "{edge}");
    }
    let walks: Vec<_> = printed["rarest_edges"].as_array().unwrap().iter().collect();
    let has = |part: &str| {
        walks.iter().any(|edge| edge["walk"].as_str().is_some_and(|walk| walk.ends_with(part)))
    };
    assert!(has("the whole disk") && has("nothing"), "{walks:?}");
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
fn the_state_of_a_campaign_has_parents_and_mutations() {
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
    let sum = |what: &str, list: &str| -> f64 {
        job[list].as_array().unwrap().iter().map(|one| one[what].as_f64().unwrap()).sum()
    };
    for list in ["parents", "mutations"] {
        assert!((sum("chosen_percent", list) - 100.0).abs() < 0.001, "{list}");
    }
    assert_eq!(sum("children", "parents"), 2000.0);
    assert!(sum("kept", "mutations") >= sum("kept", "parents"), "{job}");
    let text_form = qcowfuzz(dir.path(), &["corpus", "campaign", "campaign", "--most", "1"]);
    let names = parents[0]["input"].as_str().unwrap();
    assert!(text(&text_form.stdout).contains(names), "{text_form:?}");
}
