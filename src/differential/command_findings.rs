//! The findings that a command of QEMU is by itself, beside the answers after it.

use std::fs;
use std::io;
use std::path::Path;

use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Walker};
use crate::processes::Reply;
use crate::recipes::perform::bytes_of;
use crate::recipes::recipe::{ABORT, Command};
use crate::recipes::{RecipeError, without_numbers};

use super::divergence::{Divergence, DivergenceKind};

/// Returns the finding that a command of QEMU is: a crash without an `abort`, or a hang.
pub(super) fn crash_or_hang(command: &Command, answer: &Reply) -> Option<Divergence> {
    let is_abort = |last: &String| last == ABORT;
    let wanted = matches!(command, Command::QemuIo { requests, .. } if requests.last().is_some_and(is_abort));
    let kind = DivergenceKind::of_end(answer.end)?;
    if wanted && kind == DivergenceKind::Signal {
        return None;
    }
    let message = answer.message();
    let last = message.lines().last().map_or(String::new(), without_numbers);
    let after = if last.is_empty() { "" } else { ", after: " };
    let what = format!("qemu, {}{after}{last}", answer.end.brief());
    Some(Divergence::new(kind, what, message))
}

/// Has our walker and all oracles judge the program of a command, and returns their finding.
pub(super) fn judge_program(command: &Command) -> Result<Option<Divergence>, RecipeError> {
    let Command::Program { input, .. } = command else { return Ok(None) };
    let mut target = TargetKind::Hostile.judging(Walker::default());
    let found = target.run(&bytes_of(input)?, Checks::AtCheckpoints).err();
    Ok(found.map(|failure| {
        let violation = failure.violation;
        Divergence::new(DivergenceKind::ModelDivergence, violation.fingerprint(), &violation)
    }))
}

/// Removes a file, if it is there.
pub(super) fn remove(path: &Path) -> Result<(), RecipeError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RecipeError::file(path, error))
        }
        _ => Ok(()),
    }
}
