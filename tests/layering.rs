//! The map of the house, held: imports point only downward, what is independent stays independent,
//! the system is touched in few places, and sizes stay within bounds.

mod source;

use source::{Source, braces, files};

/// The rooms from the bottom up. A room may import rooms of lower storeys, and what is beside it in
/// its own file or directory. The longest name that a path begins with is its room.
const STOREYS: &[&[&str]] = &[
    // Offsets and counts, below everything: extents and errors speak in them.
    &["qcow2::units"],
    // What happens is told in words of its own.
    &["observer"],
    // `error` lies below `qcow2`: a malformed image and a failing read are one answer to a caller.
    &["error", "extent", "entropy", "panics"],
    // Stamps are made of offsets and entropy.
    &["content"],
    &["qcow2"],
    // Limits are told in the format's terms; the journal in contents and host offsets.
    &["limits", "storage", "vm::journal"],
    &["image", "head"],
    &["images", "chain", "snapshot_table"],
    &["anatomy"],
    &["export", "build", "map", "damage"],
    &["vm"],
    &["model", "engines", "regression"],
    &["watch"],
    &["oracles", "mutators", "minimizer", "feedback", "corpus"],
    &["harness", "explain"],
    &["targets", "fuzzer", "differential"],
    &["cli", "main", "lib"],
];

/// Downward, and forbidden all the same: who (a room and all in it), what, and why.
const APART: &[(&str, &[&str], &str)] = &[
    (
        "map",
        &["build", "vm", "vm::journal", "model"],
        "the walker sees an image, never what was meant",
    ),
    (
        "model",
        &["image", "storage", "build", "vm", "map", "limits"],
        "the model sees the journal alone",
    ),
    ("anatomy", &["build", "vm", "vm::journal", "map"], "structure is read from the bytes alone"),
    ("vm", &["map"], "what builds does not ask the walker"),
    ("build", &["map"], "what builds does not ask the walker"),
    ("oracles", &["map"], "oracles reach every engine through its interface"),
    ("harness", &["map"], "the harness reaches every engine through its interface"),
    (
        "feedback",
        &["qcow2", "qcow2::units", "image", "build", "vm", "map"],
        "feedback knows no qcow2",
    ),
];

/// The only rooms of the format that the model knows.
const MODEL_KNOWS: &[&str] = &["model", "qcow2::units", "extent", "content", "vm::journal"];

/// What touches the system: a path, the rooms that may, and why no others.
const SYSTEM: &[(&[&str], &[&str], &str)] = &[
    (&["std", "process", "Command"], &["engines", "differential", "cli", "main"], "runs programs"),
    (
        &["std", "fs"],
        &["storage", "chain", "export", "corpus", "engines", "differential", "cli", "main"],
        "touches files",
    ),
    (
        &["std", "os"],
        &["storage", "chain", "export", "corpus", "engines", "differential", "cli", "main"],
        "touches files",
    ),
    (
        &["rustix"],
        &["storage", "chain", "export", "corpus", "engines", "differential", "cli", "main"],
        "touches files",
    ),
    (&["std", "net"], &[], "touches the network"),
    (&["std", "env"], &["engines", "differential", "cli", "main"], "reads the environment"),
    (&["std", "time", "Instant"], &CLOCKED, "reads a clock"),
    (&["std", "time", "SystemTime"], &CLOCKED, "reads a clock"),
    // A `HashMap` without a hasher of its own goes through its entries in another order each time.
    (&["std", "collections", "HashMap"], &CLOCKED, "is in random order"),
    (&["std", "collections", "HashSet"], &CLOCKED, "is in random order"),
    (&["std", "collections", "hash_map"], &CLOCKED, "is in random order"),
    (&["std", "hash", "RandomState"], &CLOCKED, "is random"),
    (&["rand"], &[], "is random"),
    (&["getrandom"], &[], "is random"),
    (&["fastrand"], &[], "is random"),
];

const CLOCKED: [&str; 4] = ["fuzzer", "differential", "cli", "main"];

/// Longer than they should be, each with its reason. One that is no longer that long leaves the list.
const LONG_FILES: &[(&str, usize)] = &[];
const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 70;

/// The room of a path inside the crate (without `crate`).
fn room<'a>(path: &[String]) -> Option<&'a str> {
    let two = path.iter().take(2).cloned().collect::<Vec<_>>().join("::");
    let one = path.first().cloned().unwrap_or_default();
    let all = || STOREYS.iter().copied().flatten().copied();
    all().find(|room| *room == two).or_else(|| all().find(|room| *room == one))
}

fn storey(room: &str) -> usize {
    STOREYS.iter().position(|rooms| rooms.contains(&room)).unwrap()
}

fn own_room<'a>(source: &Source) -> Option<&'a str> {
    let stem = source.name.trim_end_matches(".rs");
    room(&stem.split('/').map(str::to_string).collect::<Vec<_>>())
}

/// What is wrong with the imports of a file.
fn faults(source: &Source) -> Vec<String> {
    let Some(own) = own_room(source) else {
        return vec![format!("{}: no storey has this room", source.name)];
    };
    let mut faults = Vec::new();
    // The root declares the rooms, and may show what is in them.
    if own != "lib" {
        for path in source.paths(&["crate", "super", "qcowfuzz"]) {
            faults.extend(import_fault(source, own, &path[1..]));
        }
    }
    for (forbidden, allowed, why) in SYSTEM {
        for path in source.paths(&[forbidden[0]]) {
            if path.iter().zip(*forbidden).filter(|(a, b)| a == *b).count() == forbidden.len()
                && !allowed.contains(&own)
            {
                faults.push(format!("{}: {} {why}", source.name, path.join("::")));
            }
        }
    }
    faults
}

fn import_fault(source: &Source, own: &str, path: &[String]) -> Option<String> {
    let told = |why: &str| Some(format!("{}: {}: {why}", source.name, path.join("::")));
    let of_own = || own.split("::").next() == path.first().map(String::as_str);
    let Some(other) = room(path) else {
        // `use super::*` at the root, or a name that the root shows.
        return told("no storey has this room");
    };
    // A part that lies below its room may not look back up into it.
    let beside = other == own || of_own() && storey(other) < storey(own);
    if beside {
        return None;
    }
    let apart = APART.iter().find(|(who, what, _)| *who == own && what.contains(&other));
    if let Some((_, _, why)) = apart {
        return told(why);
    }
    if own == "model" && !MODEL_KNOWS.contains(&other) {
        return told("the model sees the journal alone");
    }
    if storey(other) >= storey(own) {
        return told("an import that does not point downward");
    }
    None
}

#[test]
fn imports_point_downward() {
    let faults: Vec<_> = files().iter().flat_map(faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn upward_imports_are_found() {
    let planted = |name: &str, text: &str| faults(&Source::new(name, text)).len();
    // Upward, sideways, in a tree, by a renamed import, in the middle of code, and from a part.
    assert_eq!(planted("qcow2/entry.rs", "use crate::map::lookup;"), 1);
    assert_eq!(planted("map/walk.rs", "use crate::build::Builder;"), 1);
    assert_eq!(planted("map/walk.rs", "use crate::{extent::Extent, vm::{Vm, journal}};"), 2);
    assert_eq!(planted("image.rs", "use crate::storage;\npub use crate::vm as machine;"), 1);
    assert_eq!(planted("storage.rs", "fn f() { crate::image::Image::default(); }"), 1);
    assert_eq!(planted("storage.rs", "fn f() { super::image::Image::default(); }"), 1);
    assert_eq!(planted("vm/journal.rs", "use super::program::Program;"), 1);
    assert_eq!(planted("qcow2/units.rs", "use super::header::Header;"), 1);
    // Downward, and apart.
    assert_eq!(planted("model.rs", "use crate::qcow2::entry::L2Entry;"), 1);
    assert_eq!(planted("model.rs", "use crate::qcow2::units::HostOffset;"), 0);
    assert_eq!(planted("oracles/io.rs", "use crate::map::MapError;"), 1);
    assert_eq!(planted("feedback/edges.rs", "use crate::qcow2::units::HostOffset;"), 1);
    // A room that nobody has placed.
    assert_eq!(planted("attic.rs", ""), 1);
    assert_eq!(planted("harness.rs", "use crate::attic::Box;"), 1);
    // Not an import: comments, text, tests.
    let harmless = "// crate::map\n/* crate::map */ const A: &str = \"crate::map\";\n\
                    #[cfg(test)]\nmod tests { use crate::map::lookup; }";
    assert_eq!(planted("qcow2/entry.rs", harmless), 0);
    assert_eq!(planted("qcow2/entry.rs", &format!("{harmless}\nuse crate::map::Disk;")), 1);
}

#[test]
fn touching_the_system_is_found() {
    let planted = |name: &str, text: &str| faults(&Source::new(name, text)).len();
    assert_eq!(planted("map/walk.rs", "use std::{fs::File, io};"), 1);
    assert_eq!(planted("oracles/io.rs", "fn f() { std::process::Command::new(\"\"); }"), 1);
    assert_eq!(planted("vm/mod.rs", "use std::time::Duration;"), 0);
    assert_eq!(planted("vm/mod.rs", "use std::time::{Duration, Instant};"), 1);
    assert_eq!(planted("build/mod.rs", "use std::collections::{BTreeMap, HashMap};"), 1);
    assert_eq!(planted("storage.rs", "use std::fs::File;"), 0);
}

#[test]
fn files_and_functions_stay_short() {
    let mut faults = Vec::new();
    for source in files() {
        let lines = source.text.lines().count();
        let excused = LONG_FILES.iter().find(|(name, _)| *name == source.name);
        let (least, most) =
            excused.map_or((0, MAX_FILE_LINES), |(_, most)| (MAX_FILE_LINES, *most));
        if lines > most || lines < least {
            faults.push(format!("{}: {lines} lines, {least} to {most}", source.name));
        }
        faults.extend(long_functions(&source));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn long_functions(source: &Source) -> Vec<String> {
    let starts = source.code.match_indices("fn ").filter(|(at, _)| {
        let before = source.code[..*at].chars().next_back();
        before.is_none_or(|c| c.is_whitespace() || c == '(')
    });
    let function = |(at, _): (usize, &str)| {
        let code = &source.code[at..];
        let lines = code[..braces(code)?].lines().count();
        let name: String =
            code[3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        let told = || format!("{}: {name} has {lines} lines", source.name);
        (lines > MAX_FUNCTION_LINES && !name.is_empty()).then(told)
    };
    starts.filter_map(function).collect()
}

#[test]
fn long_functions_are_found() {
    let body =
        |lines: usize| format!("fn f() {{\n{}}}\nfn g() {{}}", "    let _ = '{';\n".repeat(lines));
    assert_eq!(long_functions(&Source::new("a.rs", &body(68))).len(), 0);
    assert_eq!(long_functions(&Source::new("a.rs", &body(69))).len(), 1);
}

/// Where no image may cause a panic.
const PANIC_FREE: &[&str] = &["map", "qcow2", "qcow2::units", "engines", "storage"];

fn panics(source: &Source) -> Vec<String> {
    let calls = [".unwrap()", ".expect(", "panic!", "unreachable!", "todo!", "unimplemented!"];
    let found = calls.iter().filter(|call| source.code.contains(**call));
    found.map(|call| format!("{}: {call}", source.name)).collect()
}

#[test]
fn what_reads_images_names_no_panic() {
    let guarded = |source: &Source| own_room(source).is_some_and(|own| PANIC_FREE.contains(&own));
    let faults: Vec<_> = files().iter().filter(|source| guarded(source)).flat_map(panics).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(panics(&Source::new("map/a.rs", "fn f() { None::<u8>.unwrap(); }")).len(), 1);
    let test = "#[cfg(test)]\nmod tests { fn f() { panic!() } }\n// .unwrap()";
    assert_eq!(panics(&Source::new("map/a.rs", test)).len(), 0);
}
