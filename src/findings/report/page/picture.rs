//! The picture of the guest disk, with a row for each reader.

use maud::{Markup, html};

use crate::disk::extent::MappingStatus;
use crate::findings::report::page::layout::{Scale, WIDTH};
use crate::findings::report::page::strip::{filled, rounded, swatch, ticks, zigzag};
use crate::findings::report::records::MapRecord;

/// All statuses, in the order of the legend.
const KINDS: [MappingStatus; 8] = [
    MappingStatus::Unallocated,
    MappingStatus::UnallocatedSubcluster,
    MappingStatus::ZeroPlain,
    MappingStatus::ZeroAllocated,
    MappingStatus::Normal,
    MappingStatus::Compressed,
    MappingStatus::HostHole,
    MappingStatus::Impossible,
];

/// Returns the short name of a status, and its style.
fn drawn(status: MappingStatus) -> (&'static str, &'static str) {
    match status {
        MappingStatus::Unallocated => ("·", "hole"),
        MappingStatus::UnallocatedSubcluster => ("·s", "hole"),
        MappingStatus::ZeroPlain => ("0", "zero"),
        MappingStatus::ZeroAllocated => ("0A", "zero-allocated"),
        MappingStatus::Normal => ("D", "data"),
        MappingStatus::Compressed => ("C", "compressed"),
        MappingStatus::HostHole => ("D0", "zero"),
        MappingStatus::Impossible => ("?", "leak"),
    }
}

/// The left edge of the rows, to the right of their names.
const LEFT: f64 = 128.0;
const TOP_MARGIN: f64 = 20.0;
const ROW_HEIGHT: f64 = 34.0;
const ROW: f64 = 42.0;

/// Returns the picture, with a mark at the guest offset of the first difference between two readers.
pub(super) fn picture(answers: &[ReaderExtents; 3], first: Option<u64>) -> Markup {
    let scale = scale(answers);
    let bottom = TOP_MARGIN + ROW * 3.0;
    let (width, height) = (rounded(LEFT + scale.width() + 2.0), rounded(bottom + 22.0));
    html! {
        (legend(answers))
        figure {
            div.scroll {
                svg.strip.group role="group" aria-label="The guest disk, three rows to the same scale"
                    width=(width) height=(height) viewBox=(format!("0 0 {width} {height}"))
                {
                    @for (row, answer) in answers.iter().enumerate() {
                        (one(answer, TOP_MARGIN + ROW * row as f64, &scale))
                    }
                    g transform=(format!("translate({LEFT} 0)")) {
                        @if let Some(first) = first { (mark(scale.x(first))) }
                        (ticks(&scale, bottom - 4.0))
                    }
                }
            }
            figcaption { (scale.caption()) " All three rows have this scale." }
        }
    }
}

/// Returns the scale of all rows. It has a break where no reader's extents are shown.
fn scale(answers: &[ReaderExtents; 3]) -> Scale {
    let chosen = || answers.iter().flat_map(|answer| &answer.chosen).map(|(_, record)| *record);
    let mut edges: Vec<u64> =
        chosen().flat_map(|it: &MapRecord| [it.start, it.guest().end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let bounds = || edges.windows(2).map(|edge| (edge[0], edge[1]));
    let shown = |start: u64| chosen().any(|record| record.guest().contains(&start));
    let cuts: Vec<u64> = bounds().map(|(start, _)| start).filter(|it| !shown(*it)).collect();
    // The unit is not the shortest length, because then a tail of a few bytes would leave no room for other pieces.
    let mut lengths: Vec<u64> = bounds().map(|(start, end)| end - start).collect();
    lengths.sort_unstable();
    let unit = lengths.get(lengths.len() / 4).copied().unwrap_or(1);
    Scale::new(edges, WIDTH - LEFT, unit, &cuts)
}

fn legend(answers: &[ReaderExtents; 3]) -> Markup {
    let chosen = || answers.iter().flat_map(|answer| &answer.chosen).map(|(_, record)| *record);
    let status_of = |record: &MapRecord| record.extent().mapping.status();
    let there = |status: MappingStatus| chosen().any(|record| status_of(record) == status);
    html! {
        ul.legend aria-label="Kinds in the picture" {
            @for status in KINDS.into_iter().filter(|status| there(*status)) {
                @let (letters, style) = drawn(status);
                li { (swatch(letters, style)) " " (status.name()) }
            }
            @if chosen().any(|record| record.depth > 0) {
                li { "A number after the letters: the depth of the layer." }
            }
        }
    }
}

fn one(answer: &ReaderExtents, top: f64, scale: &Scale) -> Markup {
    html! {
        text.who x="0" y=(rounded(top + 21.0)) { (answer.who) }
        g transform=(format!("translate({LEFT} {top})")) {
            @if answer.chosen.is_empty() { text.silent x="0" y="21" { "no extents: see above" } }
            @for (at, record) in &answer.chosen {
                (segment(&format!("{}-{at}", answer.key), answer, record, scale))
            }
        }
    }
}

fn segment(key: &str, answer: &ReaderExtents, record: &MapRecord, scale: &Scale) -> Markup {
    let (start, end) = (record.start, record.guest().end);
    let status = record.extent().mapping.status();
    let (letters, style) = drawn(status);
    let x = scale.x(start);
    // An extent without a length gets a visible width.
    let width = (scale.x(end) - x).max(2.0);
    let text = if width > 120.0 { status.name() } else { letters };
    let depth = if record.depth > 0 { record.depth.to_string() } else { String::new() };
    let label = format!("{}: guest {}", answer.who, record.extent());
    html! {
        g.seg data-item=(key) role="img" aria-label=(label) {
            title { (label) }
            (filled(x, 0.0, width, ROW_HEIGHT, style))
            text x=(rounded(x + width / 2.0)) y="21" { (text) (depth) }
            @for piece in scale.between(start, end).iter().filter(|piece| piece.broken) {
                (zigzag(piece, 0.0, ROW_HEIGHT))
            }
        }
    }
}

/// Returns a line through the two rows that differ.
fn mark(x: f64) -> Markup {
    let bottom = TOP_MARGIN + ROW * 2.0 - 4.0;
    // The label is on the side of the line that has room.
    let (anchor, words) =
        if x > WIDTH - 2.0 * LEFT { ("end", x - 5.0) } else { ("start", x + 5.0) };
    html! {
        g.mark aria-hidden="true" {
            line x1=(rounded(x)) x2=(rounded(x)) y1="4" y2=(rounded(bottom)) {}
            text x=(rounded(words)) y="13" text-anchor=(anchor) { "▼ first difference" }
        }
    }
}

/// The extents of the disk according to one reader.
pub struct ReaderExtents<'a> {
    /// The name of the reader in keys.
    pub key: &'static str,
    /// The name of the reader for people.
    pub who: String,
    /// The extents that it reported.
    pub records: &'a [MapRecord],
    /// A remark about the extents, or the reason why there are none.
    pub said: Option<String>,
    /// The extents that the page shows, with their indices.
    pub chosen: Vec<(usize, &'a MapRecord)>,
}
