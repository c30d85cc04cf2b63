//! A difference between two answers, and its name.

use std::fmt;

use qcowfuzz_walker::closed;
use serde::Serialize;

use crate::base::error::Error;
use crate::harness::{KnownFinding, KnownFindings};
use crate::processes::ProcessEnd;

closed! {
    /// The kinds of divergences. Each comparison has the kinds that make sense for it.
    #[derive(Serialize)]
    #[serde(rename_all = "snake_case")]
    DivergenceKind {
        /// One side succeeds and the other fails, or their exit codes differ.
        ExitCodeDivergence = "exit_code_divergence",
        /// The JSON of one side cannot be parsed.
        JsonParseFailure = "json_parse_failure",
        /// The maps have different numbers of extents.
        ExtentCountDivergence = "extent_count_divergence",
        /// The values of a field differ.
        FieldDivergence = "field_divergence",
        /// The bytes that a guest reads differ.
        DataDivergence = "data_divergence",
        /// Both sides fail, and the classes of their messages differ.
        ReasonDivergence = "reason_divergence",
        /// Both sides fail, and one of the messages has no class.
        UnknownReason = "unknown_reason",
        /// A signal ended one side.
        Signal = "signal",
        /// One side did not end in time.
        Timeout = "timeout",
        /// One side printed more than the campaign keeps.
        TooMuchOutput = "too_much_output",
        /// A side that only reads changed a file.
        FileChanged = "file_changed",
        /// The image of a program violates an invariant, or QEMU's answer contradicts the model of the program.
        ModelDivergence = "model_divergence",
        /// The campaign could not start a process, or not read or write a file.
        HarnessFailure = "harness_failure",
    }
}

impl DivergenceKind {
    /// Returns the kind of a divergence in which one side did not end by itself.
    pub(super) fn of_end(end: ProcessEnd) -> Option<Self> {
        match end {
            ProcessEnd::Exit(_) => None,
            ProcessEnd::Signal(_) | ProcessEnd::OutOfMemory => Some(Self::Signal),
            ProcessEnd::Timeout => Some(Self::Timeout),
            ProcessEnd::TooMuchOutput => Some(Self::TooMuchOutput),
            // The processes of a campaign print texts, of which none is wrong for this end.
            ProcessEnd::WrongAnswer => Some(Self::HarnessFailure),
        }
    }
}

/// A difference between two answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The kind.
    pub kind: DivergenceKind,
    /// The difference without offsets, lengths and names: the same fault has the same text in every image.
    pub what: String,
    /// The difference in this image.
    pub detail: String,
}

impl Divergence {
    /// Creates a divergence.
    pub fn new(kind: DivergenceKind, what: impl fmt::Display, detail: impl fmt::Display) -> Self {
        Self { kind, what: what.to_string(), detail: detail.to_string() }
    }

    /// Returns the fingerprint: the comparison and the kind, the format, and what differs.
    pub fn fingerprint(&self, comparison: &str, format: &str) -> String {
        format!("{comparison}_{}: {format}, {}", self.kind.name(), self.what)
    }
}

/// The beginning of the reason why both behaviours are permitted.
const CHOICE: &str = "Set aside, no bug: ";
/// The beginning of a reason that names the finding with the same cause.
const SAME_CAUSE: &str = "It has the same cause as '";

/// Returns the known findings of `known.toml`.
///
/// # Errors
/// The file is malformed.
pub fn known_of_qemu() -> Result<KnownFindings, Error> {
    KnownFindings::parse(include_str!("reports/known.toml"))
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
