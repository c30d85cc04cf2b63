//! The known differences between QEMU and the command of this project: `known.toml`.

use crate::base::error::Error;
use crate::harness::{KnownFinding, KnownFindings};

/// The beginning of the reason why both behaviours are permitted.
const CHOICE: &str = "Set aside, no bug: ";
/// The beginning of a reason that names the finding with the same cause.
const SAME_CAUSE: &str = "It has the same cause as '";

/// Returns the known findings of `known.toml`.
///
/// # Errors
/// The file is malformed.
pub fn known_of_qemu() -> Result<KnownFindings, Error> {
    KnownFindings::parse(include_str!("known.toml"))
}

/// Reports whether a finding is a bug: not both behaviours are permitted.
pub fn is_bug(finding: &KnownFinding) -> bool {
    !finding.reason.starts_with(CHOICE)
}

/// Returns why a finding is a bug, or why it is set aside.
pub fn reason_of(finding: &KnownFinding) -> &str {
    finding.reason.strip_prefix(CHOICE).unwrap_or(&finding.reason)
}

/// Returns the finding that describes the cause of `finding`: another one, or itself.
pub fn cause_of<'k>(known: &'k KnownFindings, finding: &'k KnownFinding) -> &'k KnownFinding {
    let named =
        reason_of(finding).strip_prefix(SAME_CAUSE).and_then(|rest| rest.strip_suffix("'."));
    let of_name = |named: &str| known.iter().find(|other| other.fingerprint == named);
    named.and_then(of_name).unwrap_or(finding)
}
