//! The guest disk according to the reference model, the walker and qemu-img: three rows to one scale, and a table of
//! the same extents.

use std::ops::Range;

use maud::{Markup, html};

use crate::disk::extent::{Extent, MappingStatus};
use crate::findings::explain::BuiltFiles;
use crate::findings::report::Report;
use crate::findings::report::qemu::QemuResult;
use crate::harness::cases::target::Expectation;
use crate::images::files::export::Holes;

use super::layout::{
    DrawnPart, Links, MAX_SHOWN_EXTENTS, Scale, WIDTH, guest, rounded, shown, spoken, swatch,
    table, ticks,
};

/// The extents of the disk according to one reader.
struct ReaderExtents<'a> {
    /// The name of the reader in keys.
    key: &'static str,
    /// The name of the reader for people.
    who: String,
    /// The extents that it reported.
    extents: &'a [Extent],
    /// A remark about the extents, or the reason why there are none.
    said: Option<String>,
    /// The extents that the page shows, with their indices.
    chosen: Vec<(usize, &'a Extent)>,
}

/// Returns the section.
pub fn section(report: &Report, result: &QemuResult, links: &Links) -> Markup {
    let evidence = &report.evidence;
    let mut answers = [expected(report), actual(report), qemu(result)];
    let left = choose(&mut answers, evidence.first_difference);
    let first = evidence.first_difference.and_then(|at| {
        let lists = [&evidence.expected, &evidence.actual];
        lists.iter().filter_map(|list| list.get(at)).map(|extent| extent.start.get()).min()
    });
    html! {
        section #disk aria-labelledby="disk-h" {
            h2 #disk-h { "The guest disk" }
            @match (first, evidence.first_difference) {
                (Some(first), Some(at)) => p {
                    @if evidence.is_mapped {
                        strong { "First difference" } " between the reference model and the implementation: at guest offset "
                    } @else {
                        strong { "The finding" } " is at guest offset "
                    }
                    code { (format!("{:#x}", report.guest_offset.unwrap_or(first))) } ", extent " (at) "."
                },
                _ if !evidence.expected.is_empty() && !evidence.actual.is_empty() => p {
                    "The reference model and the implementation agree."
                },
                _ => {}
            }
            ul.answers {
                @for answer in &answers {
                    @if let Some(said) = &answer.said { li { strong { (answer.who) } ": " (said) } }
                }
            }
            @if answers.iter().any(|answer| !answer.chosen.is_empty()) {
                (picture(&answers, first))
                @if let Some(left) = left { p.left-out { (left) } }
                (extent_table(&answers, first, evidence.built.as_ref(), links))
            }
        }
    }
}

fn expected(report: &Report) -> ReaderExtents<'_> {
    let extents = &report.evidence.expected;
    let is_damaged = report.evidence.files.iter().any(|file| {
        file.cut_to_bytes.is_some() || file.entries.iter().any(|entry| entry.damaged.is_some())
    });
    let said = match (report.target.definition().expectation, extents.is_empty()) {
        (Expectation::Unknown, _) => {
            Some("no program built the file, so it has no expected extents.")
        }
        (Expectation::Bytes, _) => Some("QEMU made the disk, so it has no expected extents."),
        (_, true) => Some("no extents."),
        (Expectation::UntouchedExtents | Expectation::Written, false) if is_damaged => {
            Some("the disk before the damage.")
        }
        (Expectation::Written, false) => Some("the disk before the requests."),
        _ => None,
    };
    ReaderExtents::new("expected", "Reference model", extents, said)
}

fn actual(report: &Report) -> ReaderExtents<'_> {
    let extents = &report.evidence.actual;
    let said = match report.target.definition().expectation {
        Expectation::NotWalked => Some("the target walks no disk."),
        _ if extents.is_empty() => Some("no extents."),
        _ => None,
    };
    let answer = ReaderExtents::new("actual", "Implementation", extents, said);
    match &report.evidence.walk_ended {
        Some(ended) if !report.evidence.is_mapped => {
            ReaderExtents { said: Some(format!("{ended}.")), ..answer }
        }
        Some(ended) => {
            ReaderExtents { said: Some(format!("the walk ended early: {ended}.")), ..answer }
        }
        None => answer,
    }
}

fn qemu(result: &QemuResult) -> ReaderExtents<'_> {
    let who = match &result.version {
        Some(version) => format!("qemu-img {version}"),
        None => "qemu-img".to_string(),
    };
    match &result.answer {
        Err(why) => {
            let said = format!("{}.", why.trim_end_matches('.'));
            ReaderExtents { said: Some(said), ..ReaderExtents::new("qemu", &who, &[], None) }
        }
        Ok(map) => {
            let sparse = "the files are too long to write without holes, so qemu-img may report clusters without data \
                          as zeros.";
            let said = match map.holes {
                _ if map.extents.is_empty() => Some("no extents."),
                Holes::Keep => Some(sparse),
                Holes::Fill => None,
            };
            ReaderExtents::new("qemu", &who, &map.extents, said)
        }
    }
}

impl<'a> ReaderExtents<'a> {
    fn new(key: &'static str, who: &str, extents: &'a [Extent], said: Option<&str>) -> Self {
        let (who, said) = (who.to_string(), said.map(str::to_string));
        Self { key, who, extents, said, chosen: Vec::new() }
    }

    /// Returns the shown extents that begin at a guest offset.
    fn beginning_at(&self, start: u64) -> impl Iterator<Item = (usize, &'a Extent)> {
        self.chosen.iter().copied().filter(move |(_, extent)| extent.start.get() == start)
    }
}

/// Chooses the extents of each reader that the page shows. If a list is long, these are the first extents and those
/// around `focus`, an extent of the model or the walker. Returns a sentence about the extents that are left out.
fn choose(answers: &mut [ReaderExtents; 3], focus: Option<usize>) -> Option<String> {
    let longest = answers.iter().take(2).map(|answer| answer.extents).max_by_key(|it| it.len());
    let longest = longest.filter(|it| !it.is_empty()).unwrap_or(answers[2].extents);
    let windows: Vec<Range<u64>> = if longest.len() <= MAX_SHOWN_EXTENTS {
        std::iter::once(0..u64::MAX).collect()
    } else {
        let ranges = shown(longest.len(), MAX_SHOWN_EXTENTS, focus).into_iter();
        let lists = ranges.filter_map(|range| longest.get(range));
        lists.filter_map(|it| Some(it.first()?.start.get()..guest(it.last()?).end)).collect()
    };
    let mut shortened = Vec::new();
    for ReaderExtents { who, extents, chosen, .. } in answers {
        let is_inside = |extent: &Extent| {
            let Range { start, end } = guest(extent);
            windows.iter().any(|window| start < window.end && window.start < end)
        };
        let inside = extents.iter().enumerate().filter(|(_, extent)| is_inside(extent));
        *chosen = inside.take(2 * MAX_SHOWN_EXTENTS).collect();
        if chosen.len() < extents.len() {
            shortened.push(format!("{who}: {} of {}", chosen.len(), extents.len()));
        }
    }
    (!shortened.is_empty()).then(|| {
        let shortened = shortened.join("; ");
        format!(
            "This page does not show all extents. {shortened}. 'qcowfuzz replay --json' prints those of the model and \
             the implementation."
        )
    })
}

fn extent_table(
    answers: &[ReaderExtents; 3],
    first: Option<u64>,
    built: Option<&BuiltFiles>,
    links: &Links,
) -> Markup {
    let chosen = answers.iter().flat_map(|answer| &answer.chosen);
    let mut starts: Vec<u64> = chosen.map(|(_, extent)| extent.start.get()).collect();
    starts.sort_unstable();
    starts.dedup();
    let [expected, actual, qemu] = answers.each_ref().map(|answer| answer.who.as_str());
    let rows = html! {
        @for start in starts {
            @let compared = compared(answers, start, first);
            tr .difference[!compared.is_empty()] {
                th scope="row" { (format!("{start:#x}")) }
                @for answer in answers { (cell(answer, start, built, links)) }
                td { @if compared.is_empty() { span.quiet { "same" } }
                    @else { strong { (compared) } } }
            }
        }
    };
    let caption = "As a table: the guest bytes, their kind, and their host offset";
    table("group extents", caption, &["Guest", expected, actual, qemu, "Compared"], &rows)
}

/// Describes the difference between the readers at `start`.
fn compared(answers: &[ReaderExtents; 3], start: u64, first: Option<u64>) -> String {
    let [expected, actual, qemu] = answers
        .each_ref()
        .map(|answer| answer.beginning_at(start).map(|(_, extent)| *extent).collect::<Vec<_>>());
    let [has_expected, has_actual, has_qemu] = answers.each_ref().map(|it| !it.extents.is_empty());
    let mut notes = Vec::new();
    if first == Some(start) {
        notes.push("first difference");
    } else if expected != actual && has_expected && has_actual {
        notes.push("differs");
    }
    if has_qemu && has_actual && qemu != actual {
        notes.push("qemu-img and the implementation differ");
    }
    notes.join("; ")
}

fn cell(answer: &ReaderExtents, start: u64, built: Option<&BuiltFiles>, links: &Links) -> Markup {
    let goes_on = || answer.chosen.iter().any(|(_, extent)| guest(extent).contains(&start));
    html! {
        td {
            @if answer.beginning_at(start).next().is_none() {
                span.quiet {
                    @if answer.chosen.is_empty() { "no extents" } @else if goes_on() { "continues" } @else { "nothing" }
                }
            }
            @for (at, extent) in answer.beginning_at(start) { (item(answer, at, extent, built, links)) }
        }
    }
}

fn item(
    answer: &ReaderExtents,
    at: usize,
    extent: &Extent,
    built: Option<&BuiltFiles>,
    links: &Links,
) -> Markup {
    let mapping = &extent.mapping;
    let depth = mapping.present.then_some(mapping.depth).and_then(|it| usize::try_from(it).ok());
    let touching = |built: &BuiltFiles| built.touching(&guest(extent), depth);
    let operations = built.map(touching).unwrap_or_default();
    let key = format!("{}-{at}", answer.key);
    html! {
        div id=(key) data-item=(key) data-kind="extent" data-ops=(links.list(&operations))
            data-says=(format!("{}: guest {extent}", answer.who)) data-by=(spoken(&operations))
        { span.handle { (format!("+{:#x} {mapping}", extent.length_bytes)) } }
    }
}

/// All statuses in the order of the legend.
const STATUSES: [MappingStatus; 8] = [
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
fn letters_and_style(status: MappingStatus) -> (&'static str, &'static str) {
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
fn picture(answers: &[ReaderExtents; 3], first: Option<u64>) -> Markup {
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
                        (reader_row(answer, TOP_MARGIN + ROW * row as f64, &scale))
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
    let chosen = || answers.iter().flat_map(|it| &it.chosen).map(|(_, extent)| guest(extent));
    let mut edges: Vec<u64> = chosen().flat_map(|it| [it.start, it.end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let bounds = || edges.windows(2).map(|edge| (edge[0], edge[1]));
    let is_shown = |start: &u64| chosen().any(|extent| extent.contains(start));
    let cuts: Vec<u64> = bounds().map(|(start, _)| start).filter(|it| !is_shown(it)).collect();
    // The unit is not the shortest length, because then a tail of a few bytes would leave no room for other pieces.
    let mut lengths: Vec<u64> = bounds().map(|(start, end)| end - start).collect();
    lengths.sort_unstable();
    let unit = lengths.get(lengths.len() / 4).copied().unwrap_or(1);
    Scale::new(edges, WIDTH - LEFT, unit, &cuts)
}

fn legend(answers: &[ReaderExtents; 3]) -> Markup {
    let chosen = || answers.iter().flat_map(|it| &it.chosen).map(|(_, extent)| &extent.mapping);
    let is_shown = |status: &MappingStatus| chosen().any(|mapping| mapping.status() == *status);
    html! {
        ul.legend aria-label="Kinds in the picture" {
            @for status in STATUSES.into_iter().filter(is_shown) {
                @let (letters, style) = letters_and_style(status);
                li { (swatch(letters, style)) " " (status.name()) }
            }
            @if chosen().any(|mapping| mapping.depth > 0) {
                li { "A number after the letters: the depth of the layer." }
            }
        }
    }
}

fn reader_row(answer: &ReaderExtents, top: f64, scale: &Scale) -> Markup {
    html! {
        text.who x="0" y=(rounded(top + 21.0)) { (answer.who) }
        g transform=(format!("translate({LEFT} {top})")) {
            @if answer.chosen.is_empty() { text.silent x="0" y="21" { "no extents: see above" } }
            @for (at, extent) in &answer.chosen { (segment(answer, *at, extent, scale)) }
        }
    }
}

fn segment(answer: &ReaderExtents, at: usize, extent: &Extent, scale: &Scale) -> Markup {
    let (depth, status) = (extent.mapping.depth, extent.mapping.status());
    let (letters, style) = letters_and_style(status);
    let depth = if depth > 0 { depth.to_string() } else { String::new() };
    let segment = DrawnPart {
        key: format!("{}-{at}", answer.key),
        label: format!("{}: guest {extent}", answer.who),
        bytes: guest(extent),
        letters: &format!("{letters}{depth}"),
        name: &format!("{}{depth}", status.name()),
        style,
    };
    segment.drawn(scale, ROW_HEIGHT)
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
