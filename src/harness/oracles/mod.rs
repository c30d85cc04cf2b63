//! Oracles: each decides whether an answer is a bug, and says in its first lines what it does *not*
//! check. They return what they find; only a fuzz target panics. Beside them lie their tools: what
//! collects and meters a walk, and what reads an image's own structures (`recount`, `entries`).

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

/// A bug was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which oracle found it.
    pub oracle: &'static str,
    /// What disagreed.
    pub field: &'static str,
    /// What kind of answer was expected.
    pub expected: &'static str,
    /// What kind of answer was given.
    pub actual: &'static str,
    /// Where, and with which values: for a person, never part of the fingerprint.
    pub detail: String,
}

impl Violation {
    /// One line that is the same for the same bug, whatever the program: no offset, hash or order of
    /// operations in it.
    pub fn fingerprint(&self) -> String {
        format!("{}: {}, {} → {}", self.oracle, self.field, self.expected, self.actual)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.fingerprint(), self.detail)
    }
}

/// What an oracle answers.
pub type Verdict = Result<(), Box<Violation>>;

/// A violation, boxed: it is rare, and the answer of every oracle.
pub(crate) fn violation(
    oracle: &'static str,
    field: &'static str,
    kinds: (&'static str, &'static str),
    detail: impl FnOnce() -> String,
) -> Verdict {
    let (expected, actual) = kinds;
    Err(Box::new(Violation { oracle, field, expected, actual, detail: detail() }))
}

/// An error where an answer was due.
pub(crate) fn unexpected_error(
    oracle: &'static str,
    asked: &'static str,
    error: &crate::harness::engine::EngineError,
) -> Box<Violation> {
    let (expected, actual, detail) = ("an answer", "an error", error.to_string());
    Box::new(Violation { oracle, field: asked, expected, actual, detail })
}

/// The first field in which two mappings of the same bytes differ.
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
