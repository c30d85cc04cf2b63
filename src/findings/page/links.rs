//! Links between operations and the bytes that they wrote. The page identifies an operation by its number, and any
//! other item by a key. The script marks the items that are related to the focused one.

use std::collections::BTreeSet;

use maud::{Markup, html};

use crate::findings::evidence::StepJson;

use super::shown::{MOST_STEPS, shown};

/// The maximum number of operations that are named beside an item.
const MOST_NAMED: usize = 8;

/// The operations that are on the page.
pub struct Links {
    shown: BTreeSet<usize>,
}

impl Links {
    /// Returns the links to the operations of a program that the page shows.
    pub fn new(steps: &[StepJson]) -> Self {
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
pub fn failing(steps: &[StepJson]) -> Option<usize> {
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
