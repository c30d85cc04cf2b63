//! Oracles. Each decides whether an answer is a bug; its first lines state what it does *not* check. Oracles return
//! violations; only a fuzz target panics. Their tools lie beside them: collecting and metering a walk, and reading an
//! image's own structures (`recount`, `entries`).

pub mod bounds;
pub mod collector;
pub mod data;
mod error_text;
pub mod flags;
pub mod hostile;
pub mod info;
pub mod io;
pub mod layout;
pub mod lookup;
pub mod maximal;
pub mod memory;
pub mod model;
pub mod observed;
pub mod partition;
pub mod qcow2;
pub mod raw;
mod refusal;
pub mod snapshots;
mod unwalked;
pub mod window;
pub mod written;

use std::fmt;
use std::ops::ControlFlow;

use crate::disk::extent::Mapping;
use crate::harness::engine::{EngineEnd, EngineError, ErrorKind};
use crate::processes::panic_message;

/// The oracles fill the buffers that they pass to an engine with this byte, and so see bytes that it left alone.
const POISON: u8 = 0xA5;

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

    /// Returns the words of the fingerprint, if it has no others.
    pub(crate) fn words(&self) -> Option<[&'static str; 4]> {
        let words = [self.oracle, self.field, self.expected, self.actual];
        self.error.is_none().then_some(words)
    }

    /// Reports whether the harness could not give the image to the engine.
    pub(crate) fn is_not_given(&self) -> bool {
        self.oracle == "open" && self.error_kind() == Some(ErrorKind::NoAnswer)
    }

    /// Returns the kind of the error that the engine gave in place of an answer, if it gave one.
    pub(crate) fn error_kind(&self) -> Option<ErrorKind> {
        self.error.as_ref().and_then(|error| error.kind)
    }
}

/// Returns the violation for the end of a process in place of its answers.
pub(crate) fn process_end(end: EngineEnd) -> Box<Violation> {
    let EngineEnd { process, detail } = end;
    let (oracle, field, (expected, actual)) = process.finding();
    // Process numbers and addresses differ from run to run.
    let lines: Vec<_> = detail.lines().map(error_text::without_values).collect();
    let error = panic_message(&detail).map(|message| GivenError {
        kind: None,
        text: error_text::without_values(&format!("panic: {message}")),
    });
    let (drawn, detail) = (false, lines.join("\n"));
    Box::new(Violation { oracle, drawn, field, expected, actual, error, detail })
}

/// An error that an engine gave in place of an answer, or the panic that ended its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GivenError {
    /// The kind of the error. A panic has none: no claim excuses it.
    kind: Option<ErrorKind>,
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

/// Takes a violation. If its finding is known, returns `Ok`, and the oracle goes on with the next answer.
pub(crate) type SetAside<'v> = dyn FnMut(Box<Violation>) -> OracleResult + 'v;

/// Returns whether an oracle goes on with its next question after a result. It does not if the engine has no answer to
/// questions of this kind.
///
/// # Errors
/// The violation, if it is not set aside.
pub(crate) fn go_on(
    judged: OracleResult,
    set_aside: &mut SetAside,
) -> Result<ControlFlow<()>, Box<Violation>> {
    match judged {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(found) if found.error_kind() == Some(ErrorKind::NoAnswer) => Ok(ControlFlow::Break(())),
        Err(found) => set_aside(found).map(ControlFlow::Continue),
    }
}

/// Returns a violation as the verdict of an oracle.
pub(crate) fn violation(
    oracle: impl Into<Oracle>,
    field: &'static str,
    kinds: (&'static str, &'static str),
    detail: impl FnOnce() -> String,
) -> OracleResult {
    Err(disagreement(oracle, field, kinds, detail()))
}

/// Returns a violation in a box, because violations are rare and every oracle returns this type.
pub(crate) fn disagreement(
    oracle: impl Into<Oracle>,
    field: &'static str,
    (expected, actual): (&'static str, &'static str),
    detail: String,
) -> Box<Violation> {
    let Oracle { name: oracle, drawn } = oracle.into();
    Box::new(Violation { oracle, drawn, field, expected, actual, error: None, detail })
}

/// Returns a violation whose fingerprint ends with the text of an error, without values.
#[cfg(feature = "fuzzer")]
pub(crate) fn disagreement_with(
    error: &str,
    oracle: impl Into<Oracle>,
    field: &'static str,
    kinds: (&'static str, &'static str),
    detail: String,
) -> Box<Violation> {
    let mut found = disagreement(oracle, field, kinds, detail);
    found.error = Some(GivenError { kind: None, text: error_text::without_values(error) });
    found
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
    let (expected, error) = ("an answer", Some(GivenError { kind: Some(kind), text }));
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
