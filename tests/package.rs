//! The packages that `cargo package` makes. That of the library contains all of its source, the example engine, the
//! pages and the licences; that of the walker contains its source and the licences; neither contains anything else.
//! `cargo xtask check-package` builds and tests them.

use std::path::Component;
use test_support::prelude::*;

/// The files beside `src/` and `docs/`. Cargo adds the last three itself.
const SINGLE: [&str; 12] = [
    "BUGS.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
    "SECURITY.md",
    "examples/command.rs",
    "examples/engine.rs",
    "Cargo.toml.orig",
    ".cargo_vcs_info.json",
];

/// A folder of measurements. The package does not contain it, but pages may link to it.
const RESULTS: &str = "docs/results";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the files below a folder of the repository, by their paths from its root.
fn below(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(root()).unwrap().display().to_string()),
            }
        }
    }
    found
}

/// The folder of the walker, which is a package of its own. Pages link to its source.
const WALKER: &str = "crates/walker";

/// The files beside the source in the package of the walker. Cargo adds the last two itself.
const SINGLE_OF_WALKER: [&str; 6] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "Cargo.toml.orig",
    ".cargo_vcs_info.json",
];

/// Returns the files that the package of the walker should contain.
fn expected_of_walker() -> BTreeSet<String> {
    let source = below(&format!("{WALKER}/src"));
    let in_package = |path: String| path.trim_start_matches(WALKER)[1..].to_string();
    let single = SINGLE_OF_WALKER.iter().map(ToString::to_string);
    source.into_iter().map(in_package).chain(single).collect()
}

/// Returns the files that the package of the library should contain.
fn expected() -> BTreeSet<String> {
    let pages = below("docs").into_iter().filter(|path| !path.starts_with(RESULTS));
    let single = SINGLE.iter().map(ToString::to_string);
    let texts = below("corpus/text").into_iter().filter(|path| path.ends_with(".txt"));
    below("src").into_iter().chain(pages).chain(texts).chain(single).collect()
}

/// Returns the files of a package that Cargo packs.
fn packed(package: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    let output = cargo
        .args(["package", "--list", "--allow-dirty", "--locked", "-p", package])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

/// Returns the differences between the packed files and the expected ones.
fn faults(packed: &BTreeSet<String>, expected: &BTreeSet<String>) -> Vec<String> {
    let extra = packed.difference(expected).map(|path| format!("{path}: packed, expected not"));
    let missing = expected.difference(packed).map(|path| format!("{path}: expected, not packed"));
    extra.chain(missing).collect()
}

/// Returns the target of a link as a path from the root: `../src/base/limits.rs` in `docs/crash.md` is
/// `src/base/limits.rs`.
fn target(page: &str, link: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.display().to_string()
}

/// Returns the links of a page that lead to no file of the package, nor to the source of the walker. Ignores links to
/// other sites and within the page.
fn broken(packed: &BTreeSet<String>, page: &str, text: &str) -> Vec<String> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files =
        links.filter(|link| !link.contains("://")).filter_map(|link| link.split('#').next());
    let broken = files.filter(|file| {
        let target = target(page, file);
        let is_elsewhere = [RESULTS, WALKER].iter().any(|folder| target.starts_with(folder));
        !file.is_empty() && !is_elsewhere && !packed.contains(&target)
    });
    broken.map(|file| format!("{page}: links {file}, which is not packed")).collect()
}

#[test]
fn the_packages_are_source_example_pages_and_licences() {
    for (package, expected) in [("qcowfuzz", expected()), ("qcowfuzz-walker", expected_of_walker())]
    {
        let faults = faults(&packed(package), &expected);
        assert!(faults.is_empty(), "{package}: {}", faults.join("\n"));
    }
}

#[test]
fn pages_link_to_files_of_the_package() {
    let packed = packed("qcowfuzz");
    let pages: Vec<_> = packed.iter().filter(|path| path.ends_with(".md")).collect();
    assert!(pages.len() > 8, "{pages:?}");
    let text = |page: &str| fs::read_to_string(root().join(page)).unwrap();
    let broken: Vec<_> = pages.iter().flat_map(|page| broken(&packed, page, &text(page))).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn faults_of_a_package_are_found() {
    let set = |paths: &[&str]| paths.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let expected = set(&["README.md", "docs/crash.md", "src/base/limits.rs"]);
    assert!(faults(&expected, &expected).is_empty());
    let packed = set(&["README.md", "corpus/map_extents/zero_kinds", "src/base/limits.rs"]);
    assert_eq!(
        faults(&packed, &expected),
        [
            "corpus/map_extents/zero_kinds: packed, expected not",
            "docs/crash.md: expected, not packed"
        ]
    );
    let text =
        "[a](docs/crash.md#two) [b](src/base/limits.rs) [c](#here) [d](https://qemu.org/docs)";
    assert!(broken(&expected, "README.md", text).is_empty());
    assert_eq!(
        broken(&packed, "README.md", text),
        ["README.md: links docs/crash.md, which is not packed"]
    );
    assert!(broken(&packed, "docs/crash.md", "[limits](../src/base/limits.rs)").is_empty());
    assert_eq!(broken(&packed, "docs/crash.md", "[limits](src/base/limits.rs)").len(), 1);
    assert!(broken(&packed, "docs/crash.md", "[tables](results) [a](results/a.md)").is_empty());
}
