//! Limits of the page: a browser could not open a page with all items of a large input.

use std::iter;
use std::ops::Range;

use maud::{Markup, html};

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ranges as pairs: in a failed assertion, `0..2` could be mistaken for its elements.
    fn ranges(count: usize, focus: Option<usize>) -> Vec<(usize, usize)> {
        shown(count, 8, focus).iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn few_are_shown_in_full() {
        assert_eq!(ranges(0, None), [(0, 0)]);
        assert_eq!(ranges(8, Some(3)), [(0, 8)]);
        assert_eq!(left_out("runs", 8, &shown(8, 8, None)).into_string(), "");
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
}
