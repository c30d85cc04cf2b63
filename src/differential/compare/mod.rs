//! Compares two answers to one question.

mod data;
mod fields;
mod findings;
mod map;
mod replies;
mod versions;

use super::divergence::{Divergence, DivergenceKind};
use super::reason::{self, Comparison, ReasonClass, class_of};
use crate::processes::Reply;
use crate::recipes::recipe::DiskQuestion;
use crate::recipes::without_numbers;

pub(in crate::differential) use data::read_part;
pub use map::parse as parse_map;
pub use replies::{RawFiles, Replies};

/// Compares two answers.
///
/// # Errors
/// They differ.
pub fn compare(
    question: &DiskQuestion,
    answers: Replies<'_>,
    files: RawFiles<'_>,
) -> Result<(), Divergence> {
    let [qemu, tested] = [answers.qemu, answers.tested]
        .map(|reply| versions::as_in(answers.version, question, reply));
    let answers = Replies { qemu: &qemu, tested: &tested, ..answers };
    ends(question, answers)?;
    let both_succeed = answers.qemu.is_success();
    match question {
        DiskQuestion::Map { .. } => map::compare(answers)?,
        DiskQuestion::Check => {
            fields::compare(answers).map_err(|divergence| findings::name(divergence, answers))?
        }
        DiskQuestion::Info | DiskQuestion::Measure => fields::compare(answers)?,
        DiskQuestion::Read if both_succeed => data::compare(files)?,
        DiskQuestion::Read => {}
    }
    if is_failure(question, answers.qemu) {
        return reasons(question, answers);
    }
    Ok(())
}

/// Compares the answers of QEMU about two disks that different programs have made: about QEMU's own, and about that of
/// the program under test. The same bytes may lie in other places of the files.
///
/// # Errors
/// The disks differ.
pub(super) fn compare_results(
    question: &DiskQuestion,
    (theirs, ours): (&Reply, &Reply),
    files: RawFiles<'_>,
) -> Result<(), Divergence> {
    if theirs.end != ours.end {
        let what = format!("{} → {}", theirs.end.brief(), ours.end.brief());
        let detail = format!(
            "QEMU's disk: {}the copy: {}",
            lines(&theirs.message()),
            lines(&ours.message())
        );
        return Err(Divergence::new(DivergenceKind::ExitCodeDivergence, what, detail));
    }
    match question {
        DiskQuestion::Map { .. } => map::compare_elsewhere(theirs, ours),
        DiskQuestion::Read if theirs.is_success() => data::compare(files),
        DiskQuestion::Read | DiskQuestion::Check | DiskQuestion::Info | DiskQuestion::Measure => {
            Ok(())
        }
    }
}

/// Compares how both sides ended. Death by a signal and a timeout are never agreement.
fn ends(question: &DiskQuestion, answers: Replies<'_>) -> Result<(), Divergence> {
    for (side, answer) in [("qemu", answers.qemu), ("tested", answers.tested)] {
        if let Some(kind) = DivergenceKind::of_end(answer.end) {
            let what = format!("{side}, {}", answer.end.brief());
            return Err(Divergence::new(kind, what, answer.message()));
        }
    }
    let [qemu, tested] = [answers.qemu, answers.tested].map(|answer| exit_code(question, answer));
    if qemu == tested {
        return Ok(());
    }
    let why = |answer: &Reply| match answer.is_success() {
        true => String::new(),
        false => format!(" ({})", class_or_finding(question, answer)),
    };
    let only_ours = findings::named(answers).filter(|_| *question == DiskQuestion::Check);
    let what = match only_ours {
        Some(name) => format!("{qemu} → {tested}, {name}"),
        None => format!("{qemu}{} → {tested}{}", why(answers.qemu), why(answers.tested)),
    };
    let detail = format!(
        "qemu: {}tested: {}",
        lines(&answers.qemu.message()),
        lines(&answers.tested.message())
    );
    Err(Divergence::new(DivergenceKind::ExitCodeDivergence, what, detail))
}

/// Returns the class of the reason of a failure, or the first finding of a check.
fn class_or_finding(question: &DiskQuestion, answer: &Reply) -> String {
    let message = answer.message();
    match (is_failure(question, answer), class_of(&message)) {
        (true, Some(class)) if message.contains("Could not open backing file") => {
            format!("below: {}", class.name())
        }
        (true, Some(class)) => class.name().to_string(),
        (true, None) => "unknown reason".to_string(),
        (false, _) => without_numbers(message.lines().next().unwrap_or_default()),
    }
}

fn lines(message: &str) -> String {
    let shown: String = message.chars().take(600).collect();
    if shown.ends_with('\n') { shown } else { format!("{shown}\n") }
}

/// Returns the exit code that counts. qemu-img fails with 1. `map` of other programs, and ours, may fail with another
/// code; the codes of the other verbs say more, and are compared.
fn exit_code(question: &DiskQuestion, answer: &Reply) -> i32 {
    match (question, answer.end.code().unwrap_or(-1)) {
        (_, 0) => 0,
        (DiskQuestion::Map { .. }, _) => 1,
        (_, code) => code,
    }
}

/// Reports whether an answer is a failure. `check` exits with 2 and 3 if it finds something, and with 63 if the format
/// has no checks.
fn is_failure(question: &DiskQuestion, answer: &Reply) -> bool {
    match (question, answer.end.code()) {
        (_, Some(0)) | (DiskQuestion::Check, Some(2 | 3 | 63)) => false,
        // A check of a VMDK image that finds a fault exits with 1, and prints its result.
        (DiskQuestion::Check, Some(1)) => answer.stdout.is_empty(),
        _ => true,
    }
}

/// Compares the classes of the reasons why both sides failed. Differences between classes of one fault have names.
fn reasons(question: &DiskQuestion, answers: Replies<'_>) -> Result<(), Divergence> {
    if !answers.has_known_messages {
        return Ok(());
    }
    let [qemu, tested] = [answers.qemu, answers.tested].map(Reply::message);
    let Comparison::Different { ours, theirs } = reason::compare(question.verb(), &tested, &qemu)
    else {
        return Ok(());
    };
    let name = |class: Option<ReasonClass>| class.map_or("unknown", ReasonClass::name);
    let what = format!("{} → {}", name(theirs), name(ours));
    let detail = format!("qemu: {}tested: {}", lines(&qemu), lines(&tested));
    let kind = match ours.is_none() || theirs.is_none() {
        true => DivergenceKind::UnknownReason,
        false => DivergenceKind::ReasonDivergence,
    };
    Err(Divergence::new(kind, what, detail))
}
