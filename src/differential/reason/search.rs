//! Finds the family of a message.

use super::class::ReasonClass;
use super::family::{MessageFamily, family};
use super::ours::OUR_MESSAGES;
use super::qemu::QEMU_MESSAGES;

/// Findings of a completed check, which both programs print in this form. An error that ended the check counts for
/// more, so these come last.
pub(super) const FINDINGS: &[MessageFamily] = &[
    family("ERROR", ReasonClass::CheckFindings, "a finding of check"),
    family("Leaked cluster", ReasonClass::CheckFindings, "a finding of check"),
];

/// Returns the class of the reason that a program printed to standard error. Returns `None` if no phrase is known.
pub fn class_of(stderr: &str) -> Option<ReasonClass> {
    family_of(stderr).map(|family| family.class)
}

/// Returns the first family whose phrase the text contains. Families with more specific phrases come first.
pub fn family_of(stderr: &str) -> Option<&'static MessageFamily> {
    // clap begins its messages with "error: ".
    let is_ours = |line: &str| line.starts_with("qcowfuzz: ") || line.starts_with("error: ");
    let families = if stderr.lines().any(is_ours) { OUR_MESSAGES } else { QEMU_MESSAGES };
    families.iter().chain(FINDINGS).find(|family| stderr.contains(family.phrase))
}
