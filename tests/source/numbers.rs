//! Two rules about numbers: arithmetic that replaces a result states its reason, and a constant has one value. Numbers
//! that saturate have one reason for all of them (`disk::offsets`).

use std::collections::BTreeMap;

use super::{Source, files};

/// The files that read images or judge answers.
const REASONED: &[&str] = &["disk/", "formats/", "walkers/", "harness/", "images/damage/"];

/// Arithmetic and conversions that replace a result that does not fit.
const REPLACING: &[&str] = &[
    "wrapping_",
    ".unwrap_or(0)",
    ".unwrap_or_default()",
    ".unwrap_or(u32::MAX)",
    ".unwrap_or(u64::MAX)",
    ".unwrap_or(usize::MAX)",
];

/// The highest number of lines between a reason and its call.
const REASON_LINES: usize = 6;

/// Returns the calls that wrap or take a default, and for which neither a comment above nor a section of the
/// file states why.
fn without_reason(source: &Source) -> Vec<String> {
    if source.text.starts_with("//!") && source.text.contains("\n//! # Arithmetic\n") {
        return Vec::new();
    }
    let lines: Vec<_> = source.text.lines().collect();
    let unexplained = |(at, code): (usize, &str)| {
        let call = REPLACING.iter().find(|call| code.contains(**call))?;
        // The declaration of a function with such a name is not a call, and its documentation describes it.
        let is_declared = code.contains(&format!("fn {call}"));
        let above = &lines[at.saturating_sub(REASON_LINES)..at];
        let reason = above.iter().any(|line| line.trim_start().starts_with("//"));
        (!is_declared && !reason).then(|| format!("{}:{}: {call}", source.name, at + 1))
    };
    source.code.lines().enumerate().filter_map(unexplained).collect()
}

#[test]
fn arithmetic_that_replaces_a_result_states_its_reason() {
    let guarded = |source: &&Source| REASONED.iter().any(|room| source.name.starts_with(room));
    let faults: Vec<_> = files().iter().filter(guarded).flat_map(without_reason).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn arithmetic_without_a_reason_is_found() {
    let of = |text: &str| without_reason(&Source::new("walkers/a.rs", text)).len();
    assert_eq!(of("fn f() {\n    a.wrapping_add(1);\n    b.unwrap_or(0)\n}"), 2);
    assert_eq!(of("fn f() {\n    // No file is as long.\n    a.wrapping_add(1)\n}"), 0);
    assert_eq!(of("//! Walks.\n//!\n//! # Arithmetic\n//! None.\nfn f() { a.wrapping_add(1) }"), 0);
    let far = format!("// Far above.\n{}fn f() {{ a.wrapping_add(1) }}", "\n".repeat(REASON_LINES));
    assert_eq!(of(&far), 1);
    assert_eq!(of("fn wrapping_bytes() {}\n#[cfg(test)]\nmod t { fn f() { a.unwrap_or(0) } }"), 0);
}

/// The names of constants that several files declare by convention, each with its own value.
const OF_EACH_FILE: &[&str] = &["ORACLE", "DEFINITION", "ATTACKS", "FORMAT_MESSAGES", "LOOKS"];

/// Returns the constants of modules that have the same name and different values.
fn of_several_values(files: &[Source]) -> Vec<String> {
    let mut values: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in files {
        for (name, value) in constants(source) {
            values.entry(name).or_default().entry(value).or_insert_with(|| source.name.clone());
        }
    }
    let several = values
        .into_iter()
        .filter(|(name, values)| values.len() > 1 && !OF_EACH_FILE.contains(&name.as_str()));
    several
        .map(|(name, of)| format!("{name}: {}", of.into_values().collect::<Vec<_>>().join(", ")))
        .collect()
}

/// Returns the names and the values of the constants of a module, without those of types.
fn constants(source: &Source) -> Vec<(String, String)> {
    let lines: Vec<_> = source.text.lines().collect();
    let constant = |(at, code): (usize, &str)| {
        let declared = code
            .strip_prefix("pub")
            .map_or(code, |rest| rest.trim_start_matches(|c| c != ' ').trim_start());
        let name = declared.strip_prefix("const ")?.split(':').next()?.trim();
        // Values are compared with their literals, from the declaration up to its end.
        let text = lines[at..].join("\n");
        let value = text.split_once('=')?.1;
        let end = value.find(";\n").unwrap_or(value.len());
        let value: String = value[..end].split_whitespace().collect();
        (name != "_").then(|| (name.to_string(), value))
    };
    source.code.lines().enumerate().filter_map(constant).collect()
}

#[test]
fn constants_of_one_name_have_one_value() {
    // Files that contain only tests are not part of the library.
    let files: Vec<_> = files().into_iter().filter(|it| !it.name.ends_with("tests.rs")).collect();
    let several = of_several_values(&files);
    assert!(several.is_empty(), "{}", several.join("\n"));
}

#[test]
fn constants_of_several_values_are_found() {
    let of = |one: &str, other: &str| {
        of_several_values(&[Source::new("a.rs", one), Source::new("b.rs", other)]).len()
    };
    assert_eq!(of("const A: u8 = 1;\n", "pub(crate) const A: u8 = 2;\n"), 1);
    assert_eq!(of("pub const A: &str =\n    \"a\";\n", "const A: &str = \"b\";\n"), 1);
    assert_eq!(of("const A: u8 = 1;\n", "const A: u8 =\n    1;\n"), 0);
    assert_eq!(of("impl T {\n    const A: u8 = 1;\n}\n", "const A: u8 = 2;\n"), 0);
    assert_eq!(of("const ORACLE: u8 = 1;\n", "const ORACLE: u8 = 2;\n"), 0);
    assert_eq!(of("const A: u8 = 1;\n", "#[cfg(test)]\nmod tests {\nconst A: u8 = 2;\n}\n"), 0);
}
