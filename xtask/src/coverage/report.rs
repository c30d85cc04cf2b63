//! Judges a measurement of lines: groups of files, explanations of unreached lines, and what is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::{Result, ensure};
use regex::Regex;

use crate::coverage::explained::parse;
use crate::measured::{head, row};
use crate::process::root;

/// The folder of each group.
const GROUPS: [(&str, &str); 3] = [
    ("walker", "crates/walker/src/"),
    ("builder", "src/images/"),
    ("recount", "src/harness/oracles/qcow2/"),
];
const LEAST_PERCENT: f64 = 99.0;
/// The kinds of explanations: of code that only others run, and that only a run that finds a bug does, whose lines do
/// not count; of lines that need an input too large for a seed, and that no input reaches, which count as unreached.
const KINDS: [&str; 4] = ["elsewhere", "bug", "large", "never"];

/// Returns the text of a file by its path below the root.
type Read<'a> = &'a dyn Fn(&str) -> Result<String>;
type Ranges = Vec<RangeInclusive<usize>>;

fn group_of(file: &str) -> Option<&'static str> {
    let group = GROUPS.iter().find(|(_, folder)| file.starts_with(folder));
    group.map(|it| it.0)
}

/// Returns the lines of each function with this name.
fn functions(lines: &[&str], name: &str) -> Result<Ranges> {
    let head = Regex::new(&format!(r"^( *)(?:pub(?:\([^)]*\))? |const |unsafe )*fn {name}\b"))?;
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(indent) = head.captures(line).map(|it| it[1].len()) else { continue };
        let is_end =
            |it: &str| it.len() - it.trim_start().len() == indent && it.trim_end().ends_with('}');
        let length = lines[index..].iter().position(|it| is_end(it)).unwrap_or(0);
        found.push(index + 1..=index + 1 + length);
    }
    Ok(found)
}

/// Returns the lines that a name without its file means, and whether it is the text of a line: then the name stands for
/// the whole run of unreached lines around each.
fn named(source: &str, name: &str) -> Result<(Ranges, bool)> {
    let lines: Vec<_> = source.lines().collect();
    let (mut scope, mut text) = (vec![1..=lines.len()], name);
    if let Some(function) = Regex::new(r"^fn (\w+)(?:: |$)")?.captures(name) {
        scope = functions(&lines, &function[1])?;
        text = &name[function[0].len()..];
    }
    if text.is_empty() {
        return Ok((scope, false));
    }
    let same = scope.into_iter().flatten().filter(|line| lines[line - 1].trim() == text);
    Ok((same.map(|line| line..=line).collect(), true))
}

/// The lines of a file, and how often each was reached.
type Measured = BTreeMap<usize, u64>;

/// Returns the unreached lines that a name explains. A reached line in a file or a function shows that its explanation
/// is wrong.
fn explained_lines(file: &Measured, (ranges, is_text): &(Ranges, bool)) -> Vec<usize> {
    let lines: Vec<_> = file.iter().map(|(line, count)| (*line, *count)).collect();
    if *is_text {
        let is_named = |line| ranges.iter().any(|it| it.contains(line));
        let runs = lines.chunk_by(|a, b| (a.1 == 0) == (b.1 == 0));
        let runs = runs.filter(|run| run[0].1 == 0 && run.iter().any(|(line, _)| is_named(line)));
        return runs.flatten().map(|it| it.0).collect();
    }
    let inside = ranges.iter().map(|it| file.range(it.clone()));
    let unreached = inside.filter(|it| it.clone().all(|(_, count)| *count == 0));
    unreached.flatten().map(|it| *it.0).collect()
}

/// Reads a measurement: the files of all groups.
fn measured(lcov: &str) -> Result<BTreeMap<String, Measured>> {
    let prefix = format!("{}/", root().display());
    let (mut files, mut name) = (BTreeMap::<String, Measured>::new(), None);
    for (kind, value) in lcov.lines().filter_map(|line| line.split_once(':')) {
        if kind == "SF" {
            let path = value.strip_prefix(&prefix).unwrap_or(value).to_owned();
            name = group_of(&path).map(|_| path);
        } else if let ("DA", Some(name), Some((line, count))) = (kind, &name, value.split_once(','))
        {
            let lines = files.entry(name.clone()).or_default();
            *lines.entry(line.parse()?).or_default() += count.parse::<u64>()?;
        }
    }
    Ok(files)
}

/// Judges a measurement. Returns the table of the groups, and what is wrong: lines without an explanation,
/// explanations that are out of date, and groups of which too little is reached.
pub fn report(lcov: &str, explained: &str, read: Read) -> Result<(String, Vec<String>)> {
    let (files, mut wrong, mut seen) = (measured(lcov)?, Vec::new(), BTreeSet::new());
    // The kind of the explanation of each unreached line.
    let mut reasons = BTreeMap::<String, BTreeMap<usize, &str>>::new();
    for explanation in parse(explained, &KINDS)? {
        for name in explanation.names {
            let (file, inside) = name.split_once(": ").unwrap_or((&name, ""));
            let mut judge = || {
                ensure!(group_of(file).is_some(), "the file is in no group");
                let lines = named(&read(file)?, inside)?;
                ensure!(!lines.0.is_empty(), "there is no such line");
                ensure!(seen.insert(name.clone()), "explained twice");
                let lines = files.get(file).map(|it| explained_lines(it, &lines));
                Ok(lines.unwrap_or_default())
            };
            let lines = judge();
            match &lines {
                Ok(lines) if lines.is_empty() => wrong.push(format!("{name}: {REACHED}")),
                Ok(_) => {}
                Err(error) => wrong.push(format!("{name}: {error}")),
            }
            let known = reasons.entry(file.to_owned()).or_default();
            let lines = lines.unwrap_or_default().into_iter();
            lines.for_each(|line| _ = known.entry(line).or_insert(explanation.kind));
        }
    }
    let mut table = head(&["group", "lines", "elsewhere, bug", "counted", "reached", "%"]);
    for (group, folder) in GROUPS {
        let (mut all, mut outside, mut reached) = (0, 0, 0);
        for (file, lines) in files.iter().filter(|it| it.0.starts_with(folder)) {
            let reasons = reasons.entry(file.clone()).or_default();
            all += lines.len();
            outside += reasons.values().filter(|it| KINDS[..2].contains(it)).count();
            reached += lines.values().filter(|it| **it > 0).count();
            let source = read(file)?;
            for (line, _) in lines.iter().filter(|it| *it.1 == 0 && !reasons.contains_key(it.0)) {
                let text = source.lines().nth(line - 1).unwrap_or_default().trim();
                wrong.push(format!("{file}:{line}: {text}: neither reached nor explained"));
            }
        }
        let counted = all - outside;
        let percent = if counted == 0 { 100.0 } else { 100.0 * reached as f64 / counted as f64 };
        if percent < LEAST_PERCENT {
            wrong.push(format!("{group}: {percent:.2}% reached, expected {LEAST_PERCENT}%"));
        }
        let numbers = [all, outside, counted, reached].map(|it| it.to_string());
        table += &row(&[&[group.to_owned()][..], &numbers, &[format!("{percent:.2}%")]].concat());
    }
    Ok((table, wrong))
}

/// The fault of an explanation of lines that runs reach.
const REACHED: &str = "explained, but reached, in part or as a whole";

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "crates/walker/src/walkers/planted.rs";

    /// Returns what is wrong with a measurement in which each line is reached but these.
    fn wrong(explained: &str, unreached: &[usize]) -> Vec<String> {
        let body: String = (8..400).map(|number| format!("    line{number}();\n")).collect();
        let source = format!(
            "fn one() {{\n    first();\n}}\nfn two() {{\n    second();\n    third();\n}}\n\
             fn three() {{\n{body}}}\nfn two() {{\n    second();\n}}\n"
        );
        let read = |file: &str| match file == PATH {
            true => Ok(source.clone()),
            false => anyhow::bail!("no file"),
        };
        let line = |it| format!("DA:{it},{}\n", u8::from(!unreached.contains(&it)));
        let lines: String = (1..405).map(line).collect();
        let lcov = format!("SF:{}/{PATH}\n{lines}", root().display());
        report(&lcov, &explained.replace("PATH", PATH), &read).unwrap().1
    }

    #[test]
    fn each_error_comes_out() {
        let two = [4, 5, 6, 7];
        let left = "second();: neither reached nor explained";
        let cases: [(&str, &[usize], Option<&str>); 16] = [
            ("", &[], None),
            ("", &[5], Some(left)),
            ("never: w\n    PATH: second();", &[5], None),
            // A line names its run.
            ("never: w\n    PATH: third();", &[5, 6], None),
            ("never: w\n    PATH: first();", &[2, 5], Some(left)),
            ("never: w\n    PATH: fn two: second();", &[5], None),
            ("never: w\n    PATH: fn one: second();", &[5], Some("there is no such line")),
            ("elsewhere: w\n    PATH: fn two", &two, None),
            ("elsewhere: w\n    PATH: fn two", &[5], Some("explained, but reached")),
            // One of two functions.
            ("elsewhere: w\n    PATH: fn two", &[4, 5, 6, 7, 402, 403, 404], None),
            ("never: w\n    PATH: second();", &[], Some("explained, but reached")),
            ("never: w\n    PATH: fourth();", &[], Some("there is no such line")),
            ("never: w\n    crates/walker/src/walkers/none.rs", &[], Some("no file")),
            ("never: w\n    PATH: second();\n    PATH: second();", &[5], Some("explained twice")),
            (
                "never: w\n    PATH: fn two\n    PATH: first();",
                &[2, 4, 5, 6, 7],
                Some("expected 99%"),
            ),
            // Lines outside do not count.
            ("elsewhere: w\n    PATH: fn two\n    PATH: first();", &[2, 4, 5, 6, 7], None),
        ];
        for (explained, unreached, expected) in cases {
            let found = wrong(explained, unreached);
            match expected {
                Some(text) => {
                    assert!(found.iter().any(|it| it.contains(text)), "{explained}: {found:?}")
                }
                None => assert!(found.is_empty(), "{explained}: {found:?}"),
            }
        }
        let fault = parse("planted: w", &KINDS).unwrap_err().to_string();
        assert!(fault.contains("line 1: expected a heading"), "{fault}");
    }

    #[test]
    fn the_explanations_name_what_exists() {
        let path = |file: &str| root().join(file);
        let read = |file: &str| Ok(std::fs::read_to_string(path(file))?);
        let explained = read("xtask/coverage.explained").unwrap();
        let (_, mut wrong) = report("", &explained, &read).unwrap();
        assert!(wrong.len() > 10);
        // Without a measurement, no line is unreached.
        wrong.retain(|fault| !fault.ends_with(REACHED));
        assert_eq!(wrong, [""; 0]);
    }
}
