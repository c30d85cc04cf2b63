//! The report of a measurement of coverage: a table, and the lines that are neither reached nor explained.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use anyhow::Result;
use regex::Regex;

use crate::coverage::explained::{Explanation, parse};
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

/// The tables, and what is wrong.
pub struct Report {
    /// The table of all files.
    pub files: String,
    /// The tables of the groups, and of the kinds of explanations.
    pub groups: String,
    /// Lines without an explanation, explanations that are out of date, and groups of which too little is reached.
    pub wrong: Vec<String>,
}

/// Returns the text of a file by its path below the root.
type Read<'a> = &'a dyn Fn(&str) -> Result<String>;

fn group_of(file: &str) -> Option<&'static str> {
    let group = GROUPS.iter().find(|(_, folder)| file.starts_with(folder));
    group.map(|it| it.0)
}

/// Returns the lines of each function with this name.
fn functions(lines: &[&str], name: &str) -> Result<Vec<RangeInclusive<usize>>> {
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

/// The meaning of a name without its file.
enum Named {
    /// The whole file, or functions.
    Pieces(Vec<RangeInclusive<usize>>),
    /// Each line with a text.
    Lines(Vec<usize>),
}

impl Named {
    fn find(source: &str, name: &str) -> Result<Self> {
        let lines: Vec<_> = source.lines().collect();
        let (mut scope, mut text) = (vec![1..=lines.len()], name);
        if let Some(function) = Regex::new(r"^fn (\w+)(?:: |$)")?.captures(name) {
            scope = functions(&lines, &function[1])?;
            text = &name[function[0].len()..];
        }
        if text.is_empty() {
            return Ok(Self::Pieces(scope));
        }
        let inside = scope.into_iter().flatten();
        Ok(Self::Lines(inside.filter(|line| lines[line - 1].trim() == text).collect()))
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Pieces(pieces) => pieces.is_empty(),
            Self::Lines(lines) => lines.is_empty(),
        }
    }
}

/// Splits `FILE: NAME`.
fn split(name: &str) -> (&str, &str) {
    name.split_once(": ").unwrap_or((name, ""))
}

/// Returns the names that mean no line, and those that occur twice.
fn wrong_names(found: &[Explanation], read: Read) -> Result<Vec<String>> {
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    for name in found.iter().flat_map(|it| &it.names) {
        let (file, inside) = split(name);
        let fault = match read(file) {
            Err(_) => "there is no such file",
            Ok(_) if group_of(file).is_none() => "the file is in no group",
            Ok(source) if Named::find(&source, inside)?.is_empty() => "there is no such line",
            Ok(_) if !seen.insert(name) => "explained twice",
            Ok(_) => continue,
        };
        wrong.push(format!("{name}: {fault}"));
    }
    Ok(wrong)
}

/// The lines of a file, and how often each was reached.
#[derive(Default)]
struct Measured(BTreeMap<usize, u64>);

impl Measured {
    /// Returns the runs of unreached lines, without a reached one between them.
    fn unreached(&self) -> Vec<BTreeSet<usize>> {
        let lines: Vec<_> = self.0.iter().collect();
        let runs = lines.chunk_by(|a, b| (*a.1 == 0) == (*b.1 == 0));
        runs.filter(|run| *run[0].1 == 0).map(|run| run.iter().map(|it| *it.0).collect()).collect()
    }

    /// Returns the unreached lines that a name explains. A reached line in a file or a function shows that its
    /// explanation is wrong.
    fn explained(&self, named: &Named) -> BTreeSet<usize> {
        match named {
            Named::Lines(lines) => {
                let runs = self.unreached().into_iter();
                runs.filter(|run| lines.iter().any(|it| run.contains(it))).flatten().collect()
            }
            Named::Pieces(pieces) => {
                let counted = pieces.iter().map(|it| self.0.range(it.clone()));
                let unreached = counted.filter(|it| it.clone().all(|(_, count)| *count == 0));
                unreached.flatten().map(|it| *it.0).collect()
            }
        }
    }
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
            let lines = &mut files.entry(name.clone()).or_default().0;
            *lines.entry(line.parse()?).or_default() += count.parse::<u64>()?;
        }
    }
    Ok(files)
}

/// The numbers of lines of a file or of a group: all, those that do not count, and those that were reached.
#[derive(Clone, Copy, Default)]
struct Numbers([usize; 3]);

impl Numbers {
    fn of(file: &Measured, outside: usize) -> Self {
        Self([file.0.len(), outside, file.0.values().filter(|it| **it > 0).count()])
    }

    /// Returns the reached lines in percent of those that the targets can run without finding a bug.
    fn percent(self) -> f64 {
        let [all, outside, reached] = self.0;
        if all == outside { 100.0 } else { 100.0 * reached as f64 / (all - outside) as f64 }
    }

    fn row(self, name: &str) -> String {
        let [all, outside, reached] = self.0;
        let numbers = [all, outside, all - outside, reached].map(|it| it.to_string());
        row(&[&[name.to_owned()][..], &numbers, &[format!("{:.2}%", self.percent())]].concat())
    }
}

/// Judges a measurement.
pub fn report(lcov: &str, explained: &str, read: Read) -> Result<Report> {
    let explanations = parse(explained, &KINDS)?;
    let mut wrong = wrong_names(&explanations, read)?;
    let files = measured(lcov)?;
    // The kind of the explanation of each unreached line.
    let mut reasons = BTreeMap::<&str, BTreeMap<usize, &str>>::new();
    for (name, kind) in
        explanations.iter().flat_map(|it| it.names.iter().map(|name| (name, it.kind)))
    {
        let (file, inside) = split(name);
        let Ok(source) = read(file) else { continue };
        let named = Named::find(&source, inside)?;
        let lines = files.get(file).map(|it| it.explained(&named)).unwrap_or_default();
        if lines.is_empty() && !named.is_empty() {
            wrong.push(format!("{name}: explained, but reached, in part or as a whole"));
        }
        let known = reasons.entry(file).or_default();
        lines.into_iter().for_each(|line| _ = known.entry(line).or_insert(kind));
    }
    let titles = |name| head(&[name, "lines", "elsewhere, bug", "counted", "reached", "%"]);
    let (mut table, mut groups) = (titles("file"), GROUPS.map(|it| (it.0, Numbers::default())));
    for (file, measured) in &files {
        let reasons = reasons.entry(file).or_default();
        let outside = reasons.values().filter(|it| KINDS[..2].contains(it)).count();
        let numbers = Numbers::of(measured, outside);
        table += &numbers.row(file);
        for (_, sum) in groups.iter_mut().filter(|it| group_of(file) == Some(it.0)) {
            sum.0.iter_mut().zip(numbers.0).for_each(|(sum, it)| *sum += it);
        }
        let source = read(file)?;
        let unreached = measured.unreached().into_iter().flatten();
        for line in unreached.filter(|it| !reasons.contains_key(it)) {
            let text = source.lines().nth(line - 1).unwrap_or_default().trim();
            wrong.push(format!("{file}:{line}: {text}: neither reached nor explained"));
        }
    }
    for (group, numbers) in &groups {
        let percent = numbers.percent();
        if percent < LEAST_PERCENT {
            let expected = format!("expected {LEAST_PERCENT}%");
            wrong.push(format!("{group}: {percent:.2}% of the lines reached, {expected}"));
        }
    }
    let sums: String = groups.iter().map(|(group, numbers)| numbers.row(group)).collect();
    let mut kinds = String::new();
    for kind in KINDS {
        let lines = reasons.values().flat_map(|it| it.values()).filter(|it| **it == kind).count();
        let counted = if KINDS[..2].contains(&kind) { "no" } else { "as unreached" };
        kinds += &row(&[kind, &lines.to_string(), counted]);
    }
    let kinds = head(&["explanation of unreached lines", "lines", "counted"]) + &kinds;
    Ok(Report { files: table, groups: format!("{}{sums}\n{kinds}", titles("group")), wrong })
}

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
        report(&lcov, &explained.replace("PATH", PATH), &read).unwrap().wrong
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
            ("never: w\n    crates/walker/src/walkers/none.rs", &[], Some("there is no such file")),
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
        let found = parse(&read("xtask/coverage.explained").unwrap(), &KINDS).unwrap();
        assert!(found.len() > 10);
        assert_eq!(wrong_names(&found, &read).unwrap(), [""; 0]);
    }
}
