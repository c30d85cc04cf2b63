//! The known differences between QEMU and the command of this project: `known.toml`.

use crate::disk::error::Error;
use crate::harness::{KnownFinding, KnownFindings};

/// The beginning of the reason why both behaviours are permitted.
const CHOICE: &str = "Set aside, no bug: ";

/// Returns the known findings of `known.toml`.
///
/// # Errors
/// The file is malformed.
pub fn known_of_qemu() -> Result<KnownFindings, Error> {
    KnownFindings::parse(include_str!("known.toml"))
}

/// Reports whether a known finding is a fault, and no choice.
pub fn is_fault(finding: &KnownFinding) -> bool {
    !finding.reason.starts_with(CHOICE)
}
