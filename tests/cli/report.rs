//! `report`, `triage` and `bundle`. A page has everything that `replay --json` has, its links lead to existing
//! elements, and it loads nothing. `cargo xtask from-crash` runs all three with a planted bug.

use qcowfuzz::findings::report::bundle;
use qcowfuzz::findings::report::examiner::Examiner;
use test_support::prelude::*;

use crate::support::{Folder, OURS, Ran, checked_names_in_descriptors, corpus, small_program};

/// Inputs of all targets: with chains, data files, snapshots, damage, and a plain image file.
const SEEDS: [(&str, &str); 12] = [
    ("map_extents", "chain_raw"),
    ("map_extents", "snapshots"),
    ("map_extents", "data_file"),
    ("map_extents", "subclusters_mixed"),
    ("map_extents", "far_gap"),
    ("refcounts", "order_3"),
    ("hostile", "l2_unaligned"),
    ("hostile", "header_refused"),
    ("hostile", "vhd_header"),
    ("hostile", "vhdx_regions"),
    ("hostile", "vmdk_markers"),
    ("raw_image", "bitmaps"),
];

/// Returns the page about a seed.
pub fn page_of(dir: &Folder, target: &str, name: &str) -> String {
    fs::copy(corpus(target).join(name), dir.join(name)).unwrap();
    let ran = dir.run(&format!("report {name} --target {target} --html {name}.html")).ok().quiet();
    assert_eq!(ran.out, format!("{name}.html\n"));
    dir.read_text(&format!("{name}.html"))
}

/// Returns the values of an attribute, in order.
fn attribute<'p>(page: &'p str, name: &str) -> Vec<&'p str> {
    let pattern = format!(" {name}=\"");
    page.split(&pattern).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// Returns text as it appears in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns the content of the element with this id, up to the next closing tag of its name.
fn inside<'p>(page: &'p str, id: &str, tag: &str) -> &'p str {
    let (_, rest) = page.split_once(&format!(" id=\"{id}\"")).unwrap_or_else(|| panic!("no {id}"));
    rest.split(&format!("</{tag}>")).next().unwrap()
}

#[test]
fn pages_have_everything_that_replay_prints() {
    let dir = Folder::new();
    for (target, name) in SEEDS {
        let page = page_of(&dir, target, name);
        let json = dir.run(&format!("replay --json --target {target} {name}")).json();
        let all = |key: &str| json[key].as_array().cloned().unwrap_or_default();
        for step in all("steps") {
            let row = inside(&page, &format!("op-{}", step["number"]), "tr");
            for key in ["bytes", "operation"] {
                assert!(row.contains(&escaped(step[key].as_str().unwrap())), "{name}: {row}");
            }
            for change in step["deeds"].as_array().unwrap() {
                assert!(row.contains(change.as_str().unwrap()), "{name}: {row}");
            }
        }
        for (at, file) in all("files").iter().enumerate() {
            for (number, run) in file["runs"].as_array().unwrap().iter().enumerate() {
                let row = inside(&page, &format!("run-{at}-{number}"), "tr");
                let offset = format!("{:#x}<", run["offset"].as_u64().unwrap());
                assert!(row.contains(&offset) && row.contains(run["role"].as_str().unwrap()));
                for operation in run["operations"].as_array().unwrap().iter().take(8) {
                    assert!(row.contains(&format!("href=\"#op-{operation}\"")), "{name}: {row}");
                }
                // The picture shows it too.
                let picture = format!("<g class=\"seg\" data-item=\"run-{at}-{number}\"");
                assert!(page.contains(&picture));
            }
            for (number, entry) in file["entries"].as_array().unwrap().iter().enumerate() {
                let row = inside(&page, &format!("entry-{at}-{number}"), "tr");
                let value = |key: &str| entry[key].as_str().map(escaped).unwrap_or_default();
                for key in ["value", "spelled", "name", "damaged"] {
                    assert!(row.contains(&value(key)), "{name}: {key}: {row}");
                }
                assert_eq!(row.contains(">read<"), entry["read"] == true, "{name}: {row}");
            }
        }
        for list in ["expected", "actual"] {
            for (at, record) in all(list).iter().enumerate() {
                let cell = inside(&page, &format!("{list}-{at}"), "div");
                let length = format!(">+{:#x} ", record["length"].as_u64().unwrap());
                assert!(cell.contains(&length), "{name}: {list}: {cell}");
                assert!(page.contains(&format!("<g class=\"seg\" data-item=\"{list}-{at}\"")));
            }
        }
        for (vital, value) in json["vitals"].as_object().unwrap() {
            assert!(page.contains(&format!("{vital}</th><td class=\"number\">{value}</td>")));
        }
    }
}

#[test]
fn links_lead_to_existing_elements() {
    let dir = Folder::new();
    for (target, name) in SEEDS {
        let page = page_of(&dir, target, name);
        let ids = attribute(&page, "id");
        let known: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(known.len(), ids.len(), "{name}: an id twice");
        for link in attribute(&page, "href") {
            let id = link.strip_prefix('#').unwrap_or_else(|| panic!("{name}: leaves: {link}"));
            assert!(known.contains(id), "{name}: {id}");
        }
        for key in attribute(&page, "data-item") {
            assert!(known.contains(key), "{name}: {key}");
        }
        for number in attribute(&page, "data-ops").iter().flat_map(|list| list.split_whitespace()) {
            assert!(known.contains(format!("op-{number}").as_str()), "{name}: {number}");
        }
        for labelled in attribute(&page, "aria-labelledby") {
            assert!(known.contains(labelled), "{name}: {labelled}");
        }
        let urls: Vec<_> =
            page.split("url(").skip(1).filter_map(|it| it.split(')').next()).collect();
        assert!(urls.iter().all(|url| url.strip_prefix('#').is_some_and(|id| known.contains(id))));
    }
}

#[test]
fn pages_load_nothing() {
    let dir = Folder::new();
    for (target, name) in SEEDS {
        let page = page_of(&dir, target, name);
        for outside in "http: https: src= @import <link <iframe style=\" javascript:".split(' ') {
            assert!(!page.contains(outside), "{name}: {outside}");
        }
        let policy = attribute(&page, "content");
        let policy = policy.iter().find(|it| it.starts_with("default-src 'none'; ")).unwrap();
        assert!(!policy.contains("unsafe") && policy.contains("base-uri 'none'"), "{policy}");
        assert_eq!(page.matches("<script").count(), 1);
        assert!(page.contains("<h1 class=\"fine\">"), "{name}");
        // The page describes missing parts in words.
        let tables = page.matches("<table").count();
        assert_eq!(page.matches("<caption>").count(), tables, "{name}");
        assert!(
            page.matches("<th").count()
                == page.matches("<th scope=").count() + page.matches("<thead").count()
        );
    }
}

#[test]
fn pages_show_three_answers_side_by_side() {
    let dir = Folder::new();
    if dir.qemu_img("--version").is_none() {
        let page = page_of(&dir, "map_extents", "chain_raw");
        assert!(page.contains("<strong>qemu-img</strong>: not run: qemu-img is not installed."));
        return;
    }
    let names = "chain_raw chain_sizes data_file snapshots subclusters_mixed zstd_crossing";
    for name in names.split(' ') {
        let page = page_of(&dir, "map_extents", name);
        let ids = attribute(&page, "id");
        let [actual, expected, qemu] = ["actual-", "expected-", "qemu-"]
            .map(|key| ids.iter().filter(|id| id.starts_with(key)).count());
        assert!(actual > 1 && expected == actual && qemu == actual, "{name}");
        assert!(!page.contains("differ</strong>") && !page.contains("no extents"), "{name}");
    }
    for (target, name, parts) in [
        // Damaged images, for which qemu-img prints the fault.
        (
            "hostile",
            "l2_unaligned",
            ["qcow2: Image is corrupt: Cluster allocation offset 0x50800 unaligned", "no extents"],
        ),
        (
            "hostile",
            "header_refused",
            ["could not open the image: Unsupported cluster size: 2^40.", ""],
        ),
        // A file of the user: the command does not run qemu-img on it.
        (
            "raw_image",
            "bitmaps",
            ["not run: the input is an image file", "no program built the file"],
        ),
    ] {
        let page = page_of(&dir, target, name);
        let said = format!("<strong>qemu-img</strong>: {}", parts[0]);
        assert!(page.contains(&said) && page.contains(parts[1]), "{name}");
    }
    // The command passes the files of a chain to qemu-img as options. Here the image's own name of its backing file is
    // truncated.
    let page = page_of(&dir, "hostile", "cut_before_the_name");
    assert!(page.contains(" id=\"qemu-0\"") && !page.contains("no extents"));
}

#[test]
fn nothing_is_left_behind() {
    let dir = Folder::new();
    fs::create_dir(dir.join("scratch")).unwrap();
    fs::copy(corpus("map_extents/chain_raw"), dir.join("input")).unwrap();
    let mut command = dir.command(OURS, "report input --html page.html");
    Ran::of(command.env("TMPDIR", dir.join("scratch"))).ok();
    assert_eq!(fs::read_dir(dir.join("scratch")).unwrap().count(), 0);
    assert_eq!(dir.names(), ["input", "page.html", "scratch"]);
}

#[test]
fn names_of_files_are_escaped() {
    let name = "<script>alert(1)<script>&\"'";
    let dir = Folder::of([(name, &small_program())]);
    dir.run(&["report", name, "--html", "page.html"]).ok();
    let page = dir.read_text("page.html");
    assert_eq!(page.matches("<script").count(), 1);
    assert!(page.contains("<dd>&lt;script&gt;alert(1)&lt;script&gt;&amp;&quot;'</dd>"));
}

/// Returns a folder with files that cannot be inputs or outputs.
fn with_odd_files() -> Folder {
    let dir = Folder::of([("program", &small_program()), ("empty", b""), ("there", b"mine")]);
    dir.write_long("long");
    fs::create_dir(dir.join("folder")).unwrap();
    dir
}

#[test]
fn failures_are_reported_in_one_line_and_nothing_is_written() {
    let dir = with_odd_files();
    let nothing = "no violation was found, expected an input that shows one";
    for [words, expected] in rows(&format!(
        "report empty --html new | empty: is empty, expected an input of a fuzz target
         report missing --html new | missing:
         report folder --html new | folder:
         report long --html new | long: is too long for a fuzz target, expected at most
         report program --html there | there: the file exists, expected a new one or --force
         report program --html none/new | none/new:
         report program --html folder --force | folder:
         report program --html program --force | program: is the input file, expected another file
         bundle missing -o new | missing: No such file or directory
         bundle program -o new | program: {nothing} (--target map_extents)
         bundle empty -o new --target raw_image | empty: {nothing} (--target raw_image)
         bundle long -o new | long: is too long for a fuzz target
         bundle program -o there | there: the file exists, expected a new one or --force
         bundle program -o program --force | program: is the input file, expected another file"
    )) {
        dir.run(words).fails(2, expected);
        assert!(!dir.join("new").exists(), "{words}");
    }
    assert_eq!(dir.read("there"), b"mine");
    assert_eq!(dir.read("program"), small_program());
    dir.run("report program --html there --force").ok();
    assert!(dir.read_text("there").starts_with("<!DOCTYPE html>"));
}

#[test]
fn a_program_without_operations_has_a_page() {
    let dir = Folder::of([("nothing", &Program::default().encode())]);
    dir.run("report nothing --html page.html").ok();
}

#[test]
fn inputs_that_show_nothing_are_listed() {
    let dir = Folder::new();
    fs::create_dir(dir.join("refcounts")).unwrap();
    dir.write("refcounts/.gitkeep", "");
    dir.write("refcounts/crash-0", "");
    fs::copy(corpus("refcounts/order_4"), dir.join("refcounts/crash-1")).unwrap();
    let start =
        "refcounts: 2 inputs, 0 fingerprints, 0 of them new\n\nno violation any more: 2 inputs\n";
    dir.run("triage refcounts").ok().begins(start).has("       0 bytes  refcounts/crash-0\n");
    // The folder's name gives the target.
    let printed = dir.run("triage --json refcounts").json();
    assert_eq!((&printed["target"], &printed["inputs"]), (&"refcounts".into(), &2.into()));
    assert_eq!(printed["nothing"][0]["path"], "refcounts/crash-0");
}

#[test]
fn inputs_that_cannot_be_run_or_read_are_reported() {
    let dir = Folder::new();
    dir.run("triage missing").exits(2);
    fs::create_dir_all(dir.join("artifacts")).unwrap();
    dir.write_long("artifacts/long");
    dir.write("artifacts/short", "");
    let ran = dir.run("triage artifacts").exits(2).begins("artifacts: 1 input, 0 fingerprints");
    let lines: Vec<_> = ran.err.lines().collect();
    let long = "artifacts/long: is too long for a fuzz target, expected at most 1048576 bytes";
    assert_eq!(lines[0], format!("qcowfuzz: {long}"));
    assert_eq!(lines[1], "qcowfuzz: artifacts: 1 of the files could not be run");
    // A file among the known bugs that does not describe one.
    fs::remove_file(dir.join("artifacts/long")).unwrap();
    fs::create_dir(dir.join("known")).unwrap();
    dir.write("known/bug.txt", "image version=3\n");
    for (known, line) in [
        ("known", "known/bug.txt: line 1: no comment, expected '; ' and the fingerprint"),
        ("missing", "missing: No such file"),
    ] {
        let ran = dir.run(&format!("triage artifacts --known {known}")).exits(2);
        assert!(ran.err.starts_with(&format!("qcowfuzz: {line}")), "{ran:?}");
    }
    dir.run("triage artifacts").ok();
}

#[test]
fn long_programs_are_no_hangs() {
    // The output about one program is longer than the buffer of a pipe.
    let dir = Folder::new();
    fs::create_dir(dir.join("artifacts")).unwrap();
    let mut long = generate(1, GenerateSettings { operations: 3, compressed: false });
    long.operations = long.operations.repeat(1000);
    dir.write("artifacts/long", long.encode());
    let ran = dir.run("triage artifacts --timeout 120").ok();
    ran.has("no violation any more: 1 input\n");
    dir.run("report artifacts/long --html page.html").ok();
}

/// Readers other than QEMU open the extents that an embedded descriptor names, even if the extent is the image itself.
#[test]
fn each_descriptor_in_a_bundle_names_files_of_the_bundle() {
    for extents in
        ["", "extent kind=sparse length=1<<1 lead=0\nextent kind=flat length=1<<1 lead=0\n"]
    {
        let operations = format!(
            "{extents}overlay_vmdk cluster_bits=12 form=0 size=same\n{extents}write at=start+1 clusters=1\n"
        );
        let input = lines::encoded("size=8<<16+0 base=vmdk", &operations);
        let names = FileNames::default();
        let target = TargetKind::MapExtents;
        let walker = Implementation::our_walker();
        let mut examiner = Examiner::new(&walker, target, Checks::default(), names);
        let report = examiner.examine(Path::new("input"), &input);
        let packed = bundle::archive(&report, &input, &[], Path::new("bug")).unwrap();
        let dir = Folder::of([("bug.tar", &packed)]);
        Ran::of(&mut dir.command("tar", "xf bug.tar")).ok();
        let named = checked_names_in_descriptors(&dir.join("bug/image"));
        assert!(named >= 3, "{named} names");
    }
}
