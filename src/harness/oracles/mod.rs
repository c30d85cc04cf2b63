//! Oracles. Each decides whether an answer is a bug; its first lines state what it does *not* check. Oracles return
//! violations; only a fuzz target panics. Their tools lie beside them: collecting and metering a walk, and reading an
//! image's own structures (`recount`, `entries`).

pub mod bounds;
pub mod collector;
pub mod data;
mod error_text;
pub mod flags;
pub mod hostile;
pub mod io;
pub mod known;
pub mod lookup;
pub mod maximal;
pub mod model;
pub mod partition;
pub mod qcow2;
pub mod raw;
pub mod snapshots;
pub mod window;

use std::fmt;

use crate::disk::extent::Mapping;
use crate::harness::engine::{EngineError, ErrorKind};

/// An oracle, as its violations name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Oracle {
    /// The first word of its fingerprints.
    pub(crate) name: &'static str,
    /// True if its questions follow from the checksum of the input.
    pub(crate) drawn: bool,
}

impl Oracle {
    /// An oracle whose questions follow from the checksum of the input.
    pub(crate) const fn drawn(name: &'static str) -> Self {
        Self { name, drawn: true }
    }
}

/// An oracle that asks the same of all inputs that do the same.
impl From<&'static str> for Oracle {
    fn from(name: &'static str) -> Self {
        Self { name, drawn: false }
    }
}

/// A bug that an oracle has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the oracle.
    pub oracle: &'static str,
    /// True if the oracle's questions follow from the checksum of the input. Then of two inputs that do the same, one
    /// may show the bug and the other not.
    pub drawn: bool,
    /// The field in which the answers disagree.
    pub field: &'static str,
    /// The kind of the expected answer.
    pub expected: &'static str,
    /// The kind of the actual answer.
    pub actual: &'static str,
    /// The error that the engine gave in place of an answer, if it gave one.
    pub(crate) error: Option<GivenError>,
    /// Offsets and values for a person. They are never part of the fingerprint.
    pub detail: String,
}

impl Violation {
    /// Names `oracle` as the one that found the violation.
    pub(crate) fn attributed_to(mut self: Box<Self>, oracle: impl Into<Oracle>) -> Box<Self> {
        let oracle = oracle.into();
        (self.oracle, self.drawn) = (oracle.name, oracle.drawn);
        self
    }

    /// Records that the oracle's questions follow from the checksum of the input.
    pub(crate) fn into_drawn(mut self: Box<Self>) -> Box<Self> {
        self.drawn = true;
        self
    }

    /// Returns one line that is the same for the same bug in every program. It contains no offset, no hash and no
    /// order of operations. If the engine gave an error, the line ends with its text in brackets, without values.
    pub fn fingerprint(&self) -> String {
        let Self { oracle, field, expected, actual, .. } = self;
        match &self.error {
            None => format!("{oracle}: {field}, {expected} → {actual}"),
            Some(error) => format!("{oracle}: {field}, {expected} → {actual} ({})", error.text),
        }
    }

    /// Returns the kind of the error that the engine gave in place of an answer, if it gave one.
    pub(crate) fn error_kind(&self) -> Option<ErrorKind> {
        self.error.as_ref().map(|error| error.kind)
    }
}

/// An error that an engine gave in place of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenError {
    kind: ErrorKind,
    /// The text without values.
    text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.fingerprint(), self.detail)
    }
}

/// The result of an oracle.
pub type OracleResult = Result<(), Box<Violation>>;

/// Returns a violation in a box, because violations are rare and every oracle returns this type.
pub(crate) fn violation(
    oracle: impl Into<Oracle>,
    field: &'static str,
    kinds: (&'static str, &'static str),
    detail: impl FnOnce() -> String,
) -> OracleResult {
    let (Oracle { name: oracle, drawn }, (expected, actual)) = (oracle.into(), kinds);
    let (error, detail) = (None, detail());
    Err(Box::new(Violation { oracle, drawn, field, expected, actual, error, detail }))
}

/// Returns the violation for an error in place of an answer.
pub(crate) fn unexpected_error(
    oracle: impl Into<Oracle>,
    asked: &'static str,
    error: &EngineError,
) -> Box<Violation> {
    let Oracle { name: oracle, drawn } = oracle.into();
    let (kind, detail) = (error.kind(), error.to_string());
    let actual = match kind {
        ErrorKind::Unsupported => "a feature is unsupported",
        _ => "an error",
    };
    let text = error_text::without_values(&detail);
    let (expected, error) = ("an answer", Some(GivenError { kind, text }));
    Box::new(Violation { oracle, drawn, field: asked, expected, actual, error, detail })
}

/// Returns the first field in which two mappings of the same bytes differ.
pub(crate) fn differing_field(expected: &Mapping, actual: &Mapping) -> Option<&'static str> {
    if expected == actual {
        None
    } else if expected.status() != actual.status() {
        Some("kind")
    } else if expected.depth != actual.depth {
        Some("depth")
    } else if expected.offset != actual.offset {
        Some("offset")
    } else {
        Some("flags")
    }
}
