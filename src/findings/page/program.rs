//! The program, operation by operation.

use maud::{Markup, html};

use crate::findings::evidence::{StepJson, effect_name};
use crate::findings::report::Report;

use crate::programs::Effect;

use super::links::failing;
use super::shown::{MOST_STEPS, left_out, shown};

/// Returns the section. If the input is a file, the section only says so.
pub fn section(report: &Report) -> Markup {
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
                    @else { (table(steps, &ranges)) }
                    (left_out("records", steps.len(), &ranges))
                }
            }
        }
    }
}

fn table(steps: &[StepJson], ranges: &[std::ops::Range<usize>]) -> Markup {
    html! {
        div.scroll {
            table.group #steps {
                caption {
                    "Operations in order. Numbers count from 0, program counters are bytes of the input."
                }
                thead { tr {
                    th scope="col" { "Number" } th scope="col" { "Counter" }
                    th scope="col" { "Bytes" } th scope="col" { "Operation" }
                    th scope="col" { "Changes" } th scope="col" { "Effect" }
                } }
                tbody {
                    @for range in ranges {
                        @for step in steps.get(range.clone()).unwrap_or_default() { (row(step)) }
                    }
                }
            }
        }
    }
}

fn row(step: &StepJson) -> Markup {
    let StepJson { counter, bytes, number, operation, effect, changes, failing } = step;
    let (Some(number), Some(operation)) = (number, operation) else {
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
