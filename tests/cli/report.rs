//! `report`: the page has everything that `replay --json` has, its links lead to existing elements, it loads nothing,
//! and the command refuses inputs for which it cannot make a page.

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
