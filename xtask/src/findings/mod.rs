//! The pages about the bugs of implementations, which are data in `engines/findings/`, and single bugs at work.

mod causes;
mod data;
mod pages;

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::other_languages;
use crate::process::{command, files_below, quiet, read, replace, root, target_folder};

use causes::Causes;
use data::{Finding, Findings, Rules};

/// The folder of the findings.
const FOLDER: &str = "engines/findings";
/// The rules that damaged images break.
const RULES: &str = "engines/rules.toml";

/// Check that BUGS.md and docs/findings.md show the bugs in engines/findings/, or show a bug at work
#[derive(clap::Args)]
pub struct Arguments {
    /// Build the command of an implementation and show this finding, such as fstool/zstd_frames
    #[arg(value_name = "NAME/FINDING")]
    finding: Option<String>,
    /// Write the pages instead of comparing them
    #[arg(long, conflicts_with = "finding")]
    write: bool,
}

/// Compares the pages, writes them, or shows a finding.
pub fn run(arguments: &Arguments) -> Result<()> {
    let all = load()?;
    let rules: Rules = toml::from_str(&read(RULES)?).context(RULES)?;
    if let Some(name) = &arguments.finding {
        let found = all.iter().find_map(|it| {
            let finding = name.strip_prefix(&it.name)?.strip_prefix('/')?;
            Some((it, it.findings.iter().find(|it| it.name == finding)?))
        });
        let (of, finding) = found.with_context(|| {
            format!("found '{name}', expected NAME/FINDING of a file {FOLDER}/NAME.toml")
        })?;
        return show(of, finding, &rules);
    }
    check(&all, &rules)?;
    let causes = Causes::new(&all, &rules.rules);
    println!("{}", causes.figures());
    let pages = [("BUGS.md", pages::bugs(&causes)?), ("docs/findings.md", pages::matrix(&causes)?)];
    for (path, text) in pages {
        if arguments.write {
            replace(&root().join(path), &text)?;
        } else {
            let is_same = read(path)? == text;
            ensure!(is_same, "{path} is out of date; cargo xtask findings --write writes it");
        }
    }
    Ok(())
}

/// Reads the file of each implementation.
fn load() -> Result<Vec<Findings>> {
    let paths = files_below(&root().join(FOLDER))?;
    let file = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(path)?;
        Findings::parse(&name, &text).with_context(|| path.display().to_string())
    };
    paths.iter().map(file).collect()
}

/// Fails if a finding contradicts another one, or lacks a text.
fn check(all: &[Findings], rules: &Rules) -> Result<()> {
    let known: BTreeSet<_> = rules.rules.iter().map(|it| &*it.name).collect();
    ensure!(known.len() == rules.rules.len(), "{RULES}: a rule is there twice");
    let mut broken = BTreeSet::new();
    for of in all {
        let mut names = BTreeSet::new();
        for finding in &of.findings {
            let name = format!("{}/{}", of.name, finding.name);
            ensure!(names.insert(&finding.name), "{name} is there twice");
            match finding.rule() {
                Some(rule) => ensure!(known.contains(rule), "{name}: no rule '{rule}' in {RULES}"),
                None => ensure!(
                    finding.feature.is_some() && finding.reason.is_some(),
                    "{name}: no feature or reason"
                ),
            }
            broken.extend(finding.rule());
            let Some(first) = &finding.same_cause_as else { continue };
            let first = of.findings.iter().find(|it| it.name == *first);
            // The page shows the first finding of a cause.
            let is_first = first
                .is_some_and(|it| it.same_cause_as.is_none() && it.severity <= finding.severity);
            ensure!(is_first, "{name}: same_cause_as names no finding that is at least as bad");
        }
    }
    let unused: Vec<_> = known.difference(&broken).collect();
    ensure!(unused.is_empty(), "{RULES}: no finding breaks {unused:?}");
    Ok(())
}

/// Builds the command of an implementation, and prints the answers of the implementation and of qemu-img about the
/// image of a program.
fn show(of: &Findings, finding: &Finding, rules: &Rules) -> Result<()> {
    let is_behind_protocol = of.implementation.is_behind_protocol;
    if is_behind_protocol {
        other_languages::install(&of.name)?;
    }
    // Any command asks an implementation behind the line protocol.
    let binary = if is_behind_protocol { "fstool" } else { &of.name };
    let line = "build --locked --profile ci --manifest-path engines/Cargo.toml --bin";
    quiet(command("cargo").args(line.split(' ')).arg(binary))?;
    let folder = tempfile::tempdir()?;
    let [text, input, image] = ["program", "input", "image"].map(|it| folder.path().join(it));
    fs::write(&text, &finding.program)?;
    let mut engine = command(target_folder("engines").join("ci").join(binary));
    if is_behind_protocol {
        let path = root().join("engines/other/engine");
        engine.arg("--engine-command").arg(format!("'{}' {}", path.display(), of.name));
    }
    if let Some(script) = &finding.script {
        println!(
            "Without this project, the pattern of the last read is wrong, or the check finds an error:\n"
        );
        println!("qemu-img create -f qcow2 disk.qcow2 1M");
        println!("qemu-io -f qcow2 blkdebug::disk.qcow2 <<'EOF'\n{}EOF", script.trim_start());
        println!("qemu-img check disk.qcow2\n");
    }
    let tested = &of.implementation;
    println!("{} {}: {}", tested.title, tested.version, finding.shown());
    let rule = rules.rules.iter().find(|it| Some(&*it.name) == finding.rule());
    let reason = finding.reason.as_ref().or(rule.map(|it| &it.reason));
    println!("{}\n", reason.map_or("", |it| it));
    quiet(command(engine.get_program()).arg("asm").arg(&text).arg("-o").arg(&input))?;
    engine.args(["replay", "--target", finding.target()]).arg(&input);
    engine.arg("--dump-image").arg(&image).status()?;
    for verb in ["check", "map --output=json"] {
        println!("\nqemu-img {verb}:");
        command("qemu-img").args(verb.split(' ')).arg(&image).status()?;
    }
    Ok(())
}
