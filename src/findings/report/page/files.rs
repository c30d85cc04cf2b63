//! The files that were built, drawn to scale, and as tables.

use std::collections::BTreeMap;
use std::ops::Range;

use maud::{Markup, html};

use crate::findings::explain::{FileKind, FileRun, FileView};
use crate::harness::oracles::qcow2::recount::Role;

use super::layout::{
    DrawnPart, Links, MOST_RUNS, Scale, WIDTH, filled, label_at, left_out, rounded, shown, spoken,
    swatch, table, ticks,
};

/// Returns the abbreviation of a role, for narrow pieces, and its style.
fn letters_and_style(run: &FileRun) -> (&'static str, &'static str) {
    match run.role {
        Some(Role::Header) => ("H", "header"),
        Some(Role::L1Table) => ("L1", "l1"),
        Some(Role::L2Table) => ("L2", "l2"),
        Some(Role::RefcountTable) => ("RT", "refcount-table"),
        Some(Role::RefcountBlock) => ("RB", "refcount-block"),
        Some(Role::SnapshotTable) => ("S", "snapshots"),
        Some(Role::BitmapDirectory) => ("BD", "bitmap-directory"),
        Some(Role::BitmapTable) => ("BT", "bitmap-table"),
        Some(Role::BitmapData) => ("B", "bitmap-data"),
        Some(Role::Data) => ("D", "data"),
        Some(Role::Compressed) => ("C", "compressed"),
        Some(Role::BlockTable) => ("T", "l2"),
        Some(Role::BlockFront) => ("F", "bitmap-data"),
        Some(Role::Directory) => ("DI", "l1"),
        Some(Role::Metadata) => ("M", "snapshots"),
        None if run.on_disk > 0 => ("!", "leak"),
        None => ("·", "hole"),
    }
}

const STRIP_HEIGHT: f64 = 46.0;

/// Returns the section.
pub fn section(files: &[FileView], links: &Links, failing: Option<usize>) -> Markup {
    html! {
        section #files aria-labelledby="files-h" {
            h2 #files-h { "The host files" }
            @if files.is_empty() { p { "The run built no file." } } @else { (legend(files)) }
            @for (at, file) in files.iter().enumerate() { (one(at, file, links, failing)) }
        }
    }
}

/// Returns the name of a file on the page.
pub fn title(file: &FileView) -> String {
    let mut title = file.kind.name() + &file.layer();
    // A title begins with a capital letter.
    title[..1].make_ascii_uppercase();
    title
}

fn legend(files: &[FileView]) -> Markup {
    let runs = files.iter().flat_map(|file| &file.runs);
    // Structures first, and unused bytes last.
    let roles: BTreeMap<_, _> =
        runs.map(|run| ((run.role.is_none(), run.role, run.role_name()), run)).collect();
    html! {
        ul.legend aria-label="Roles in the pictures" {
            @for ((.., name), run) in roles {
                @let (letters, style) = letters_and_style(run);
                li { (swatch(letters, style)) " " (name) }
            }
        }
    }
}

fn one(at: usize, file: &FileView, links: &Links, failing: Option<usize>) -> Markup {
    let FileView { length_bytes, cut_to_bytes, cluster_bytes, runs, fault, .. } = file;
    let is_failing = |run: &FileRun| failing.is_some_and(|it| run.operations.contains(&it));
    let ranges = shown(runs.len(), MOST_RUNS, runs.iter().position(is_failing));
    html! {
        h3 id=(format!("file-{at}")) { (title(file)) }
        p {
            (length_bytes) " bytes, clusters of " (cluster_bytes) " bytes."
            @if let Some(cut) = cut_to_bytes { " Damage: " strong { "cut to " (cut) " bytes" } "." }
        }
        @if let Some(fault) = fault { p.fault { strong { "Incomplete: " } (fault) } }
        @if runs.is_empty() { p { "The file is empty." } } @else {
            (picture(at, file, &ranges))
            (left_out("runs", runs.len(), &ranges))
            (run_table(at, file, &ranges, links))
        }
    }
}

fn picture(at: usize, file: &FileView, ranges: &[Range<usize>]) -> Markup {
    let runs = || {
        ranges
            .iter()
            .flat_map(|range| range.clone().filter_map(|it| Some((it, file.runs.get(it)?))))
    };
    let mut edges: Vec<u64> =
        runs().flat_map(|(_, run)| [run.bytes.start, run.bytes.end]).collect();
    edges.sort_unstable();
    // Runs are hidden between two shown ranges, and after the last.
    let mut cuts: Vec<u64> = Vec::new();
    for range in ranges.iter().filter(|range| range.end < file.runs.len()) {
        let last = range.end.checked_sub(1).and_then(|last| file.runs.get(last));
        cuts.extend(last.map(|run| run.bytes.end));
    }
    edges.extend(file.runs.last().map(|run| run.bytes.end));
    let scale = Scale::new(edges, WIDTH, file.cluster_bytes, &cuts);
    let width = rounded(scale.width() + 2.0);
    let label = format!("{}: {} runs, drawn to scale", title(file), file.runs.len());
    html! {
        figure {
            div.scroll {
                svg.strip.group role="group" aria-label=(label) width=(width) height="74"
                    viewBox=(format!("-1 -2 {width} 74"))
                {
                    @for (number, run) in runs() {
                        (segment(format!("run-{at}-{number}"), file, run).drawn(&scale, STRIP_HEIGHT))
                    }
                    @for cut in &cuts { (omitted(*cut, &scale)) }
                    (ticks(&scale, STRIP_HEIGHT))
                }
            }
            figcaption { (scale.caption()) }
        }
    }
}

fn segment(key: String, file: &FileView, run: &FileRun) -> DrawnPart<'static> {
    let (letters, style) = letters_and_style(run);
    let label = format!("{}, {}", says(file, run), spoken(&run.operations));
    DrawnPart { key, label, bytes: run.bytes.clone(), letters, name: run.role_name(), style }
}

fn omitted(start: u64, scale: &Scale) -> Markup {
    html! {
        @for piece in scale.pieces.iter().filter(|piece| piece.start == start) {
            g role="img" aria-label="not shown" {
                (filled(piece.x, 0.0, piece.width, STRIP_HEIGHT, "omitted"))
                (label_at(piece.x + piece.width / 2.0, STRIP_HEIGHT, "not shown"))
            }
        }
    }
}

/// Returns a run in words.
fn says(file: &FileView, run: &FileRun) -> String {
    let clusters = file.clusters(run);
    let many = if clusters == 1 { "cluster" } else { "clusters" };
    let whose = match file.depth {
        0 if matches!(file.kind, FileKind::Image | FileKind::OtherImage) => String::new(),
        _ => format!(" of the {}", title(file).to_lowercase()),
    };
    format!("{} at {:#x} ({clusters} {many}{whose})", run.role_name(), run.bytes.start)
}

fn run_table(at: usize, file: &FileView, ranges: &[Range<usize>], links: &Links) -> Markup {
    let counted = ["Offset", "Clusters", "Role", "References", "Refcount", "Operations"];
    let plain = ["Offset", "Clusters", "Role", "Operations"];
    let headings = if file.kind == FileKind::Image { &counted[..] } else { &plain };
    let rows = html! {
        @for number in ranges.iter().cloned().flatten() {
            @if let Some(run) = file.runs.get(number) {
                (row(&format!("run-{at}-{number}"), file, run, links))
            }
        }
    };
    table("group", &format!("As a table: {}", title(file)), headings, &rows)
}

fn row(key: &str, file: &FileView, run: &FileRun, links: &Links) -> Markup {
    let FileRun { bytes, references, on_disk, operations, .. } = run;
    let (letters, style) = letters_and_style(run);
    html! {
        tr id=(key) data-item=(key) data-kind="run" data-ops=(links.list(operations))
            data-says=(says(file, run)) data-by=(spoken(operations))
        {
            th scope="row" { span.handle { (format!("{:#x}", bytes.start)) } }
            td.number { (file.clusters(run)) }
            td { (swatch(letters, style)) " " (run.role_name()) }
            @if file.kind == FileKind::Image {
                td.number { (references) }
                td.number { (on_disk) @if references != on_disk { " " strong.badge { "does not match" } } }
            }
            td { (links.named(operations)) }
        }
    }
}
