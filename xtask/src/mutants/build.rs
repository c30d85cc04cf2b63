//! Builds mutants: all at once, where each function gets one body for each of its mutants and an environment variable
//! selects the mutant, and one by one what cannot be built so (constants, functions that return an opaque type).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use serde_json::Value;

use crate::mutants::list::Mutant;
use crate::process::read;
use crate::tree::{Changes, Tree};

/// The variable that selects a mutant; 0 is none.
pub const SELECT: &str = "QCOWFUZZ_MUTANT";
/// The crate alone is optimized a little. Debug assertions are off, as in a release build, so that an oracle has to
/// find a mutant.
const PROFILE: [&str; 4] = [
    "opt-level=1",
    "debug-assertions=false",
    "overflow-checks=false",
    "debug=\"line-tables-only\"",
];
/// The crate reads the number once.
const SWITCH: &str = r#"
/// The number of the mutant that runs; 0 for none.
pub(crate) fn mutant() -> u32 {
    static NUMBER: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        std::env::var("QCOWFUZZ_MUTANT").ok().and_then(|it| it.parse().ok()).unwrap_or(0)
    });
    *NUMBER
}
"#;

/// Mutants by their numbers.
pub type Mutants = BTreeMap<usize, Mutant>;

fn replaced(text: &str, range: Range<usize>, replacement: &str) -> String {
    [&text[..range.start], replacement, &text[range.end..]].concat()
}

/// Returns a body that has the same type as the others of its function, whose head may leave the type open.
fn of_one_type(head: &str, body: &str) -> String {
    match head.contains("-> impl Iterator") {
        false => body.to_owned(),
        true => format!(
            "{{ let bodies_of_one_type: Box<dyn Iterator<Item = _> + '_> = Box::new({body}); bodies_of_one_type }}"
        ),
    }
}

/// Returns a file's text in which each function has a body for each of its mutants, and which mutant each line is of.
fn switched(text: &str, mutants: &[(usize, &Mutant)]) -> Result<(String, Vec<(usize, usize)>)> {
    let mut by_function = BTreeMap::<(usize, usize), Vec<_>>::new();
    for (number, mutant) in mutants {
        let function = mutant.function.as_ref().context("a mutant without a function")?;
        by_function.entry((function.start, function.end)).or_default().push((number, *mutant));
    }
    let constant = Regex::new(r"\bconst fn\b")?;
    let (mut new, mut at, mut lines) = (String::new(), 0, Vec::new());
    for ((start, end), inside) in by_function {
        let brace = start + text[start..].find('{').context("a function without a body")?;
        // A number that the environment decides is none that the compiler knows.
        let head = constant.replace_all(&text[start..brace], "fn").into_owned();
        new += &format!("{}{head}{{ match crate::mutant() {{\n", &text[at..start]);
        for (number, mutant) in inside {
            let piece = &mutant.piece;
            let is_inside = brace < piece.start && piece.end < end;
            ensure!(is_inside, "{}: not in its function's body", mutant.name);
            let piece = piece.start - brace..piece.end - brace;
            let body = replaced(&text[brace..end], piece, &mutant.replacement);
            let first = new.matches('\n').count() + 1;
            new += &format!("{number} => {}\n", of_one_type(&head, &body));
            lines.extend((first..=new.matches('\n').count()).map(|line| (line, *number)));
        }
        new += &format!("_ => {}\n}} }}", of_one_type(&head, &text[brace..end]));
        at = end;
    }
    Ok((new + &text[at..], lines))
}

/// Collects the files and the lines that a message of the compiler names.
fn collect_places(of: &Value, places: &mut Vec<(String, usize)>) {
    if let (Some(file), Some(line)) = (of["file_name"].as_str(), of["line_start"].as_u64()) {
        places.push((file.to_owned(), line as usize));
    }
    for name in ["spans", "children"] {
        of[name].as_array().into_iter().flatten().for_each(|it| collect_places(it, places));
    }
}

/// The texts of the compiler's errors, and the places that they name.
type Errors = (String, Vec<(String, usize)>);

/// Builds the copy with changed files. Returns the command, or the errors.
fn build(tree: &Tree, changes: Changes) -> Result<std::result::Result<PathBuf, Errors>> {
    tree.write(changes)?;
    let mut cargo = tree.command("cargo");
    cargo.args(["build", "-q", "--example", "bounded", "--message-format=json"]);
    cargo.args(PROFILE.map(|it| format!("--config=profile.dev.package.qcowfuzz.{it}")));
    let done = cargo.output()?;
    if done.status.success() {
        return Ok(Ok(tree.target.join("debug/examples/bounded")));
    }
    let (mut texts, mut places) = (String::from_utf8_lossy(&done.stderr).into_owned(), Vec::new());
    for line in String::from_utf8_lossy(&done.stdout).lines() {
        let message = &serde_json::from_str::<Value>(line).unwrap_or_default()["message"];
        if message["level"] == "error" {
            texts += message["rendered"].as_str().unwrap_or_default();
            collect_places(message, &mut places);
        }
    }
    Ok(Err((texts, places)))
}

/// Returns the name of the function of a mutant that has one.
fn function_name(mutant: &Mutant) -> Result<Option<String>> {
    let Some(function) = &mutant.function else { return Ok(None) };
    let text = read(&mutant.file)?;
    Ok(Regex::new(r"\bfn (\w+)")?.captures(&text[function.start..]).map(|it| it[1].to_owned()))
}

/// Builds all mutants that can be built together. Returns the command, and the numbers of those that are not in it.
pub fn all_at_once(tree: &Tree, mutants: &Mutants) -> Result<(PathBuf, BTreeSet<usize>)> {
    let without = mutants.iter().filter(|it| it.1.function.is_none());
    let mut alone: BTreeSet<usize> = without.map(|it| *it.0).collect();
    // A constant calls constant functions only, and these cannot choose when they run.
    let constant = Regex::new(r"non-const \w+ `(?:\w+::)*(\w+)`")?;
    loop {
        let mut by_file = BTreeMap::<&str, Vec<_>>::new();
        for (number, mutant) in mutants.iter().filter(|it| !alone.contains(it.0)) {
            by_file.entry(&mutant.file).or_default().push((*number, mutant));
        }
        let mut changes = Changes::from([("src/lib.rs".to_owned(), read("src/lib.rs")? + SWITCH)]);
        let mut owners = BTreeMap::new();
        for (file, inside) in by_file {
            let (text, lines) = switched(&read(file)?, &inside)?;
            changes.insert(file.to_owned(), text);
            owners
                .extend(lines.into_iter().map(|(line, number)| ((file.to_owned(), line), number)));
        }
        let (texts, places) = match build(tree, changes)? {
            Ok(bounded) => return Ok((bounded, alone)),
            Err(errors) => errors,
        };
        let mut blamed: BTreeSet<usize> =
            places.iter().filter_map(|it| owners.get(it).copied()).collect();
        let called: BTreeSet<_> =
            constant.captures_iter(&texts).map(|it| it[1].to_owned()).collect();
        for (number, mutant) in mutants.iter().filter(|it| !alone.contains(it.0)) {
            if function_name(mutant)?.is_some_and(|it| called.contains(&it)) {
                blamed.insert(*number);
            }
        }
        ensure!(!blamed.is_empty(), "the tree with all mutants does not build: {texts}");
        eprintln!("{} mutants do not build with the others", blamed.len());
        alone.extend(blamed);
    }
}

/// Builds one mutant. Returns the command, or `None` where it does not build.
pub fn single(tree: &Tree, mutant: &Mutant) -> Result<Option<PathBuf>> {
    let text = replaced(&read(&mutant.file)?, mutant.piece.clone(), &mutant.replacement);
    Ok(build(tree, Changes::from([(mutant.file.clone(), text)]))?.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mutant_has_a_body_and_lines_of_its_own() {
        let text = "pub const fn one() -> u8 {\n    1\n}\nfn two() {}\n";
        let one = |replacement: &str| Mutant {
            name: replacement.to_owned(),
            file: "f.rs".to_owned(),
            function: Some(0..text.find("\nfn two").unwrap()),
            piece: text.find("1\n").map(|at| at..at + 1).unwrap(),
            replacement: replacement.to_owned(),
        };
        let (new, lines) = switched(text, &[(3, &one("7")), (4, &one("8"))]).unwrap();
        let expected = "pub fn one() -> u8 { match crate::mutant() {\n3 => {\n    7\n}\n4 => {\n    8\n}\n\
                        _ => {\n    1\n}\n} }\nfn two() {}\n";
        assert_eq!(new, expected);
        assert_eq!(lines, [(2, 3), (3, 3), (4, 3), (5, 4), (6, 4), (7, 4)]);
        let outside = Mutant { piece: 0..3, ..one("7") };
        assert!(switched(text, &[(3, &outside)]).is_err());
    }
}
