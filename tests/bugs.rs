//! The patches that plant bugs (`bugs/`, `bugs/hard/`). Each patch describes its bug and applies to the present code.
//! Beside it lies the smallest input that shows the bug; without the patch, that input shows nothing. `cargo xtask
//! bugs` builds each bug and checks the rest: the loops find it, or the differential campaign those of
//! `bugs/differential/`; and with `--smallest`, the smallest input shows it.

use test_support::prelude::*;

use qcowfuzz::findings::regression::Regression;

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

/// Returns the file that a patch changes, and the text before and after each hunk.
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

/// Returns the value of a line `name: value` above the first hunk.
fn field<'a>(patch: &'a str, name: &str) -> Option<&'a str> {
    let header = patch.lines().take_while(|line| !line.is_empty());
    header
        .filter_map(|line| line.split_once(": "))
        .find_map(|(it, value)| (it == name).then_some(value))
}

#[test]
fn every_patch_applies_to_the_code() {
    let folders = ["bugs", "bugs/hard", "bugs/deadly", "bugs/differential"];
    let all = folders.map(patches).concat();
    assert!(all.len() > 30);
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
fn every_patch_describes_its_bug() {
    for path in ["bugs", "bugs/hard", "bugs/differential"].map(patches).concat() {
        let patch = fs::read_to_string(&path).unwrap();
        for (line, field) in patch.lines().zip(["Class: ", "What: ", "Found as: "]) {
            assert!(line.len() > field.len() && line.starts_with(field), "{}", path.display());
        }
        // `cargo xtask bugs` would ignore a value that it does not know.
        let header = patch.lines().take_while(|line| !line.is_empty()).skip(3);
        for line in header {
            let known = [
                "Target: hostile",
                "Target: raw_image",
                "Loops: libfuzzer",
                "Needs: compare tracing",
            ];
            assert!(known.contains(&line), "{}: {line}", path.display());
        }
    }
}

#[test]
fn there_are_ten_hard_bugs_and_two_of_them_need_compare_tracing() {
    let all = patches("bugs/hard");
    let needing = all.iter().filter(|path| {
        field(&fs::read_to_string(path).unwrap(), "Needs") == Some("compare tracing")
    });
    assert_eq!((all.len(), needing.count()), (10, 2));
}

#[test]
fn every_bug_has_its_smallest_input() {
    for path in [patches("bugs"), patches("bugs/hard")].concat() {
        let patch = fs::read_to_string(&path).unwrap();
        let target = field(&patch, "Target").unwrap_or("map_extents");
        if target == "raw_image" {
            let input = fs::read(path.with_extension("bin")).unwrap();
            assert!(input.len() <= 512, "{}", path.display());
            TargetKind::RawImage
                .judging(Walker::default())
                .run(&input, Checks::AtCheckpoints)
                .unwrap_or_else(|found| panic!("{}: {}", path.display(), found.violation));
            continue;
        }
        // `tests/harness/regressions.rs` runs it.
        let text = fs::read_to_string(path.with_extension("txt")).unwrap();
        let regression = Regression::parse(&text);
        let regression = regression.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(regression.target.name(), target, "{}", path.display());
        let expected = field(&patch, "Found as").unwrap();
        let mut kinds = expected.split('|').filter(|kind| !kind.starts_with("panicked"));
        let fingerprint = &*regression.fingerprint;
        assert!(
            kinds.any(|kind| fingerprint.starts_with(kind)),
            "{}: {fingerprint}",
            path.display()
        );
    }
}
