//! Oracles. Each decides whether an answer is a bug; its first lines state what it does *not* check. Oracles return
//! violations; only a fuzz target panics. Their tools lie beside them: collecting and metering a walk, and reading an
//! image's own structures (`recount`, `entries`).

pub mod bounds;
pub mod collector;
pub mod data;
pub mod flags;
pub mod hostile;
pub mod io;
pub mod known;
pub mod lookup;
pub mod maximal;
pub mod metered;
pub mod model;
pub mod partition;
pub mod qcow2;
pub mod raw;
pub mod snapshots;
pub mod window;

use std::fmt;

use crate::disk::extent::Mapping;

/// A bug that an oracle has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the oracle.
    pub oracle: &'static str,
    /// The field in which the answers disagree.
    pub field: &'static str,
    /// The kind of the expected answer.
    pub expected: &'static str,
    /// The kind of the actual answer.
    pub actual: &'static str,
    /// Offsets and values for a person. They are never part of the fingerprint.
    pub detail: String,
}

impl Violation {
    /// Returns one line that is the same for the same bug in every program. It contains no offset, no hash and no
    /// order of operations.
    pub fn fingerprint(&self) -> String {
        format!("{}: {}, {} → {}", self.oracle, self.field, self.expected, self.actual)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.fingerprint(), self.detail)
    }
}

/// The result of an oracle.
pub type Verdict = Result<(), Box<Violation>>;

/// Returns a violation in a box, because violations are rare and every oracle returns this type.
pub(crate) fn violation(
    oracle: &'static str,
    field: &'static str,
    kinds: (&'static str, &'static str),
    detail: impl FnOnce() -> String,
) -> Verdict {
    let (expected, actual) = kinds;
    Err(Box::new(Violation { oracle, field, expected, actual, detail: detail() }))
}

/// Returns the violation for an error in place of an answer.
pub(crate) fn unexpected_error(
    oracle: &'static str,
    asked: &'static str,
    error: &crate::harness::engine::EngineError,
) -> Box<Violation> {
    let (expected, actual, detail) = ("an answer", "an error", error.to_string());
    Box::new(Violation { oracle, field: asked, expected, actual, detail })
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
