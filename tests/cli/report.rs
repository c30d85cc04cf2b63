//! `report`, `triage` and `bundle`. A page has everything that `replay --json` has, its links lead to existing
//! elements, and it loads nothing. `cargo xtask from-crash` runs all three with a planted bug.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{error_line, qcowfuzz, qemu_img, small_program, text};

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

fn seed(target: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target).join(name)
}

/// Returns the page about a seed.
pub fn page_of(dir: &Path, target: &str, name: &str) -> String {
    let (seed, html) = (seed(target, name), format!("{name}.html"));
    let arguments = ["report", seed.to_str().unwrap(), "--target", target, "--html", &html];
    let output = qcowfuzz(dir, &arguments);
    assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
    assert_eq!(text(&output.stdout), format!("{html}\n"));
    assert!(output.stderr.is_empty());
    fs::read_to_string(dir.join(html)).unwrap()
}

fn json_of(target: &str, name: &str) -> serde_json::Value {
    let seed = seed(target, name);
    let arguments = ["replay", "--json", "--target", target, seed.to_str().unwrap()];
    serde_json::from_slice(&qcowfuzz(Path::new("."), &arguments).stdout).unwrap()
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
    let dir = tempfile::tempdir().unwrap();
    for (target, name) in SEEDS {
        let (page, json) = (page_of(dir.path(), target, name), json_of(target, name));
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
                assert!(
                    page.contains(&format!("<g class=\"seg\" data-item=\"run-{at}-{number}\""))
                );
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
    let dir = tempfile::tempdir().unwrap();
    for (target, name) in SEEDS {
        let page = page_of(dir.path(), target, name);
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
    let dir = tempfile::tempdir().unwrap();
    for (target, name) in SEEDS {
        let page = page_of(dir.path(), target, name);
        for outside in
            ["http:", "https:", "src=", "@import", "<link", "<iframe", "style=\"", "javascript:"]
        {
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
    let dir = tempfile::tempdir().unwrap();
    if qemu_img(dir.path(), &["--version"]).is_none() {
        let page = page_of(dir.path(), "map_extents", "chain_raw");
        assert!(page.contains("<strong>qemu-img</strong>: not run: qemu-img is not installed."));
        return;
    }
    for name in
        ["chain_raw", "chain_sizes", "data_file", "snapshots", "subclusters_mixed", "zstd_crossing"]
    {
        let page = page_of(dir.path(), "map_extents", name);
        let count =
            |key: &str| attribute(&page, "id").iter().filter(|id| id.starts_with(key)).count();
        assert!(count("actual-") > 1);
        assert_eq!(
            (count("expected-"), count("qemu-")),
            (count("actual-"), count("actual-")),
            "{name}"
        );
        assert!(!page.contains("differ</strong>") && !page.contains("no extents"), "{name}");
    }
    // A damaged image, for which qemu-img prints the fault.
    let page = page_of(dir.path(), "hostile", "l2_unaligned");
    let said = "<strong>qemu-img</strong>: qcow2: Image is corrupt: Cluster allocation offset 0x50800 unaligned";
    assert!(page.contains(said) && page.contains("no extents"));
    let page = page_of(dir.path(), "hostile", "header_refused");
    let said =
        "<strong>qemu-img</strong>: could not open the image: Unsupported cluster size: 2^40.";
    assert!(page.contains(said));
    // A file of the user: the command does not run qemu-img on it.
    let page = page_of(dir.path(), "raw_image", "bitmaps");
    assert!(page.contains("<strong>qemu-img</strong>: not run: the input is an image file"));
    assert!(page.contains("no program built the file"));
}

/// The command passes the files of a chain to qemu-img as options. Here the image's own name of its backing file is
/// truncated.
#[test]
fn qemu_img_follows_no_name() {
    let dir = tempfile::tempdir().unwrap();
    if qemu_img(dir.path(), &["--version"]).is_none() {
        return;
    }
    let page = page_of(dir.path(), "hostile", "cut_before_the_name");
    assert!(page.contains(" id=\"qemu-0\"") && !page.contains("no extents"));
}

#[test]
fn nothing_is_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let places: BTreeMap<_, _> = [("TMPDIR", dir.path().join("scratch"))].into();
    fs::create_dir(&places["TMPDIR"]).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_qcowfuzz"));
    command.current_dir(dir.path()).envs(&places).arg("report");
    command.arg(seed("map_extents", "chain_raw")).args(["--html", "page.html"]);
    assert!(command.output().unwrap().status.success());
    assert_eq!(fs::read_dir(&places["TMPDIR"]).unwrap().count(), 0);
    let mut left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["page.html", "scratch"]);
}

#[test]
fn names_of_files_are_escaped() {
    let dir = tempfile::tempdir().unwrap();
    let name = "<script>alert(1)<script>&\"'";
    fs::write(dir.path().join(name), small_program()).unwrap();
    let output = qcowfuzz(dir.path(), &["report", name, "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = fs::read_to_string(dir.path().join("page.html")).unwrap();
    assert_eq!(page.matches("<script").count(), 1);
    assert!(page.contains("<dd>&lt;script&gt;alert(1)&lt;script&gt;&amp;&quot;'</dd>"));
}

#[test]
fn failures_are_reported_in_one_line_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("program"), small_program()).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("long"), vec![0; (1 << 20) + 1]).unwrap();
    fs::write(at("there"), "mine").unwrap();
    fs::create_dir(at("folder")).unwrap();
    let cases: [(&[&str], &str); 8] = [
        (&["empty", "--html", "new"], "empty: is empty, expected an input of a fuzz target"),
        (&["missing", "--html", "new"], "missing: "),
        (&["folder", "--html", "new"], "folder: "),
        (&["long", "--html", "new"], "long: is too long for a fuzz target, expected at most "),
        (&["program", "--html", "there"], "there: the file exists, expected a new one or --force"),
        (&["program", "--html", "none/new"], "none/new: "),
        (&["program", "--html", "folder", "--force"], "folder: "),
        (
            &["program", "--html", "program", "--force"],
            "program: is the input file, expected another file",
        ),
    ];
    for (arguments, expected) in cases {
        let output = qcowfuzz(dir.path(), &[&["report"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error_line(&output).starts_with(expected), "{}", error_line(&output));
        assert!(output.stdout.is_empty() && !at("new").exists(), "{arguments:?}");
    }
    assert_eq!(fs::read(at("there")).unwrap(), b"mine");
    assert_eq!(fs::read(at("program")).unwrap(), small_program());
    let output = qcowfuzz(dir.path(), &["report", "program", "--html", "there", "--force"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(fs::read_to_string(at("there")).unwrap().starts_with("<!DOCTYPE html>"));
}

#[test]
fn a_program_without_operations_has_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let program = qcowfuzz::programs::Program::default().encode();
    fs::write(dir.path().join("nothing"), program).unwrap();
    let output = qcowfuzz(dir.path(), &["report", "nothing", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

fn corpus(target: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

#[test]
fn inputs_that_show_nothing_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("refcounts");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join(".gitkeep"), "").unwrap();
    fs::copy(corpus("refcounts").join("order_4"), folder.join("crash-1")).unwrap();
    fs::write(folder.join("crash-0"), "").unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "refcounts"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let start = "refcounts: 2 inputs, 0 bugs, 0 of them new\n\nno violation any more: 2 inputs\n";
    assert!(out.starts_with(start), "{out}");
    assert!(out.contains("       0 bytes  refcounts/crash-0\n"), "{out}");
    // The folder's name gives the target.
    let output = qcowfuzz(dir.path(), &["triage", "--json", "refcounts"]);
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed["target"], &printed["inputs"]), (&"refcounts".into(), &2.into()));
    assert_eq!(printed["nothing"][0]["path"], "refcounts/crash-0");
}

#[test]
fn inputs_that_cannot_be_run_or_read_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "missing"]);
    assert_eq!(output.status.code(), Some(2));
    let folder = dir.path().join("artifacts");
    fs::create_dir_all(&folder).unwrap();
    fs::File::create(folder.join("long")).unwrap().set_len(100 << 20).unwrap();
    fs::write(folder.join("short"), "").unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts"]);
    assert_eq!(output.status.code(), Some(2));
    let lines: Vec<_> = text(&output.stderr).lines().collect();
    let long = "artifacts/long: is too long for a fuzz target, expected at most 1048576 bytes";
    assert_eq!(lines[0], format!("qcowfuzz: {long}"));
    assert_eq!(lines[1], "qcowfuzz: artifacts: 1 of the files could not be run");
    assert!(text(&output.stdout).starts_with("artifacts: 1 input, 0 bugs"));
    // A file among the known bugs that does not describe one.
    fs::remove_file(folder.join("long")).unwrap();
    fs::create_dir(dir.path().join("known")).unwrap();
    fs::write(dir.path().join("known/bug.txt"), "image version=3\n").unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts", "--known", "known"]);
    assert_eq!(output.status.code(), Some(2));
    let line = "qcowfuzz: known/bug.txt: line 1: no comment, expected '; ' and the fingerprint";
    assert!(text(&output.stderr).starts_with(line), "{}", text(&output.stderr));
}

#[test]
fn long_programs_are_no_hangs() {
    // The output about one program is longer than the buffer of a pipe.
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("artifacts");
    fs::create_dir(&folder).unwrap();
    let mut long = qcowfuzz::programs::generate::generate(1, WANTED);
    long.operations = long.operations.repeat(1000);
    fs::write(folder.join("long"), long.encode()).unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts", "--timeout", "120"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("no violation any more: 1 input\n"));
    let output = qcowfuzz(dir.path(), &["report", "artifacts/long", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

const WANTED: qcowfuzz::programs::generate::GenerateSettings =
    qcowfuzz::programs::generate::GenerateSettings { operations: 3, compressed: false };

#[test]
fn a_folder_of_known_bugs_that_is_named_must_be_there() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("artifacts")).unwrap();
    let output = qcowfuzz(dir.path(), &["triage", "artifacts", "--known", "missing"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("qcowfuzz: missing: No such file"));
    assert_eq!(qcowfuzz(dir.path(), &["triage", "artifacts"]).status.code(), Some(0));
}

#[test]
fn inputs_that_cannot_be_packed_are_reported_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("input"), small_program()).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("there"), "mine").unwrap();
    fs::File::create(at("long")).unwrap().set_len(100 << 20).unwrap();
    let nothing = "no violation was found, expected an input that shows one";
    let cases: [(&[&str], &str); 6] = [
        (&["missing", "-o", "out"], "missing: No such file or directory"),
        (&["input", "-o", "out"], &format!("input: {nothing} (--target map_extents)")),
        (
            &["empty", "-o", "out", "--target", "raw_image"],
            &format!("empty: {nothing} (--target raw_image)"),
        ),
        (&["long", "-o", "out"], "long: is too long for a fuzz target"),
        (&["input", "-o", "there"], "there: the file exists, expected a new one or --force"),
        (&["input", "-o", "input", "--force"], "input: is the input file, expected another file"),
    ];
    for (arguments, expected) in cases {
        let output = qcowfuzz(dir.path(), &[&["bundle"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(error_line(&output).starts_with(expected), "{}", error_line(&output));
        assert!(output.stdout.is_empty());
    }
    assert!(!at("out").exists());
    assert_eq!(fs::read(at("there")).unwrap(), b"mine");
}
