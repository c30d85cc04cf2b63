//! One word for one concept: types of one name in several modules must mean the same.

use std::collections::BTreeMap;

use super::{Source, files};

/// The names that several modules share, each with its reason.
const SHARED: &[(&str, &str)] = &[
    ("Arguments", "every verb of the command has its own"),
    ("Drawer", "the list of formats names the drawer of each"),
];

/// Returns the names of the types that a module declares.
fn types(source: &Source) -> impl Iterator<Item = &str> {
    source.code.lines().filter_map(|line| {
        let mut words = line.split_whitespace().peekable();
        words.next_if(|word| word.starts_with("pub"));
        let kind = words.next()?;
        // Associated types, which are indented, belong to their traits.
        let declares = ["struct", "enum", "trait"].contains(&kind)
            || (kind == "type" && !line.starts_with(' '));
        let name = words.next().filter(|_| declares)?;
        // A macro names a type with a variable.
        name.split(|letter: char| !letter.is_alphanumeric()).next().filter(|name| !name.is_empty())
    })
}

/// Returns the names that several modules declare, with the modules.
fn of_several_modules(files: &[Source]) -> Vec<String> {
    let mut names: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in files {
        for name in types(source) {
            names.entry(name).or_default().push(&source.name);
        }
    }
    let is_shared = |name: &str| SHARED.iter().any(|(shared, _)| *shared == name);
    let several = names.iter().filter(|(name, of)| of.len() > 1 && !is_shared(name));
    several.map(|(name, of)| format!("{name}: {}", of.join(", "))).collect()
}

#[test]
fn types_of_one_name_are_one_type() {
    // Files that contain only tests are not part of the library.
    let files: Vec<_> = files().into_iter().filter(|it| !it.name.ends_with("tests.rs")).collect();
    let several = of_several_modules(&files);
    assert!(several.is_empty(), "{}", several.join("\n"));
    for (name, reason) in SHARED {
        let count = files.iter().filter(|file| types(file).any(|it| it == *name)).count();
        assert!(count > 1, "{name} ({reason}): found in {count} files, expected several");
    }
}

#[test]
fn types_of_one_name_are_found() {
    let of = |one: &str, other: &str| {
        of_several_modules(&[Source::new("a.rs", one), Source::new("b.rs", other)])
    };
    assert_eq!(
        of("pub struct A<'a>(&'a u8);", "mod b {\n    pub(super) enum A {}\n}"),
        ["A: a.rs, b.rs"]
    );
    assert_eq!(of("struct A;\ntrait B {}", "type A = u8;\npub(crate) trait B: C {}").len(), 2);
    // Other names, associated types, names of each verb, comments and tests.
    assert!(of("struct A;", "struct AB;\nimpl T for B {\n    type A = u8;\n}").is_empty());
    assert!(of("struct Arguments;", "struct Arguments;").is_empty());
    assert!(
        of("struct A;", "// struct A;\n#[cfg(test)]\nmod tests {\n    struct A;\n}").is_empty()
    );
}
