//! The tables of the page: the operations of the program, and the fields and entries of the images.

use std::ops::Range;

use maud::{Markup, html};

use crate::base::limits::MAX_EXPLAINED_ENTRIES;
use crate::findings::explain::{DamagedValue, ExplainedEntry, FileView, Step, effect_name};
use crate::findings::report::Report;
use crate::harness::cases::lanes::{LEGEND, Lane};
use crate::programs::Effect;

use super::files::title;
use super::layout::{Links, MOST_ENTRIES, MOST_STEPS, failing, left_out, shown, spoken, table};

/// Returns the section with the program, operation by operation. If the input is a file, the section only says so.
pub fn program(report: &Report) -> Markup {
    let steps = &report.evidence.steps;
    let ranges = shown(steps.len(), MOST_STEPS, failing(steps));
    let image = report.program.as_deref().and_then(|program| program.lines().next());
    html! {
        section #program aria-labelledby="program-h" {
            h2 #program-h { "The program" }
            @match (&report.program, steps.is_empty()) {
                (None, _) if !report.recipe.is_empty() => {
                    p { "There is none: these commands made and changed the disk." }
                    pre { (report.recipe.join("\n")) }
                },
                (None, _) => p { "There is none: the input is the file itself." },
                (Some(program), true) if report.operations.is_some_and(|count| count > 0) => {
                    p { "The effects of the operations are unknown: running them panicked." }
                    pre { (program) }
                },
                _ => {
                    p.first-line { code { (image.unwrap_or_default()) } }
                    @if steps.is_empty() { p { "It has no operations." } }
                    @else { (step_table(steps, &ranges)) }
                    (left_out("records", steps.len(), &ranges))
                }
            }
        }
    }
}

/// Returns the section with the requests in flight over time; nothing if there are none.
pub fn lanes(report: &Report) -> Markup {
    let groups = &report.evidence.lanes;
    let class = |turn: char| match turn {
        ' ' => "",
        '-' => "waiting",
        _ => "turn",
    };
    html! {
        @if !groups.is_empty() {
            section #flights aria-labelledby="flights-h" {
                h2 #flights-h { "Requests in flight" }
                p { "A column for each turn, in the order of the schedule: " (LEGEND) "." }
                @for lanes in groups {
                    div.scroll tabindex="0" { table.lanes {
                        @for Lane { request, turns } in lanes {
                            tr {
                                th scope="row" { (request) }
                                @for turn in turns.chars() { td class=(class(turn)) { (turn) } }
                            }
                        }
                    } }
                }
            }
        }
    }
}

fn step_table(steps: &[Step], ranges: &[Range<usize>]) -> Markup {
    let caption =
        "Operations in order. Numbers count from 0, program counters are bytes of the input.";
    let headings = ["Number", "Counter", "Bytes", "Operation", "Changes", "Effect"];
    let shown = ranges.iter().filter_map(|range| steps.get(range.clone())).flatten();
    table("group steps", caption, &headings, &html! { @for step in shown { (step_row(step)) } })
}

fn step_row(step: &Step) -> Markup {
    let Step { counter, bytes, number, effect, changes, failing, .. } = step;
    let (Some(number), Some(operation)) = (number, step.operation.map(|it| it.to_string())) else {
        return html! {
            tr.meaningless {
                th scope="row" { "none" }
                td.number { (counter) }
                td { code { (bytes) } }
                td colspan="3" { "decodes to no operation" }
            }
        };
    };
    let effect = match effect {
        None => "not run",
        Some(Effect::None) => "no effect",
        Some(effect) => effect_name(*effect),
    };
    html! {
        tr id=(format!("op-{number}")) .failing[*failing] data-op=(number) data-says=(operation) {
            th scope="row" {
                span.handle { "#" (number) }
                @if *failing { " " strong.badge { "found after this" } }
            }
            td.number { (counter) }
            td { code { (bytes) } }
            td.operation { code { (operation) } }
            td {
                @if changes.is_empty() { span.quiet { "no change" } }
                @for change in changes { div { (change) } }
            }
            td { (effect) }
        }
    }
}

/// Returns the section with the fields and entries of the images, part by part. Damaged parts, and parts that the
/// operation `failing` wrote, are open.
pub fn entries(files: &[FileView], links: &Links, failing: Option<usize>) -> Markup {
    let with_entries = || files.iter().enumerate().filter(|(_, file)| !file.entries.is_empty());
    html! {
        section #entries aria-labelledby="entries-h" {
            h2 #entries-h { "Fields and entries" }
            @if with_entries().next().is_none() {
                p { "No image has fields or entries to show." }
            } @else {
                p {
                    "The tables leave out entries of zero. The last column reports what our walker reads of the "
                    "top image as the program built it, before any damage."
                }
            }
            @for (at, file) in with_entries() {
                h3 { (title(file)) }
                @for (first, entries) in parts(&file.entries) {
                    (part(at, first, entries, links, failing))
                }
                @if file.entries.len() >= MAX_EXPLAINED_ENTRIES {
                    p.left-out { "There may be more: the explanation keeps the first " (MAX_EXPLAINED_ENTRIES) "." }
                }
            }
        }
    }
}

/// Returns the entries of each part in order, with the index of its first entry.
fn parts(entries: &[ExplainedEntry]) -> impl Iterator<Item = (usize, &[ExplainedEntry])> {
    let mut next = 0;
    entries.chunk_by(|one, other| one.part == other.part).map(move |part| {
        let first = next;
        next += part.len();
        (first, part)
    })
}

fn part(
    file: usize,
    first: usize,
    entries: &[ExplainedEntry],
    links: &Links,
    failing: Option<usize>,
) -> Markup {
    let is_failing = |it: &ExplainedEntry| it.operation.is_some() && it.operation == failing;
    let damaged = entries.iter().filter(|entry| entry.damaged.is_some()).count();
    let read = entries.iter().filter(|entry| entry.read).count();
    let focus = entries.iter().position(|entry| entry.damaged.is_some());
    let focus = focus.or_else(|| entries.iter().position(is_failing));
    let ranges = shown(entries.len(), MOST_ENTRIES, focus);
    let name = entries.first().map_or("", |entry| entry.part.name());
    html! {
        details open[focus.is_some()] {
            summary {
                (name) span.quiet { " · " (entries.len()) ", " (read) " read"
                    @if damaged > 0 { ", " (damaged) " damaged" } }
                span.count {}
            }
            (entry_table(file, first, entries, &ranges, links))
            (left_out("entries", entries.len(), &ranges))
        }
    }
}

fn entry_table(
    file: usize,
    first: usize,
    entries: &[ExplainedEntry],
    ranges: &[Range<usize>],
    links: &Links,
) -> Markup {
    let part = entries.first().map_or("", |entry| entry.part.name());
    let any_damaged = entries.iter().any(|entry| entry.damaged.is_some());
    let damaged = any_damaged.then_some("Damaged to");
    let headings = ["Offset", "Field", "Value", "Meaning"].into_iter().chain(damaged);
    let headings: Vec<_> = headings.chain(["Operation", "Walker"]).collect();
    let rows = html! {
        @for at in ranges.iter().cloned().flatten() {
            @if let Some(entry) = entries.get(at) {
                (entry_row(&format!("entry-{file}-{}", first + at), entry, any_damaged, links))
            }
        }
    };
    let caption = format!("{part}: offsets, values in hexadecimal digits, their bits in words");
    table("group", &caption, &headings, &rows)
}

fn entry_row(key: &str, entry: &ExplainedEntry, any_damaged: bool, links: &Links) -> Markup {
    let ExplainedEntry { part, name, at, value, damaged, spelled, operation, read, .. } = entry;
    let what = if name.is_empty() { "entry" } else { name };
    let says = format!("{} {what} at {at:#x} ({spelled})", part.name());
    let by = spoken(operation.as_slice());
    html! {
        tr id=(key) data-item=(key) data-kind="entry" data-ops=(links.list(operation.as_slice()))
            data-says=(says) data-by=(by) .damaged[damaged.is_some()]
        {
            th scope="row" { span.handle { (format!("{at:#x}")) } }
            td.short { @if name.is_empty() { span.quiet { (entry.width_bytes) " bytes" } } @else { (name) } }
            td { code { (value) } }
            td { (spelled) }
            @if any_damaged {
                td {
                    @if let Some(DamagedValue { value, spelled }) = damaged {
                        strong { "damaged: " } code { (value) } " " (spelled)
                    }
                }
            }
            td { (links.named(operation.as_slice())) }
            td.short { @if *read { "read" } @else { span.quiet { "not read" } } }
        }
    }
}
