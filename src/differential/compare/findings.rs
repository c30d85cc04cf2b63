//! The findings of our `check` that qemu-img does not report.

use super::replies::Replies;
use crate::differential::divergence::Divergence;

/// The end of each message, and the name of the finding.
const ONLY_OURS: [(&str, &str); 2] = [
    (" and another structure too", "a cluster with two structures"),
    (": the zero flag is set in a version 2 image", "a zero flag in version 2"),
];

/// Returns the name of the first finding that only our check has.
pub(super) fn named(answers: Replies<'_>) -> Option<&'static str> {
    if !answers.has_known_messages {
        return None;
    }
    let message = answers.tested.message();
    let has = |end: &str| message.lines().any(|line| line.ends_with(end));
    ONLY_OURS.iter().find(|(end, _)| has(end)).map(|(_, name)| *name)
}

/// Adds the name of that finding to a divergence.
pub(super) fn name(mut divergence: Divergence, answers: Replies<'_>) -> Divergence {
    if let Some(name) = named(answers) {
        divergence.what += ", ";
        divergence.what += name;
    }
    divergence
}
