//! Compares two answers to one question.

pub(super) mod data;
mod map;
mod replies;

use serde_json::Value;

use super::divergence::{Divergence, DivergenceKind};
use super::reason::{self, Comparison, ReasonClass, class_of};
use crate::processes::Reply;
use crate::recipes::recipe::DiskQuestion;
use crate::recipes::without_numbers;
use replies::as_in;

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
    let [qemu, tested] =
        [answers.qemu, answers.tested].map(|reply| as_in(answers.version, question, reply));
    let answers = Replies { qemu: &qemu, tested: &tested, ..answers };
    ends(question, answers)?;
    let both_succeed = answers.qemu.is_success();
    match question {
        DiskQuestion::Map { .. } => map::compare(answers)?,
        DiskQuestion::Check => {
            fields(answers).map_err(|divergence| with_finding(divergence, answers))?
        }
        DiskQuestion::Info | DiskQuestion::Measure => fields(answers)?,
        DiskQuestion::Read if both_succeed => data::compare(files)?,
        DiskQuestion::Read => {}
    }
    if is_failure(question, answers.qemu) {
        return reasons(question, answers);
    }
    Ok(())
}

/// Compares QEMU's answers about two disks: the one that QEMU has made, and the one that the program under test has
/// made. The same bytes may have different host offsets in the two disks.
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
    let only_ours = finding_of(answers).filter(|_| *question == DiskQuestion::Check);
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
        // A check that ends at the first fault exits with 1, and prints its result.
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

/// The end of each message, and the name of the finding.
const ONLY_OURS: [(&str, &str); 2] = [
    (" and another structure too", "a cluster with two structures"),
    (": the zero flag is set in a version 2 image", "a zero flag in version 2"),
];

/// Returns the name of the first finding that only our check has.
fn finding_of(answers: Replies<'_>) -> Option<&'static str> {
    if !answers.has_known_messages {
        return None;
    }
    let message = answers.tested.message();
    let has = |end: &str| message.lines().any(|line| line.ends_with(end));
    ONLY_OURS.iter().find(|(end, _)| has(end)).map(|(_, name)| *name)
}

/// Adds the name of that finding to a divergence.
fn with_finding(mut divergence: Divergence, answers: Replies<'_>) -> Divergence {
    if let Some(name) = finding_of(answers) {
        divergence.what += ", ";
        divergence.what += name;
    }
    divergence
}

/// Compares all fields. An empty output is that of a side that failed.
fn fields(answers: Replies<'_>) -> Result<(), Divergence> {
    let parsed = |side: &str, answer: &Reply| match answer.stdout.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(&answer.stdout)
            .map_err(|error| Divergence::new(DivergenceKind::JsonParseFailure, side, error)),
    };
    let (qemu, tested) = (parsed("qemu", answers.qemu)?, parsed("tested", answers.tested)?);
    match difference(String::new(), &qemu, &tested) {
        None => Ok(()),
        Some((field, one, other)) => {
            let what = format!("{field}: {}", kinds(one, other));
            let detail = format!("{field}: qemu {}, tested {}", shown(one), shown(other));
            Err(Divergence::new(DivergenceKind::FieldDivergence, what, detail))
        }
    }
}

/// The path of the first field that differs, and both values. `None` stands for a missing field.
type Difference<'v> = (String, Option<&'v Value>, Option<&'v Value>);

fn difference<'v>(path: String, qemu: &'v Value, tested: &'v Value) -> Option<Difference<'v>> {
    match (qemu, tested) {
        (Value::Object(one), Value::Object(other)) => {
            let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
            keys.into_iter().find_map(|key| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => difference(path, one, other),
                    (one, other) => Some((path, one, other)),
                }
            })
        }
        (Value::Array(one), Value::Array(other)) => {
            let pairs = one.iter().zip(other);
            let found = pairs
                .into_iter()
                .find_map(|(one, other)| difference(format!("{path}[]"), one, other));
            let lengths = (one.len() != other.len()).then_some((path, Some(qemu), Some(tested)));
            found.or(lengths)
        }
        (one, other) => (one != other).then_some((path, Some(one), Some(other))),
    }
}

/// Returns the kinds of both values. Only booleans keep their values, because numbers and names differ in every image.
fn kinds(qemu: Option<&Value>, tested: Option<&Value>) -> String {
    let kind = |value: Option<&Value>| match value {
        None => "missing".to_string(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Null) => "nothing".to_string(),
        Some(Value::Number(_)) => "number".to_string(),
        Some(Value::String(_)) => "text".to_string(),
        Some(Value::Array(_)) => "list".to_string(),
        Some(Value::Object(_)) => "object".to_string(),
    };
    format!("{} → {}", kind(qemu), kind(tested))
}

fn shown(value: Option<&Value>) -> String {
    value.map_or("nothing".to_string(), Value::to_string)
}
