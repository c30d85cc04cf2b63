//! The bugs that are to be planted (`bugs/`): each says what it is, and fits the code as it is now. That both loops
//! find them is proved by `scripts/bugs`.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn patches(folder: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut patches: Vec<_> =
        all.filter(|path| path.extension().is_some_and(|it| it == "patch")).collect();
    patches.sort();
    patches
}

/// The file that a patch changes, and of each hunk what is there before and after.
fn hunks(patch: &str) -> (PathBuf, Vec<[String; 2]>) {
    let (mut file, mut hunks) = (None, Vec::new());
    for line in patch.lines() {
        if let Some(path) = line.strip_prefix("--- a/") {
            assert!(file.replace(root().join(path)).is_none(), "a patch is of one file");
        } else if line.starts_with("@@ ") {
            hunks.push([String::new(), String::new()]);
        } else if let (Some([before, after]), Some(kind)) = (hunks.last_mut(), line.get(..1)) {
            let text = format!("{}\n", &line[1..]);
            if kind != "+" {
                before.push_str(&text);
            }
            if kind != "-" {
                after.push_str(&text);
            }
        }
    }
    (file.unwrap(), hunks)
}

#[test]
fn every_bug_fits_the_code() {
    let all = [patches("bugs"), patches("bugs/deadly")].concat();
    assert!(all.len() > 10);
    for path in all {
        let patch = fs::read_to_string(&path).unwrap();
        let (file, hunks) = hunks(&patch);
        let code = fs::read_to_string(file).unwrap();
        assert!(!hunks.is_empty(), "{}", path.display());
        for [before, after] in hunks {
            assert_eq!(code.matches(&before).count(), 1, "{}:\n{before}", path.display());
            assert_ne!(before, after);
        }
    }
}

#[test]
fn every_bug_says_what_it_is() {
    for path in patches("bugs") {
        let patch = fs::read_to_string(&path).unwrap();
        for (line, field) in patch.lines().zip(["Class: ", "What: ", "Found as: "]) {
            assert!(line.len() > field.len() && line.starts_with(field), "{}", path.display());
        }
    }
}
