//! The shared parts of the page's sections: limits of lists, links between operations and the bytes that they wrote,
//! tables, and pictures with their scale.
//!
//! The page identifies an operation by its number, and any other item by a key. The script marks the items that are
//! related to the focused one. A scale places pieces in proportion to their lengths. A piece that is too long is drawn
//! with a break, and the caption reports it. A piece that is too short for a mouse is widened.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

use maud::{Markup, html};

use crate::disk::extent::Extent;
use crate::findings::explain::Step;

/// The maximum number of operations.
pub const MOST_STEPS: usize = 600;
/// The maximum number of runs of a file.
pub const MOST_RUNS: usize = 400;
/// The maximum number of extents of each reader.
pub const MAX_SHOWN_EXTENTS: usize = 200;
/// The maximum number of entries of a part.
pub const MOST_ENTRIES: usize = 300;

/// Returns the ranges of at most `most` of `count` items: the first ones and, if there is a `focus`, those around it.
pub fn shown(count: usize, most: usize, focus: Option<usize>) -> Vec<Range<usize>> {
    let head = most / 4;
    let around = most - head;
    let focus = focus.unwrap_or(0).min(count);
    // Three quarters of the items around the focus come before it: they led to the finding.
    let start = focus.saturating_sub(around / 4 * 3).min(count.saturating_sub(around));
    match count <= most || start <= head {
        true => iter::once(0..count.min(most)).collect(),
        false => vec![0..head, start..(start + around).min(count)],
    }
}

/// Returns a sentence with the items that the page shows, and the command that prints all of them.
pub fn left_out(what: &str, count: usize, shown: &[Range<usize>]) -> Markup {
    let total: usize = shown.iter().map(Range::len).sum();
    let ranges: Vec<_> = shown
        .iter()
        .map(|range| format!("{} to {}", range.start, range.end.saturating_sub(1)))
        .collect();
    html! {
        @if total < count {
            p.left-out {
                "This page shows " (total) " of " (count) " " (what) " (counted from 0: " (ranges.join(", "))
                "). " code { "qcowfuzz replay --json" } " prints all of them."
            }
        }
    }
}

/// The maximum number of operations that are named beside an item.
const MOST_NAMED: usize = 8;

/// The operations that are on the page.
pub struct Links {
    shown: BTreeSet<usize>,
}

impl Links {
    /// Returns the links to the operations of a program that the page shows.
    pub fn new(steps: &[Step]) -> Self {
        let ranges = shown(steps.len(), MOST_STEPS, failing(steps));
        let steps = ranges.into_iter().filter_map(|range| steps.get(range)).flatten();
        Self { shown: steps.filter_map(|step| step.number).collect() }
    }

    /// Returns the numbers of the operations, separated by spaces for the script.
    pub fn list(&self, operations: &[usize]) -> String {
        let known = operations.iter().filter(|number| self.shown.contains(number));
        known.map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    /// Returns links to the operations.
    pub fn named(&self, operations: &[usize]) -> Markup {
        let named = operations.iter().take(MOST_NAMED).enumerate();
        html! {
            @for (at, number) in named {
                @if at > 0 { ", " }
                @if self.shown.contains(number) {
                    a.by href=(format!("#op-{number}")) { "#" (number) }
                } @else {
                    "#" (number)
                }
            }
            @if operations.len() > MOST_NAMED {
                " and " (operations.len() - MOST_NAMED) " more"
            }
        }
    }
}

/// Returns the index of the operation after which the violation was found.
pub fn failing(steps: &[Step]) -> Option<usize> {
    steps.iter().position(|step| step.failing)
}

/// Returns the operations in words.
pub fn spoken(operations: &[usize]) -> String {
    let named: Vec<_> = operations.iter().take(MOST_NAMED).map(ToString::to_string).collect();
    let more = match operations.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match operations.len() {
        0 => "by no operation".to_string(),
        1 => format!("by operation {}", named.join(", ")),
        _ => format!("by operations {}{more}", named.join(", ")),
    }
}

/// The usual width of a picture.
pub const WIDTH: f64 = 940.0;
/// The minimum width of a piece: it has room for two letters, and a mouse can hit it.
const NARROWEST: f64 = 16.0;
/// If the pieces do not fit, each piece that would be wider than this is drawn with a break.
const WIDEST: f64 = 128.0;
/// The minimum width of a piece with a break: it has room for the zigzag and a length.
const MIN_BROKEN_WIDTH: f64 = 72.0;

/// The bytes between two neighbouring edges.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalePiece {
    /// The first byte.
    pub start: u64,
    /// The byte after the last.
    pub end: u64,
    /// The horizontal offset of the left edge in the picture.
    pub x: f64,
    /// The width in the picture.
    pub width: f64,
    /// True if the piece is narrower than its length requires.
    pub broken: bool,
    /// True if the piece is wider than its length requires.
    pub widened: bool,
}

/// The pieces of a picture and their places.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    /// All pieces, in order.
    pub pieces: Vec<ScalePiece>,
}

impl Scale {
    /// Creates the scale of the pieces between neighbouring `edges`. The picture has the width `wide` if all pieces
    /// fit. A piece of `unit` bytes is at least wide enough to point at with a mouse. Shorter pieces are widened to
    /// that width. Pieces that begin at an offset in `cut` always have a break.
    pub fn new(mut edges: Vec<u64>, wide: f64, unit: u64, cut: &[u64]) -> Self {
        edges.sort_unstable();
        edges.dedup();
        let bounds: Vec<_> = edges.windows(2).map(|edge| (edge[0], edge[1])).collect();
        let is_cut = |start: u64| cut.contains(&start);
        let length = |(start, end): &(u64, u64)| (end - start) as f64;
        let whole: f64 = bounds.iter().filter(|it| !is_cut(it.0)).map(length).sum();
        let per_byte = (NARROWEST / unit.max(1) as f64).max(wide / whole.max(1.0));
        let drawn = |piece: &(u64, u64)| (length(piece) * per_byte).max(NARROWEST);
        let fits = cut.is_empty() && bounds.iter().map(drawn).sum::<f64>() <= wide * 1.01;
        let breaks = |piece: &(u64, u64)| is_cut(piece.0) || !fits && drawn(piece) > WIDEST;
        let kept: f64 = bounds.iter().filter(|it| !breaks(it)).map(drawn).sum();
        let broken = bounds.iter().filter(|it| breaks(it)).count();
        // The pieces with a break share the width that the others leave.
        let share = ((wide - kept) / broken.max(1) as f64).max(MIN_BROKEN_WIDTH);
        let mut pieces = Vec::with_capacity(bounds.len());
        let mut x = 0.0;
        for bound in &bounds {
            let width = if breaks(bound) { share.min(drawn(bound)) } else { drawn(bound) };
            let width = if is_cut(bound.0) { share } else { width };
            let exact = length(bound) * per_byte;
            let (broken, widened) = (breaks(bound), !breaks(bound) && width > exact * 1.01);
            pieces.push(ScalePiece { start: bound.0, end: bound.1, x, width, broken, widened });
            x += width;
        }
        Self { pieces }
    }

    /// Returns the width of the whole picture.
    pub fn width(&self) -> f64 {
        self.pieces.last().map_or(0.0, |last| last.x + last.width)
    }

    /// Returns the offset of an edge in the picture.
    pub fn x(&self, edge: u64) -> f64 {
        let at = self.pieces.partition_point(|piece| piece.start < edge);
        self.pieces.get(at).map_or(self.width(), |piece| piece.x)
    }

    /// Returns the pieces from one edge to another.
    pub fn between(&self, start: u64, end: u64) -> &[ScalePiece] {
        let first = self.pieces.partition_point(|piece| piece.start < start);
        let last = self.pieces.partition_point(|piece| piece.start < end);
        self.pieces.get(first..last).unwrap_or_default()
    }

    /// Returns the caption: the number of pieces that are not to scale.
    pub fn caption(&self) -> String {
        let broken = self.pieces.iter().filter(|piece| piece.broken).count();
        let widened = self.pieces.iter().filter(|piece| piece.widened).count();
        let exceptions = [
            (broken, "long parts, which are cut short and have a zigzag"),
            (widened, "short parts, which are drawn wider than they are"),
        ];
        let exceptions = exceptions.iter().filter(|(count, _)| *count > 0);
        let exceptions: Vec<_> =
            exceptions.map(|(count, what)| format!("{what} ({count})")).collect();
        match exceptions.is_empty() {
            true => "Drawn to scale.".to_string(),
            false => format!("Drawn to scale, except {}.", exceptions.join(" and ")),
        }
    }
}

/// The minimum distance between two offsets below a picture.
const TICK_WIDTH: f64 = 84.0;
/// The minimum width of a segment with a name instead of letters.
const NAMED_WIDTH: f64 = 120.0;

/// A part of a picture: a run of a file, or an extent of the disk.
pub struct DrawnPart<'a> {
    /// The key of the item.
    pub key: String,
    /// A description.
    pub label: String,
    /// The bytes.
    pub bytes: Range<u64>,
    /// The text of a narrow segment.
    pub letters: &'a str,
    /// The text of a wide segment.
    pub name: &'a str,
    /// The style.
    pub style: &'a str,
}

impl DrawnPart<'_> {
    /// Draws the part in a picture of this height.
    pub fn drawn(&self, scale: &Scale, height: f64) -> Markup {
        let Self { key, label, bytes, letters, name, style } = self;
        let x = scale.x(bytes.start);
        // An extent without a length gets a visible width.
        let width = (scale.x(bytes.end) - x).max(2.0);
        let text = if width > NAMED_WIDTH { name } else { letters };
        html! {
            g.seg data-item=(key) role="img" aria-label=(label) {
                title { (label) }
                (filled(x, 0.0, width, height, style))
                (label_at(x + width / 2.0, height, text))
                @for piece in scale.between(bytes.start, bytes.end).iter().filter(|it| it.broken) {
                    (zigzag(piece, height))
                }
            }
        }
    }
}

/// Returns the text in the middle of a segment.
pub fn label_at(x: f64, height: f64, text: &str) -> Markup {
    html! { text x=(rounded(x)) y=(height / 2.0 + 4.0) { (text) } }
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
fn zigzag(piece: &ScalePiece, height: f64) -> Markup {
    let middle = piece.x + piece.width * 0.8;
    let step = height / 6.0;
    let points: Vec<_> = (0..=6)
        .map(|at| {
            let side = if at % 2 == 0 { -4.0 } else { 4.0 };
            format!("{},{}", rounded(middle + side), rounded(step * f64::from(at)))
        })
        .collect();
    let points = points.join(" ");
    html! { polyline.zigzag points=(points) {} polyline.zigzag.gap points=(points) {} }
}

/// Formats a coordinate with one decimal place.
pub fn rounded(value: f64) -> String {
    format!("{value:.1}")
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

/// Returns a table in a box that scrolls.
pub fn table(class: &str, caption: &str, headings: &[&str], rows: &Markup) -> Markup {
    html! {
        div.scroll {
            table class=(class) {
                caption { (caption) }
                thead { tr { @for heading in headings { th scope="col" { (heading) } } } }
                tbody { (rows) }
            }
        }
    }
}

/// Returns the guest bytes of an extent.
pub fn guest(extent: &Extent) -> Range<u64> {
    let start = extent.start.get();
    start..start.saturating_add(extent.length_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ranges as pairs: in a failed assertion, `0..2` could be mistaken for its elements.
    fn ranges(count: usize, focus: Option<usize>) -> Vec<(usize, usize)> {
        shown(count, 8, focus).iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn of_many_the_first_and_those_around_the_focus_are_shown() {
        assert_eq!(ranges(100, None), [(0, 8)]);
        assert_eq!(ranges(100, Some(2)), [(0, 8)]);
        assert_eq!(ranges(100, Some(50)), [(0, 2), (47, 53)]);
        assert_eq!(ranges(100, Some(99)), [(0, 2), (94, 100)]);
        for count in 0..40 {
            for focus in 0..count {
                let ranges = shown(count, 8, Some(focus));
                assert!(ranges.iter().any(|range| range.contains(&focus)), "{count} {focus}");
                assert_eq!(ranges.iter().map(Range::len).sum::<usize>(), count.min(8));
            }
        }
        let sentence = left_out("runs", 100, &shown(100, 8, Some(50))).into_string();
        assert!(sentence.contains("This page shows 8 of 100 runs"), "{sentence}");
    }

    #[test]
    fn what_has_room_is_to_scale() {
        let scale = Scale::new(vec![3 << 16, 0, 1 << 16, 10 << 16, 1 << 16], WIDTH, 1 << 16, &[]);
        assert_eq!(scale.pieces.len(), 3);
        for piece in &scale.pieces {
            let exact = (piece.end - piece.start) as f64 / (10 << 16) as f64 * WIDTH;
            assert!((piece.width - exact).abs() < 1e-6 && !piece.broken && !piece.widened);
        }
        assert!((scale.width() - WIDTH).abs() < 1e-6);
        assert_eq!(scale.caption(), "Drawn to scale.");
        assert!((scale.x(1 << 16) - WIDTH / 10.0).abs() < 1e-6);
        assert!((scale.x(10 << 16) - WIDTH).abs() < 1e-6);
        assert_eq!(scale.between(1 << 16, 10 << 16).len(), 2);
    }

    #[test]
    fn a_far_gap_is_broken_and_a_small_thing_can_still_be_hit() {
        let scale =
            Scale::new(vec![0, 512, 1024, 1024 + 77, 1 << 40, (1 << 40) + 512], WIDTH, 512, &[]);
        let widths: Vec<_> = scale.pieces.iter().map(|piece| piece.width).collect();
        assert!(widths.iter().all(|width| *width >= NARROWEST), "{widths:?}");
        assert!((scale.width() - WIDTH).abs() < 1e-6);
        let broken: Vec<_> = scale.pieces.iter().map(|piece| piece.broken).collect();
        assert_eq!(broken, [false, false, false, true, false]);
        assert!(scale.pieces[2].widened);
        let caption = "Drawn to scale, except long parts, which are cut short and have a zigzag (1) and short parts, \
                       which are drawn wider than they are (1).";
        assert_eq!(scale.caption(), caption);
    }

    #[test]
    fn nothing_has_no_width() {
        for edges in [vec![], vec![5]] {
            let scale = Scale::new(edges, WIDTH, 0, &[]);
            assert!(scale.pieces.is_empty() && scale.width() == 0.0 && scale.x(5) == 0.0);
        }
        assert_eq!(Scale::new(vec![0, u64::MAX], WIDTH, 0, &[]).pieces.len(), 1);
        assert!(Scale::new(vec![0, 10, 20], WIDTH, 1, &[10]).pieces[1].broken);
    }
}
