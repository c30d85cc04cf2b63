//! The modules, types and functions that the documents name with their paths are there.

use test_support::prelude::*;

use crate::source::files;
use crate::{documents, quoted, text_of};

/// Returns the fault of a path such as `images::files::Images`, where `code` has the code of each module: the longest
/// prefix that is a module does not mention the next name.
fn fault(path: &str, code: &BTreeMap<String, String>) -> Option<String> {
    let names: Vec<_> = path.split("::").collect();
    let module_of = |length: &usize| code.get(&names[..*length].join("::"));
    let length = (1..=names.len()).rev().find(|length| module_of(length).is_some())?;
    let name = names.get(length)?;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = module_of(&length)?.split(|c| !is_word(c));
    let absent = || format!("{path}: {} has no {name}", names[..length].join("::"));
    (!words.any(|word| word == *name)).then(absent)
}

#[test]
fn modules_that_are_named_exist() {
    let code: BTreeMap<_, _> =
        files().into_iter().map(|it| (it.module().join("::"), it.code)).collect();
    let (mut faults, mut seen) = (Vec::new(), 0);
    for document in documents().iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let text = text_of(document);
        for path in quoted(&text).into_iter().filter(|it| it.contains("::")) {
            let end = path.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c));
            let path = &path[..end.unwrap_or(path.len())];
            let room = path.split("::").next().unwrap();
            seen += usize::from(code.contains_key(room));
            faults.extend(fault(path, &code).map(|it| format!("{}: {it}", document.display())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(seen > 30, "{seen} paths");
    assert_eq!(fault("formats::qcow2", &code), None);
    assert_eq!(fault("std::fs", &code), None);
    let absent = fault("formats::qcow2::units", &code).unwrap();
    assert_eq!(absent, "formats::qcow2::units: formats::qcow2 has no units");
}
