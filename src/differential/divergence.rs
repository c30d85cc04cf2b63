//! A difference between two answers, and its name.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::harness::{KnownFinding, KnownFindings};
use crate::processes::ProcessEnd;

/// The kinds of divergences. Each comparison has the kinds that make sense for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DivergenceKind {
    /// One side succeeds and the other fails, or they exit with other codes.
    ExitCodeDivergence,
    /// The JSON of one side cannot be parsed.
    JsonParseFailure,
    /// The maps have another number of extents.
    ExtentCountDivergence,
    /// A field has another value.
    FieldDivergence,
    /// The bytes that a guest reads differ.
    DataDivergence,
    /// Both sides fail, for reasons of other classes.
    ReasonDivergence,
    /// Both sides fail, and one of the messages has no class.
    UnknownReason,
    /// A signal ended one side.
    Signal,
    /// One side did not end in time.
    Timeout,
    /// One side printed more than the campaign keeps.
    TooMuchOutput,
    /// A side that only reads changed a file.
    FileChanged,
    /// The image of a program violates an invariant, or QEMU's answer contradicts the model of the program.
    ModelDivergence,
    /// The campaign could not start a process, or not read or write a file.
    HarnessFailure,
}

impl DivergenceKind {
    /// Returns the kind of a divergence in which one side did not end by itself.
    pub(super) fn of_end(end: ProcessEnd) -> Option<Self> {
        match end {
            ProcessEnd::Exit(_) => None,
            ProcessEnd::Signal(_) | ProcessEnd::OutOfMemory => Some(Self::Signal),
            ProcessEnd::Timeout => Some(Self::Timeout),
            ProcessEnd::TooMuchOutput => Some(Self::TooMuchOutput),
        }
    }

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExitCodeDivergence => "exit_code_divergence",
            Self::JsonParseFailure => "json_parse_failure",
            Self::ExtentCountDivergence => "extent_count_divergence",
            Self::FieldDivergence => "field_divergence",
            Self::DataDivergence => "data_divergence",
            Self::ReasonDivergence => "reason_divergence",
            Self::UnknownReason => "unknown_reason",
            Self::Signal => "signal",
            Self::Timeout => "timeout",
            Self::TooMuchOutput => "too_much_output",
            Self::FileChanged => "file_changed",
            Self::ModelDivergence => "model_divergence",
            Self::HarnessFailure => "harness_failure",
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
