//! The files that were built, drawn to scale, and as tables.

use std::ops::Range;

use maud::{Markup, html};

use crate::findings::explain::FileKind;
use crate::findings::report::evidence::{FileJson, RunJson, RunRole};
use crate::harness::oracles::qcow2::recount::Role;

use super::layout::{Links, MOST_RUNS, Scale, ScalePiece, WIDTH, left_out, shown, spoken};

/// The roles in the order of the legend.
const ROLES: [RunRole; 17] = [
    RunRole::Used(Role::Header),
    RunRole::Used(Role::L1Table),
    RunRole::Used(Role::L2Table),
    RunRole::Used(Role::RefcountTable),
    RunRole::Used(Role::RefcountBlock),
    RunRole::Used(Role::SnapshotTable),
    RunRole::Used(Role::BitmapDirectory),
    RunRole::Used(Role::BitmapTable),
    RunRole::Used(Role::BitmapData),
    RunRole::Used(Role::Metadata),
    RunRole::Used(Role::Directory),
    RunRole::Used(Role::BlockTable),
    RunRole::Used(Role::BlockFront),
    RunRole::Used(Role::Data),
    RunRole::Used(Role::Compressed),
    RunRole::Hole,
    RunRole::Leak,
];

/// Returns the abbreviation of a role, for narrow pieces, and its style.
fn letters_and_style(role: RunRole) -> (&'static str, &'static str) {
    match role {
        RunRole::Used(role) => match role {
            Role::Header => ("H", "header"),
            Role::L1Table => ("L1", "l1"),
            Role::L2Table => ("L2", "l2"),
            Role::RefcountTable => ("RT", "refcount-table"),
            Role::RefcountBlock => ("RB", "refcount-block"),
            Role::SnapshotTable => ("S", "snapshots"),
            Role::BitmapDirectory => ("BD", "bitmap-directory"),
            Role::BitmapTable => ("BT", "bitmap-table"),
            Role::BitmapData => ("B", "bitmap-data"),
            Role::Data => ("D", "data"),
            Role::Compressed => ("C", "compressed"),
            Role::BlockTable => ("T", "l2"),
            Role::BlockFront => ("F", "bitmap-data"),
            Role::Directory => ("DI", "l1"),
            Role::Metadata => ("M", "snapshots"),
        },
        RunRole::Hole => ("·", "hole"),
        RunRole::Leak => ("!", "leak"),
    }
}

const STRIP_HEIGHT: f64 = 46.0;
/// The minimum distance between two offsets below a strip.
const TICK_WIDTH: f64 = 84.0;

/// Returns the section.
pub fn section(files: &[FileJson], links: &Links, failing: Option<usize>) -> Markup {
    html! {
        section #files aria-labelledby="files-h" {
            h2 #files-h { "The host files" }
            @if files.is_empty() { p { "The run built no file." } } @else { (legend(files)) }
            @for (at, file) in files.iter().enumerate() { (one(at, file, links, failing)) }
        }
    }
}

/// Returns the name of a file on the page.
pub fn title(file: &FileJson) -> String {
    let mut what = file.kind.name();
    // A title begins with a capital letter.
    what[..1].make_ascii_uppercase();
    match file.depth {
        0 => what,
        1 => format!("{what}, 1 layer down"),
        depth => format!("{what}, {depth} layers down"),
    }
}

fn legend(files: &[FileJson]) -> Markup {
    let there = |role: RunRole| files.iter().flat_map(|it| &it.runs).any(|run| run.role == role);
    html! {
        ul.legend aria-label="Roles in the pictures" {
            @for role in ROLES.into_iter().filter(|role| there(*role)) {
                @let (letters, style) = letters_and_style(role);
                li { (swatch(letters, style)) " " (role.name()) }
            }
        }
    }
}

/// Returns a sample of a style for a legend.
pub fn swatch(letters: &str, style: &str) -> Markup {
    html! {
        svg.swatch width="26" height="18" viewBox="0 0 26 18" aria-hidden="true" {
            (filled(0.5, 0.5, 25.0, 17.0, style))
            text x="13" y="13" { (letters) }
        }
    }
}

/// Returns a rectangle in a style: its colour, and its pattern over it.
pub fn filled(x: f64, y: f64, width: f64, height: f64, style: &str) -> Markup {
    let [x, y, width, height] = [x, y, width, height].map(rounded);
    html! {
        rect class=(format!("box fill-{style}")) x=(x) y=(y) width=(width) height=(height) {}
        rect class=(format!("pattern pattern-{style}")) x=(x) y=(y) width=(width) height=(height) {}
    }
}

/// Returns the zigzag of a piece with a break. It is right of the middle, because the middle has the label.
pub fn zigzag(piece: &ScalePiece, top: f64, height: f64) -> Markup {
    let middle = piece.x + piece.width * 0.8;
    let step = height / 6.0;
    let points: Vec<_> = (0..=6)
        .map(|at| {
            let side = if at % 2 == 0 { -4.0 } else { 4.0 };
            format!("{},{}", rounded(middle + side), rounded(top + step * f64::from(at)))
        })
        .collect();
    let points = points.join(" ");
    html! { polyline.zigzag points=(points) {} polyline.zigzag.gap points=(points) {} }
}

/// Formats a coordinate with one decimal place.
pub fn rounded(value: f64) -> String {
    format!("{value:.1}")
}

fn one(at: usize, file: &FileJson, links: &Links, failing: Option<usize>) -> Markup {
    let FileJson { length_bytes, cut_to_bytes, cluster_bytes, runs, fault, .. } = file;
    let is_failing = |run: &RunJson| failing.is_some_and(|it| run.operations.contains(&it));
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
            (table(at, file, &ranges, links))
        }
    }
}

fn picture(at: usize, file: &FileJson, ranges: &[Range<usize>]) -> Markup {
    let runs = || {
        ranges
            .iter()
            .flat_map(|range| range.clone().filter_map(|it| Some((it, file.runs.get(it)?))))
    };
    let mut edges: Vec<u64> =
        runs().flat_map(|(_, run)| [run.offset, run.offset.saturating_add(run.length)]).collect();
    edges.sort_unstable();
    // Runs are hidden between two shown ranges, and after the last.
    let mut cuts: Vec<u64> = Vec::new();
    for range in ranges.iter().filter(|range| range.end < file.runs.len()) {
        let last = range.end.checked_sub(1).and_then(|last| file.runs.get(last));
        cuts.extend(last.map(|run| run.offset.saturating_add(run.length)));
    }
    edges.extend(file.runs.last().map(|run| run.offset.saturating_add(run.length)));
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
                        (segment(&format!("run-{at}-{number}"), file, run, &scale))
                    }
                    @for cut in &cuts { (omitted(*cut, &scale)) }
                    (ticks(&scale, STRIP_HEIGHT))
                }
            }
            figcaption { (scale.caption()) }
        }
    }
}

fn segment(key: &str, file: &FileJson, run: &RunJson, scale: &Scale) -> Markup {
    let end = run.offset.saturating_add(run.length);
    let (x, (letters, style)) = (scale.x(run.offset), letters_and_style(run.role));
    let width = scale.x(end) - x;
    let text = if width > 96.0 { run.role.name() } else { letters };
    let label = format!("{}, {}", says(file, run), spoken(&run.operations));
    html! {
        g.seg data-item=(key) role="img" aria-label=(label) {
            title { (label) }
            (filled(x, 0.0, width, STRIP_HEIGHT, style))
            text x=(rounded(x + width / 2.0)) y="27" { (text) }
            @for piece in scale.between(run.offset, end).iter().filter(|it| it.broken) {
                (zigzag(piece, 0.0, STRIP_HEIGHT))
            }
        }
    }
}

fn omitted(start: u64, scale: &Scale) -> Markup {
    html! {
        @for piece in scale.pieces.iter().filter(|piece| piece.start == start) {
            g role="img" aria-label="not shown" {
                (filled(piece.x, 0.0, piece.width, STRIP_HEIGHT, "omitted"))
                text x=(rounded(piece.x + piece.width / 2.0)) y="27" { "not shown" }
            }
        }
    }
}

/// Returns the offsets below a picture, as many as fit.
pub fn ticks(scale: &Scale, top: f64) -> Markup {
    let mut free = 0.0;
    let mut marks = Vec::new();
    for piece in &scale.pieces {
        let to_the_left = piece.x > scale.width() - TICK_WIDTH;
        let begins = if to_the_left { piece.x - TICK_WIDTH } else { piece.x };
        if begins >= free {
            marks.push((piece.x, piece.start));
            free = if to_the_left { f64::INFINITY } else { piece.x + TICK_WIDTH };
        }
    }
    html! {
        g.ticks aria-hidden="true" {
            @for (x, offset) in marks {
                line x1=(rounded(x)) x2=(rounded(x)) y1=(rounded(top)) y2=(rounded(top + 6.0)) {}
                @let anchor = if x > scale.width() - TICK_WIDTH { "end" } else { "start" };
                text x=(rounded(x)) y=(rounded(top + 18.0)) text-anchor=(anchor) { (format!("{offset:#x}")) }
            }
        }
    }
}

/// Returns a run in words.
fn says(file: &FileJson, run: &RunJson) -> String {
    let clusters = clusters(file, run);
    let many = if clusters == 1 { "cluster" } else { "clusters" };
    let whose = match file.depth {
        0 if matches!(file.kind, FileKind::Image | FileKind::OtherImage) => String::new(),
        _ => format!(" of the {}", title(file).to_lowercase()),
    };
    format!("{} at {:#x} ({clusters} {many}{whose})", run.role.name(), run.offset)
}

fn clusters(file: &FileJson, run: &RunJson) -> u64 {
    run.length.div_ceil(file.cluster_bytes.max(1))
}

fn table(at: usize, file: &FileJson, ranges: &[Range<usize>], links: &Links) -> Markup {
    let counted = file.kind == FileKind::Image;
    html! {
        div.scroll {
            table.group {
                caption { "As a table: " (title(file)) }
                thead { tr {
                    th scope="col" { "Offset" } th scope="col" { "Clusters" } th scope="col" { "Role" }
                    @if counted { th scope="col" { "References" } th scope="col" { "Refcount" } }
                    th scope="col" { "Operations" }
                } }
                tbody {
                    @for range in ranges {
                        @for number in range.clone() {
                            @if let Some(run) = file.runs.get(number) {
                                (row(&format!("run-{at}-{number}"), file, run, links))
                            }
                        }
                    }
                }
            }
        }
    }
}

fn row(key: &str, file: &FileJson, run: &RunJson, links: &Links) -> Markup {
    let RunJson { offset, role, references, refcount, operations, .. } = run;
    let (letters, style) = letters_and_style(*role);
    let off = file.kind == FileKind::Image && references != refcount;
    html! {
        tr id=(key) data-item=(key) data-kind="run" data-ops=(links.list(operations))
            data-says=(says(file, run)) data-by=(spoken(operations))
        {
            th scope="row" { span.handle { (format!("{offset:#x}")) } }
            td.number { (clusters(file, run)) }
            td { (swatch(letters, style)) " " (role.name()) }
            @if file.kind == FileKind::Image {
                td.number { (references) }
                td.number { (refcount) @if off { " " strong.badge { "does not match" } } }
            }
            td { (links.named(operations)) }
        }
    }
}
