//! Checks of the manifests, of the documentation and of the workflows.

pub mod checks_fail;
pub mod crash_states;
pub mod fuzzing;
pub mod new_engine;
pub mod package;
pub mod page;
pub mod planted_runs;
pub mod shared_corpus;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{
    captured, command, files_below, output, python, read, replace, root, run, target_folder,
};

/// The list of all public items.
const ITEMS: &str = "tests/public-items.txt";
/// The manifests whose dependencies are checked.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// Runs `cargo deny` for the library and for the fuzz targets. `deny.toml` contains the rules.
pub fn dependencies(advisories: bool) -> Result<()> {
    // An exception that nothing needs any more is an error, but fuzz/ does not need all of the library's.
    for (manifest, unmatched) in MANIFESTS.into_iter().zip(["-D", "-A"]) {
        let mut deny = command("cargo");
        deny.args(["deny", "--locked", "--config", "deny.toml", "--manifest-path", manifest]);
        deny.args(["check", unmatched, "unmatched-skip", "licenses", "bans", "sources"]);
        run(deny.args(advisories.then_some("advisories")))?;
    }
    Ok(())
}

/// Returns the packages of a manifest with their dependencies, as cargo describes them.
fn packages(manifest: &str) -> Result<Vec<Value>> {
    let arguments = ["metadata", "--locked", "--format-version", "1", "--manifest-path", manifest];
    let mut metadata: Value = serde_json::from_str(&output(command("cargo").args(arguments))?)?;
    Ok(serde_json::from_value(metadata["packages"].take())?)
}

/// Returns the package of the library.
fn library() -> Result<Value> {
    let found = packages(MANIFESTS[0])?.into_iter().find(|it| it["name"] == "qcowfuzz");
    found.context("no package qcowfuzz")
}

/// Checks that no locked dependency needs a newer Rust than `Cargo.toml` states. Clippy's `incompatible_msrv` finds
/// newer items of the standard library. With `build`, also builds library, command and examples with that version.
pub fn msrv(build: bool) -> Result<()> {
    let library = library()?;
    let stated = library["rust_version"].as_str().context("no rust-version")?;
    let mut wrong = Vec::new();
    for manifest in MANIFESTS {
        let packages = packages(manifest)?;
        let stating = packages.iter().filter(|it| it["rust_version"].is_string()).count();
        println!("{manifest}: {stating} packages state a Rust version");
        let newer = packages.iter().filter_map(|it| newer(it, stated));
        wrong.extend(newer.map(|it| format!("{manifest}: {it}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    if build {
        let mut installed = command("rustup");
        if !captured(installed.args(["run", stated, "cargo", "--version"]))?.0.success() {
            run(command("rustup").args(["toolchain", "install", stated, "--profile", "minimal"]))?;
        }
        for what in ["--lib --bins --examples", "--lib --no-default-features"] {
            let cargo = &mut command("cargo");
            run(cargo.args([&format!("+{stated}"), "build", "--locked"]).args(what.split(' ')))?;
        }
    }
    Ok(())
}

/// Describes a package that needs a newer version of Rust, or one of ours that states another version.
fn newer(package: &Value, stated: &str) -> Option<String> {
    let parsed = |text: &str| {
        let parts = text.split('.').map(|it| it.parse().unwrap_or(u32::MAX));
        parts.chain([0, 0]).take(3).collect::<Vec<_>>()
    };
    let (name, needed) = (&package["name"], package["rust_version"].as_str());
    if package["source"].is_null() && needed != Some(stated) {
        let needed = needed.unwrap_or("none");
        return Some(format!("{name} states rust-version {needed}, expected {stated}"));
    }
    let needed = needed.filter(|needed| parsed(needed) > parsed(stated))?;
    Some(format!("{name} needs Rust {needed}, expected at most {stated}"))
}

/// Builds the documentation twice, and fails on a warning: with private items, for developers of the project, and with
/// the features of docs.rs, for users of the library. Then compares the list of public items, or writes it.
pub fn docs(write: bool) -> Result<()> {
    let library = library()?;
    let settings =
        library["metadata"]["docs"]["rs"].as_object().context("no settings of docs.rs")?;
    let is_known =
        settings.keys().eq(["all-features", "targets"]) && settings["all-features"] == true;
    ensure!(is_known, "docs.rs: expected all-features = true and targets, found {settings:?}");
    for what in ["--document-private-items", "--lib --all-features"] {
        let cargo = &mut command("cargo");
        cargo.args(["doc", "--locked", "--no-deps"]).args(what.split(' '));
        run(cargo.env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    let mut found = String::new();
    for (name, prefix) in [("qcowfuzz", ""), ("qcowfuzz_walker", "qcowfuzz_walker::")] {
        let page = fs::read_to_string(target_folder("").join("doc").join(name).join("all.html"))?;
        items(&page).iter().for_each(|item| found += &format!("{prefix}{item}\n"));
    }
    if write {
        return replace(&root().join(ITEMS), &found);
    }
    let listed = read(ITEMS)?;
    let [listed_lines, found_lines] =
        [&listed, &found].map(|it| it.lines().collect::<BTreeSet<_>>());
    listed_lines.difference(&found_lines).for_each(|it| eprintln!("listed, and not public: {it}"));
    found_lines.difference(&listed_lines).for_each(|it| eprintln!("public, and not listed: {it}"));
    ensure!(listed == found, "{ITEMS} differs from the public items; check-docs --write writes it");
    Ok(())
}

/// Reads the items of a crate from rustdoc's page of all items: `harness::engine::Engine (trait)`.
fn items(page: &str) -> BTreeSet<String> {
    let links = page.split("<li><a href=\"").skip(1);
    let item = |link: &str| {
        let path = link.split_once('"')?.0.strip_suffix(".html")?;
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let (kind, name) = file.split_once('.')?;
        let item = format!("{}::{name} ({kind})", folder.replace('/', "::"));
        Some(item.trim_start_matches("::").to_owned())
    };
    links.filter_map(item).collect()
}

/// Checks the workflows without GitHub: against the schema of workflows, with the linter zizmor (unpinned actions,
/// broad permissions, code from pull requests), and that `ci.yml` runs every step of `.ci/run`.
pub fn workflows() -> Result<()> {
    let programs = python("workflow-tools", &["check-jsonschema==0.39.0", "zizmor==1.32.0"])?;
    let files = files_below(&root().join(".github/workflows"))?;
    let schema = ["--builtin-schema", "vendor.github-workflows"];
    run(command(programs.join("check-jsonschema")).args(schema).args(files))?;
    let linter = ["-q", "--offline", "--pedantic", "--strict-collection", ".github/workflows"];
    run(command(programs.join("zizmor")).args(linter))?;
    let (script, workflow) = (read(".ci/run")?, read(".github/workflows/ci.yml")?);
    let missing = missing_steps(&script, &workflow).join("', '");
    ensure!(missing.is_empty(), "ci.yml: no job runs the step '{missing}' of .ci/run");
    Ok(())
}

/// Returns the steps of `.ci/run` that no job of `ci.yml` runs. The jobs install tools themselves.
fn missing_steps<'a>(script: &'a str, workflow: &'a str) -> Vec<&'a str> {
    let run = |line: &'a str| {
        let steps = line.split_once("steps: ").or_else(|| line.split_once("run: .ci/run "));
        steps.map_or("", |(_, steps)| steps).split(' ')
    };
    let mut done: BTreeSet<_> = workflow.lines().flat_map(run).collect();
    done.insert("tools");
    let steps = script.lines().filter_map(|line| line.strip_prefix("step ")?.split(' ').next());
    steps.filter(|name| !done.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_items_are_those_of_the_page() {
        let page = "<li><a href=\"a/b/struct.C.html\">a::b::C</a></li><li><a href=\"fn.d.html\">d</a></li>\
            <li><a href=\"#structs\">Structs</a></li>";
        assert_eq!(items(page).into_iter().collect::<Vec<_>>(), ["a::b::C (struct)", "d (fn)"]);
    }

    #[test]
    fn a_step_without_a_job_is_found() {
        let script = "step tools a\nstep one b\nstep two c\nstep three d\n";
        assert_eq!(
            missing_steps(script, "  - steps: one twofold\n    run: .ci/run three\n"),
            ["two"]
        );
    }

    #[test]
    fn newer_versions_are_found() {
        let package = |source: Value, needed: &str| {
            let package = serde_json::json!({ "source": source, "rust_version": needed });
            newer(&package, "1.89").is_some()
        };
        assert!(package("crates.io".into(), "1.90") && package("crates.io".into(), "1.89.1"));
        assert!(!package("crates.io".into(), "1.89.0") && !package("crates.io".into(), "1.9"));
        assert!(package(Value::Null, "1.88") && !package(Value::Null, "1.89"));
    }
}
