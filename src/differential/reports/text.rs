//! The texts of a report: the commands, a script that repeats them, and an issue.

use crate::differential::issue::{Issue, outputs};
use crate::differential::iteration::Met;
use crate::differential::minimize::MinimizedRecipe;
use crate::differential::sides::Sides;
use crate::recipes::recipe::quoted;

use super::program_files::lines;

/// Returns the commands of a minimized recipe, and those that ask the question.
pub(super) fn commands_of(sides: &Sides, minimized: &MinimizedRecipe) -> Vec<String> {
    let steps = &minimized.recipe.steps;
    let mut commands: Vec<String> =
        steps.iter().flat_map(|step| &step.commands).flat_map(lines).collect();
    let disk = steps.get(minimized.met.step).map(|step| &step.disk);
    if let (Some(question), Some(disk)) = (&minimized.met.question, disk) {
        let words = |output: &str| question.arguments(disk, output);
        commands.push(format!("qemu-img {}", quoted(&words("qemu.raw"))));
        commands.push(sides.tested.line(&words("tested.raw")));
    }
    commands
}

/// Returns the text of an issue about a divergence. `body` is the difference, or the reason.
pub(super) fn issue(met: &Met, body: &str, commands: &[String], sides: &Sides) -> String {
    let answers = met.answers.as_ref().map_or(Vec::new(), |(qemu, tested)| {
        outputs((qemu, tested.as_ref()), &sides.tested.name())
    });
    let issue = Issue {
        title: &met.fingerprint,
        body,
        qemu_version: &sides.qemu.version,
        commands,
        outputs: &answers,
    };
    issue.text()
}

/// Returns a script that repeats the commands in an empty folder.
pub(super) fn script(commands: &[String]) -> String {
    let mut text = String::from(
        "#!/bin/sh\n# Repeats the divergence in a new folder beside this file.\n\
         cd \"$(dirname \"$0\")\" && rm -rf again && mkdir again && cd again || exit 2\n",
    );
    for command in commands {
        text.push_str(command);
        text.push('\n');
    }
    text
}
