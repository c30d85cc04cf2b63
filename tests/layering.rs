//! The source layout: imports point downward and never in a circle, independent modules stay independent, few modules
//! touch the system, modules that read images name no panic, and few files outside the drawers of a format name it.

#[allow(dead_code, unused_imports)]
mod source;

use test_support::prelude::*;

use source::{Modules, Source, files, files_below};

/// The rooms from the bottom up. A room imports the rooms before it, and itself.
const ROOMS: &[&str] = &[
    "disk",
    "formats",
    "walkers",
    "base",
    "processes",
    "images",
    "programs",
    "recipes",
    "harness",
    "findings",
    "fuzzing",
    "differential",
    "cli",
];

/// Imports that point downward and are forbidden all the same: the importing module, with all modules in it; the
/// modules that it must not import; the reason.
const APART: &[(&str, &[&str], &str)] = &[
    ("images", &["walkers"], "the build does not ask the walker"),
    ("programs", &["walkers"], "the build does not ask the walker"),
    ("harness::writing", &["walkers"], "the judge reaches engines through their interface"),
    (
        "harness::model",
        &["disk::storage", "base::limits", "formats", "walkers", "images", "programs"],
        "the model reads the journal and never an image",
    ),
    ("harness::oracles", &["walkers"], "oracles reach every engine through its interface"),
    ("harness::oracles", &["formats", "images::qcow2"], "oracles know cases, and no format"),
    (
        "harness::targets::reading",
        &["formats", "images::qcow2"],
        "the judge knows cases, and no format",
    ),
    ("harness::cases::case", &["formats", "images::qcow2"], "a case belongs to no format"),
    ("harness::engine", &["formats", "images"], "engines read any format"),
    (
        "harness::cases::run",
        &["formats", "images::qcow2"],
        "the harness knows cases, and no format",
    ),
    (
        "harness::cases::pipeline",
        &["formats", "images::qcow2"],
        "the harness knows cases, and no format",
    ),
    ("images::files", &["formats", "images::qcow2"], "the files of a case belong to no format"),
    (
        "harness::cases::pipeline",
        &["walkers"],
        "the harness reaches every engine through its interface",
    ),
    ("harness::cases::run", &["walkers"], "the harness reaches every engine through its interface"),
    ("harness::targets", &["walkers"], "the targets reach every engine through its interface"),
    ("formats", &["processes"], "decoding starts no process"),
    ("walkers", &["processes"], "the walker starts no process"),
    ("images", &["processes"], "the build starts no process"),
    ("programs", &["processes"], "a program starts no process"),
    (
        "fuzzing::feedback",
        &["formats", "walkers", "images", "programs"],
        "feedback knows events, and no format",
    ),
];

/// The exceptions from [`APART`]: an importing module, and the items that it may import from modules that are closed to
/// it.
const EXCEPTIONS: &[(&str, &[&str])] = &[
    ("harness::model", &["images::content", "programs::journal"]),
    ("fuzzing::feedback", &["formats::rare_events"]),
    ("harness::oracles::qcow2", &["formats"]),
    ("harness::oracles::layout", &["formats::anatomy"]),
];

/// The modules outside the drawers of a format that may name it: the list of formats, and the two that declare the
/// drawers. qcow2 and raw are no such formats: most of the harness is about them.
const NAMING: &[&str] = &["disk::image_format", "formats", "images"];

/// The further modules that may name a format: the format, the module, and the reason.
const NAMING_ONE: &[(&str, &str, &str)] = &[
    ("vmdk", "programs::operation", "a word in the text of programs never changes"),
    ("vpc", "base::features", "a name of a feature is printed, and claimed by engines"),
    ("vhdx", "base::features", "a name of a feature is printed, and claimed by engines"),
    ("vmdk", "base::features", "a name of a feature is printed, and claimed by engines"),
    ("vdi", "base::features", "a name of a feature is printed, and claimed by engines"),
];

/// The modules that may touch files.
const FILES: &[&str] = &[
    "disk::storage",
    "base::files",
    "processes",
    "walkers::chain",
    "images::files::export",
    "recipes",
    "harness::engines::image_answers",
    "harness::against::qemu_io::engine",
    "harness::against::qemu_io::qemu_img",
    "harness::against::qemu_io::recorded",
    "harness::against::qemu_io::script",
    "harness::against::qemu_io::session",
    "findings::isolation",
    "findings::report::bundle",
    "findings::report::script",
    "fuzzing::campaign",
    "fuzzing::corpus",
    "fuzzing::libfuzzer",
    "differential",
    "cli",
    "main",
];
/// The modules that may use a clock, or go through a hash map in its random order.
const CLOCKED: &[&str] = &[
    "processes",
    "fuzzing::campaign",
    "fuzzing::embedded",
    "differential::campaign",
    "differential::iteration",
    "differential::minimize::search",
    "differential::sides",
    "differential::workdir",
    "differential::summary",
    "cli",
    "main",
];
/// The modules that may start other processes, and know how they end.
const PROCESSES: &[&str] = &["processes"];

/// The modules that may read the environment.
const ENVIRONMENT: &[&str] =
    &["findings::report::bundle", "fuzzing::libfuzzer", "processes::folder", "cli"];

/// The paths that touch the system: each path, the modules that may import it, and its effect.
const SYSTEM: &[(&[&str], &[&str], &str)] = &[
    (&["std", "process", "Command"], PROCESSES, "starts processes"),
    (&["std", "process", "Child"], PROCESSES, "holds processes"),
    (&["std", "process", "ExitStatus"], PROCESSES, "describes the ends of processes"),
    (&["std", "process", "Stdio"], PROCESSES, "starts processes"),
    (&["std", "os", "unix", "process"], PROCESSES, "describes the ends of processes"),
    (&["rustix", "process"], PROCESSES, "stops processes"),
    (&["std", "fs"], FILES, "touches files"),
    (&["std", "os"], FILES, "touches files"),
    (&["rustix"], FILES, "touches files"),
    (&["std", "net"], &[], "touches the network"),
    (&["std", "env"], ENVIRONMENT, "reads the environment"),
    (&["std", "time", "Instant"], CLOCKED, "reads a clock"),
    (&["std", "time", "SystemTime"], CLOCKED, "reads a clock"),
    // A `HashMap` without a hasher of its own goes through its entries in another order each time.
    (&["std", "collections", "HashMap"], CLOCKED, "is in random order"),
    (&["std", "collections", "HashSet"], CLOCKED, "is in random order"),
    (&["std", "collections", "hash_map"], CLOCKED, "is in random order"),
    (&["std", "hash", "RandomState"], CLOCKED, "is random"),
    (&["rand"], &[], "is random"),
    (&["getrandom"], &[], "is random"),
    (&["fastrand"], &[], "is random"),
];

/// The modules in which no image may cause a panic.
const PANIC_FREE: &[&str] = &[
    "disk::storage",
    "formats",
    "walkers",
    "harness::engine",
    "harness::engines::walker",
    "harness::oracles::qcow2",
    // `qcowfuzz check` reads untrusted files.
    "cli::images::check",
];

/// Reports whether `module` is one of `modules`, or inside one of them.
fn is_in(module: &str, modules: &[&str]) -> bool {
    modules.iter().any(|outer| {
        module.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

/// Returns the room of a module, counted from the bottom. The root with its macro `command!`, the program and
/// `internal` lie above all rooms.
fn storey(module: &str) -> Option<usize> {
    let room = module.split("::").next().unwrap_or_default();
    match room {
        "" | "command" | "main" | "internal" => Some(ROOMS.len()),
        room => ROOMS.iter().position(|it| *it == room),
    }
}

/// Returns the faults of one file, whose imports lead to `imported` modules.
fn faults(source: &Source, imported: &BTreeSet<String>) -> Vec<String> {
    // Files that contain only tests are not part of the library.
    if source.name.ends_with("tests.rs") {
        return Vec::new();
    }
    let own = source.module().join("::");
    let Some(own_storey) = storey(&own) else {
        return vec![format!("{}: no room has this file", source.name)];
    };
    let mut faults = Vec::new();
    for other in imported {
        if let Some(why) = import_fault(&own, own_storey, other) {
            faults.push(format!("{}: {other}: {why}", source.name));
        }
    }
    for (forbidden, allowed, what) in SYSTEM {
        for path in source.paths(&[forbidden[0]]) {
            if path.iter().zip(*forbidden).filter(|(a, b)| a == *b).count() == forbidden.len()
                && !is_in(&own, allowed)
            {
                faults.push(format!("{}: {} {what}", source.name, path.join("::")));
            }
        }
    }
    faults
}

/// Reports whether the drawer of a format in the build imports code of the walker's package that reads images. It may
/// import constants, the geometry of qcow2 images, the names of parts and of kinds of checksums, and declarations of
/// fields.
fn is_decoding_in_drawer(own: &str, other: &str) -> bool {
    let of_each = |prefix: &str, suffix: &str| -> Vec<String> {
        ImageFormat::ALL.iter().map(|it| format!("{prefix}::{}{suffix}", it.name())).collect()
    };
    let is_in_any = |module: &str, modules: &[String]| {
        modules.iter().any(|outer| is_in(module, &[outer.as_str()]))
    };
    let values = ["formats::qcow2::geometry", "formats::anatomy::fields", "formats::anatomy::seal"];
    is_in_any(own, &of_each("images", ""))
        && is_in(other, &["formats"])
        && !is_in_any(other, &of_each("formats", "::constants"))
        && !is_in(other, &values)
}

fn import_fault(own: &str, own_storey: usize, other: &str) -> Option<&'static str> {
    let Some(other_storey) = storey(other) else {
        return Some("no room has this module");
    };
    if other_storey > own_storey {
        return Some("an import that does not point downward");
    }
    if is_decoding_in_drawer(own, other) {
        return Some("the build shares only constants and types of values with the walker");
    }
    let apart = APART.iter().find(|(who, what, _)| is_in(own, &[who]) && is_in(other, what));
    let excepted = |(who, what): &(&str, &[&str])| is_in(own, &[who]) && is_in(other, what);
    apart.filter(|_| !EXCEPTIONS.iter().any(excepted)).map(|(_, _, why)| *why)
}

/// Returns the faults of all files.
fn faults_of(files: Vec<Source>) -> Vec<String> {
    let modules = Modules::new(files);
    let imports = modules.imports();
    let each = modules.files().iter().zip(&imports);
    each.flat_map(|(source, imported)| faults(source, imported)).collect()
}

/// Returns the modules that import each other in a circle, with those between two circles.
fn circles(modules: &Modules) -> BTreeSet<String> {
    let mut left: Vec<(String, BTreeSet<String>)> =
        modules.names().into_iter().zip(modules.imports()).collect();
    // The root declares and re-exports the rooms. Nothing imports it.
    left.retain(|(name, _)| !name.is_empty());
    loop {
        let names: BTreeSet<_> = left.iter().map(|(name, _)| name.clone()).collect();
        let imported: BTreeSet<_> = left.iter().flat_map(|(_, to)| to.clone()).collect();
        let before = left.len();
        left.retain(|(name, to)| imported.contains(name) && !to.is_disjoint(&names));
        if left.len() == before {
            return names;
        }
    }
}

/// Reports whether a text names a format, in code, in a literal or in a comment: QEMU's name, in a larger word or not.
/// VHD is the format that QEMU calls vpc.
fn names(text: &str, format: &str) -> bool {
    let text = text.to_lowercase();
    let is_vhd = || text.split("vhd").skip(1).any(|behind| !behind.starts_with('x'));
    text.contains(format) || format == "vpc" && is_vhd()
}

/// Returns the formats that a file outside their drawers names, with the module.
fn foreign_names(source: &Source) -> Vec<(&'static str, String)> {
    let own = source.module().join("::");
    let formats = ImageFormat::ALL.into_iter();
    let others = formats.filter(|it| !matches!(it, ImageFormat::Qcow2 | ImageFormat::Raw));
    let named = others.map(ImageFormat::name).filter(|format| {
        let drawers = ["formats", "images"].map(|room| format!("{room}::{format}"));
        let is_inside = drawers.iter().any(|drawer| is_in(&own, &[drawer.as_str()]));
        !is_inside && !NAMING.contains(&own.as_str()) && names(&source.text, format)
    });
    named.map(|format| (format, own.clone())).collect()
}

/// Returns a tree of made-up files.
fn made_up(files: &[(&str, &str)]) -> Vec<Source> {
    files.iter().map(|(name, text)| Source::new(name, text)).collect()
}

#[test]
fn imports_point_downward() {
    let faults = faults_of(files());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let circles = circles(&Modules::new(files()));
    assert!(circles.is_empty(), "{circles:?}");
}

#[test]
fn circles_are_found() {
    let circles_of = |files: &[(&str, &str)]| circles(&Modules::new(made_up(files))).len();
    // Two files; three files, through a re-export; a child that uses its parent; an inline path.
    assert_eq!(circles_of(&[("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")]), 2);
    let shown = [
        ("a/mod.rs", "mod x;\npub use x::X;"),
        ("a/x.rs", "use crate::b::B;"),
        ("b.rs", "use crate::a::X;"),
    ];
    assert_eq!(circles_of(&shown), 2);
    assert_eq!(
        circles_of(&[("a.rs", "mod x;\nfn f() { x::f() }"), ("a/x.rs", "use super::A;")]),
        2
    );
    assert_eq!(
        circles_of(&[("a.rs", "fn f() { crate::b::f() }"), ("b.rs", "use super::a::A;")]),
        2
    );
    // No circles: a chain, a diamond, the imports of tests.
    assert_eq!(circles_of(&[("a.rs", "use crate::b::B;"), ("b.rs", "struct B;")]), 0);
    let tests = "#[cfg(test)]\nmod tests { use crate::a::A; }";
    assert_eq!(circles_of(&[("a.rs", "use crate::b::B;"), ("b.rs", tests)]), 0);
}

#[test]
fn no_file_outside_its_drawers_names_a_format() {
    // The root of the walker is not among these files: its module has the name of the harness's root.
    let all = files().into_iter().chain(files_below("crates/walker/src")).collect::<Vec<_>>();
    let found: BTreeSet<_> = all.iter().flat_map(foreign_names).collect();
    let excepted = NAMING_ONE.iter().map(|(format, module, _)| (*format, module.to_string()));
    let excepted: BTreeSet<_> = excepted.collect();
    let new: Vec<_> = found.difference(&excepted).collect();
    assert!(new.is_empty(), "these modules name a format: {new:?}");
    let old: Vec<_> = excepted.difference(&found).collect();
    assert!(old.is_empty(), "these modules need no exception any more: {old:?}");
}

#[test]
fn names_of_formats_are_found() {
    let found = |name: &str, text: &str| foreign_names(&Source::new(name, text)).len();
    // In code, in a comment, in a literal, in a test, under its other name.
    assert_eq!(found("walkers/chain.rs", "fn f() { is_vmdk(ImageFormat::Vmdk) }"), 1);
    assert_eq!(found("walkers/chain.rs", "/// Images of VHDX and of VDI."), 2);
    assert_eq!(found("cli/a.rs", "const A: &str = \"vpc\";"), 1);
    assert_eq!(found("cli/a.rs", "#[cfg(test)]\nmod tests { const A: &str = \"vpc\"; }"), 1);
    assert_eq!(found("cli/a.rs", "// A fixed VHD disk, or a VHDX disk."), 2);
    // In the drawer of another format; in its own drawers; in the list.
    assert_eq!(found("formats/vdi/mod.rs", "// As in VMDK."), 1);
    assert_eq!(found("formats/vmdk/mod.rs", "// As in VMDK."), 0);
    assert_eq!(found("images/vpc/mod.rs", "// A VHD image, which QEMU calls vpc."), 0);
    assert_eq!(found("disk/image_format.rs", "Vmdk, Vpc"), 0);
    assert_eq!(found("cli/a.rs", "// qcow2, raw, dividing"), 0);
}

#[test]
fn every_module_that_a_rule_names_is_there() {
    let there: BTreeSet<_> = Modules::new(files()).names().into_iter().collect();
    let named = APART.iter().flat_map(|(who, what, _)| [&[*who], *what].concat());
    let excepted = EXCEPTIONS.iter().flat_map(|(who, what)| [&[*who], *what].concat());
    let allowed = SYSTEM.iter().flat_map(|(_, allowed, _)| allowed.iter().copied());
    let naming = NAMING_ONE.iter().map(|(_, module, _)| *module).chain(NAMING.iter().copied());
    let named = named.chain(naming);
    let all = ROOMS.iter().copied().chain(named).chain(allowed).chain(excepted);
    for name in all.chain(PANIC_FREE.iter().copied()).filter(|name| *name != "main") {
        assert!(there.contains(name), "{name}");
    }
}

#[test]
fn upward_imports_are_found() {
    let planted = |name: &str, text: &str| {
        let others = ["disk/clusters.rs", "formats/qcow2/entry.rs", "images/qcow2/mod.rs"];
        let others = [&others[..], &["programs/journal.rs", "programs/mod.rs", "walkers/chain.rs"]];
        let there = others.concat().into_iter().chain(["disk/offsets.rs", "images/content/mod.rs"]);
        let mut files: Vec<_> =
            there.filter(|it| *it != name).map(|it| Source::new(it, "")).collect();
        files.push(Source::new(name, text));
        faults_of(files).len()
    };
    // Upward: plain, in a tree, by a renamed import, in the middle of code.
    assert_eq!(planted("formats/qcow2/entry.rs", "use crate::walkers::chain::lookup;"), 1);
    assert_eq!(planted("walkers/chain/walk.rs", "use crate::images::qcow2::Builder;"), 1);
    let tree = "use crate::{disk::offsets::HostOffset, programs::{Vm, journal}};";
    assert_eq!(planted("walkers/chain/walk.rs", tree), 2);
    assert_eq!(planted("images/files/image/mod.rs", "pub use crate::programs as machine;"), 1);
    assert_eq!(planted("disk/storage.rs", "fn f() { crate::images::content::f(); }"), 1);
    assert_eq!(planted("disk/storage.rs", "use qcowfuzz::internal::images::content::f;"), 1);
    assert_eq!(planted("disk/storage.rs", "fn f() { super::super::images::content::f(); }"), 1);
    // Downward, but between modules that stay apart.
    assert_eq!(planted("harness/model.rs", "use crate::formats::qcow2::entry::L2Entry;"), 1);
    assert_eq!(planted("harness/model.rs", "use crate::disk::clusters::ClusterSize;"), 0);
    assert_eq!(planted("harness/model.rs", "use crate::programs::journal::JournalRecord;"), 0);
    assert_eq!(planted("harness/model.rs", "use crate::programs::Vm;"), 1);
    assert_eq!(
        planted("images/qcow2/builder/tables.rs", "use crate::formats::qcow2::entry::L2Entry;"),
        1
    );
    assert_eq!(
        planted("images/qcow2/builder/tables.rs", "use crate::disk::clusters::ClusterSize;"),
        0
    );
    assert_eq!(planted("harness/oracles/io.rs", "use crate::walkers::MapError;"), 1);
    assert_eq!(planted("fuzzing/feedback/edges.rs", "use crate::images::content::f;"), 1);
    // A file without a room, and a path to a room that does not exist.
    assert_eq!(planted("attic.rs", ""), 1);
    assert_eq!(planted("harness/cases/run.rs", "use crate::attic::Box;"), 1);
    // Not an import: comments, text, tests.
    let harmless = "// crate::walkers::chain\n/* crate::walkers::chain */ const A: &str = \"crate::walkers::chain\";\n\
                    #[cfg(test)]\nmod tests { use crate::walkers::chain::lookup; }";
    assert_eq!(planted("formats/qcow2/entry.rs", harmless), 0);
    let harmful = format!("{harmless}\nuse crate::walkers::Disk;");
    assert_eq!(planted("formats/qcow2/entry.rs", &harmful), 1);
}

#[test]
fn touching_the_system_is_found() {
    let planted = |name: &str, text: &str| faults_of(made_up(&[(name, text)])).len();
    assert_eq!(planted("walkers/map.rs", "use std::{fs::File, io};"), 1);
    assert_eq!(planted("harness/oracles/io.rs", "fn f() { std::process::Command::new(\"\"); }"), 1);
    assert_eq!(planted("fuzzing/campaign/job.rs", "use std::process::{Child, ExitCode};"), 1);
    assert_eq!(planted("findings/isolation/wait.rs", "use rustix::process::waitid;"), 1);
    assert_eq!(planted("processes/run.rs", "use std::process::{Child, ExitStatus};"), 0);
    assert_eq!(planted("programs/mod.rs", "use std::time::Duration;"), 0);
    assert_eq!(planted("programs/mod.rs", "use std::time::{Duration, Instant};"), 1);
    assert_eq!(
        planted("images/files/image/mod.rs", "use std::collections::{BTreeMap, HashMap};"),
        1
    );
    assert_eq!(planted("disk/storage.rs", "use std::fs::File;"), 0);
    assert_eq!(planted("images/files/image/tests.rs", "use std::fs::File;"), 0);
}

fn panics(source: &Source) -> Vec<String> {
    let calls = [".unwrap()", ".expect(", "panic!", "unreachable!", "todo!", "unimplemented!"];
    let found = calls.iter().filter(|call| source.code.contains(**call));
    found.map(|call| format!("{}: {call}", source.name)).collect()
}

#[test]
fn modules_that_read_images_name_no_panic() {
    let guarded = |source: &Source| {
        is_in(&source.module().join("::"), PANIC_FREE) && !source.name.ends_with("tests.rs")
    };
    let faults: Vec<_> = files().iter().filter(|source| guarded(source)).flat_map(panics).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(panics(&Source::new("walkers/a.rs", "fn f() { None::<u8>.unwrap(); }")).len(), 1);
    let test = "#[cfg(test)]\nmod tests { fn f() { panic!() } }\n// .unwrap()";
    assert_eq!(panics(&Source::new("walkers/a.rs", test)).len(), 0);
}
