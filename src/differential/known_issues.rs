//! The texts of issues about known divergences, which can be sent to the maintainers of QEMU.

use super::issue::{Issue, outputs};
use super::iteration::Course;
use super::quirks::{Quirk, commands};
use super::sides::Sides;
use crate::recipes::recipe::Recipe;

/// Returns the issue of a known divergence. `shown` is the course of its example with the programs of a campaign, if
/// they are there.
pub fn known_issue(quirk: &Quirk, shown: Option<(&Course, &Sides)>) -> String {
    let recipe = (quirk.example)();
    let (mut quoted, mut version) = (Vec::new(), quirk.qemu_version);
    if let Some((course, sides)) = shown {
        version = &sides.qemu.version;
        quoted = quoted_outputs(&recipe, course, sides);
    }
    Issue {
        title: quirk.title,
        body: quirk.reason,
        qemu_version: version,
        commands: &commands(&recipe),
        outputs: &quoted,
    }
    .text()
}

fn quoted_outputs(recipe: &Recipe, course: &Course, sides: &Sides) -> Vec<(String, String)> {
    let Some(met) = &course.met else { return printed(recipe, course) };
    let answers = met.answers.iter();
    let answers =
        answers.flat_map(|(qemu, tested)| outputs((qemu, tested.as_ref()), &sides.tested.name()));
    // Without a question, the answer is the output of the last command.
    if met.question.is_none() {
        return answers.collect();
    }
    let difference = ("The difference".to_string(), met.divergence.detail.clone());
    printed(recipe, course).into_iter().chain(answers).chain([difference]).collect()
}

/// Returns the commands that printed something, and their outputs.
fn printed(recipe: &Recipe, course: &Course) -> Vec<(String, String)> {
    let lines = recipe.steps.iter().zip(&course.log).flat_map(|(step, log)| {
        step.commands.iter().zip(log).filter_map(|(command, line)| {
            let (_, text) = line.split_once(": ")?;
            (!text.is_empty()).then(|| (format!("`{command}`"), text.to_string()))
        })
    });
    lines.collect()
}
