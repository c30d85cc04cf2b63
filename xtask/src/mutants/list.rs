//! Lists the mutants of the functions that encode images.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result, bail};
use regex::Regex;
use serde_json::Value;

use crate::process::{command, output, read};

/// The folder of the files that encode.
pub const QCOW2: &str = "src/images/qcow2/";
/// The files that encode, and a regular expression of which of their functions do.
const ENCODING: [(&str, &str); 12] = [
    ("encoding/**", ""),
    ("header/mod.rs", "::(write_header|fixed_part|feature_bits)$"),
    ("header/layout.rs", ""),
    ("serialise.rs", ""),
    ("tables.rs", "^write_sparse$"),
    ("state.rs", "::(entry|directory_bytes|table_bytes)$"),
    ("refcounts/mod.rs", "serialise"),
    ("builder/snapshots.rs", "(::(entry|says_size|digits|write|write_snapshots)|write_number)$"),
    (
        "builder/bitmaps.rs",
        "::(write_name|bitmaps_autoclear|bitmaps_extension|write_bitmaps|write_bits)$",
    ),
    ("builder/file.rs", "::seal$"),
    ("builder/mapped.rs", "::(build_raw|write_flat|store|write_read)$"),
    ("payload/**", ""),
];
/// A function in one of the files that makes the text of an error.
const ENCODES_NOTHING: &str = "::too_long";
/// A statement that writes a field.
const FIELD: &str = r"(?m)^ *(put(?:_field)?\(.*|\w+\.put_(?:u\d+|slice|bytes)\(.*);$";

/// A change of one piece of a file. Ranges are of bytes.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// A name of its own, which no line number is part of.
    pub name: String,
    /// The file.
    pub file: String,
    /// The function; a constant has none.
    pub function: Option<Range<usize>>,
    /// The piece that the mutant replaces.
    pub piece: Range<usize>,
    /// The text in its place.
    pub replacement: String,
}

/// Returns the range of a span of lines and columns, which count from 1.
fn range(text: &str, span: &Value) -> Result<Range<usize>> {
    let offset = |edge: &str| {
        let number = |name: &str| span[edge][name].as_u64().context("a span without its numbers");
        let (line, column) = (number("line")? as usize, number("column")? as usize);
        let before: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        let columns = text[before..].chars().take(column - 1).map(char::len_utf8);
        Ok::<_, anyhow::Error>(before + columns.sum::<usize>())
    };
    Ok(offset("start")?..offset("end")?)
}

fn is_of(pattern: &str, file: &str) -> bool {
    let Some(file) = file.strip_prefix(QCOW2) else { return false };
    pattern.strip_suffix("**").map_or(file == pattern, |folder| file.starts_with(folder))
}

/// Returns a mutant for each statement that writes a field.
fn fields_left_out(file: &str, text: &str, functions: &Functions) -> Result<Vec<Mutant>> {
    let tests = text.find("#[cfg(test)]").unwrap_or(text.len());
    let mut found = Vec::new();
    for field in Regex::new(FIELD)?.captures_iter(&text[..tests]) {
        let Some(piece) = field.get(1).map(|it| it.range()) else { continue };
        let statement = &field[1];
        let inside = functions.iter().rfind(|it| it.0.0 <= piece.start && piece.end <= it.0.1);
        let (span, name) =
            inside.with_context(|| format!("{file}: no function contains `{statement}`"))?;
        found.push(Mutant {
            name: format!("{file}: leave out {statement} in {name}"),
            file: file.to_owned(),
            function: Some(span.0..span.1),
            piece,
            replacement: "()".to_owned(),
        });
    }
    Ok(found)
}

/// The names of the encoding functions of a file, by their ranges.
type Functions = BTreeMap<(usize, usize), String>;

/// Returns the mutants that cargo-mutants lists in the encoding functions, and one for each field that is left out.
pub fn listed() -> Result<Vec<Mutant>> {
    let mut list = command("cargo");
    list.args(["mutants", "--list", "--json"]);
    list.args(ENCODING.iter().map(|(pattern, _)| format!("--file={QCOW2}{pattern}")));
    let listed: Vec<Value> = serde_json::from_str(&output(&mut list)?)?;
    let line_number = Regex::new(r":\d+:\d+:")?;
    let (mut by_file, mut used) =
        (BTreeMap::<String, (Vec<Mutant>, Functions)>::new(), BTreeSet::new());
    for one in &listed {
        let word =
            |name: &str| one[name].as_str().with_context(|| format!("a mutant without `{name}`"));
        let file = word("file")?;
        let function = one["function"]["function_name"].as_str().unwrap_or_default();
        let encoding = ENCODING.iter().find(|it| is_of(it.0, file)).context("an unasked file")?;
        if !Regex::new(encoding.1)?.is_match(function) || function.ends_with(ENCODES_NOTHING) {
            continue;
        }
        used.insert(encoding.0);
        let text = read(file)?;
        let span = (!one["function"].is_null()).then(|| range(&text, &one["function"]["span"]));
        let span = span.transpose()?;
        let (mutants, functions) = by_file.entry(file.to_owned()).or_default();
        functions.extend(span.iter().map(|it| ((it.start, it.end), function.to_owned())));
        mutants.push(Mutant {
            name: line_number.replace(word("name")?, ":").into_owned(),
            file: file.to_owned(),
            function: span,
            piece: range(&text, &one["span"])?,
            replacement: word("replacement")?.to_owned(),
        });
    }
    if let Some(unused) = ENCODING.iter().find(|it| !used.contains(it.0)) {
        bail!("cargo-mutants lists no mutant of {QCOW2}{}", unused.0);
    }
    let mut seen = BTreeMap::<String, usize>::new();
    let mut all = Vec::new();
    for (file, (mutants, functions)) in by_file {
        all.extend(mutants);
        all.extend(fields_left_out(&file, &read(&file)?, &functions)?);
    }
    for mutant in &mut all {
        mutant.name = mutant.name.replacen(QCOW2, "", 1);
        let count = seen.entry(mutant.name.clone()).and_modify(|it| *it += 1).or_insert(1);
        if *count > 1 {
            mutant.name += &format!(" ({count})");
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn spans_count_characters_and_ranges_count_bytes() {
        let text = "// é\nfn é(a: u8) {\n    put(a);\n}\n";
        let span = |start: [u64; 2], end: [u64; 2]| {
            let edge = |[line, column]: [u64; 2]| json!({"line": line, "column": column});
            range(text, &json!({"start": edge(start), "end": edge(end)})).unwrap()
        };
        assert_eq!(&text[span([2, 4], [2, 12])], "é(a: u8)");
        let function = span([2, 1], [4, 2]);
        let functions = BTreeMap::from([((function.start, function.end), "f".to_owned())]);
        let [mutant] = &fields_left_out("f.rs", text, &functions).unwrap()[..] else { panic!() };
        assert_eq!(
            (mutant.name.as_str(), &text[mutant.piece.clone()]),
            ("f.rs: leave out put(a) in f", "put(a)")
        );
        assert!(fields_left_out("f.rs", text, &BTreeMap::new()).is_err());
    }
}
