//! Oracles. Each decides whether an answer is a bug; its first lines state what it does *not* check. Oracles return
//! violations; only a fuzz target panics. Their tools lie beside them: collecting and metering a walk (`bounds`), the
//! events of answers (`observed`), and reading an image's own structures (`qcow2::recount`).

pub mod bounds;
pub mod damaged;
pub mod data;
pub mod extents;
pub mod info;
pub mod io;
pub mod layout;
pub mod observed;
pub mod qcow2;
pub mod snapshots;
pub mod written;

use std::error::Error;
use std::fmt;
use std::ops::ControlFlow;

use crate::disk::extent::Mapping;
use crate::disk::offsets::GuestOffset;
use crate::processes::ProcessEnd;

use super::engine::{EngineEnd, EngineError, ErrorKind};

/// The oracles fill the buffers that they pass to an engine with this byte, and so see bytes that it left alone.
pub(crate) const POISON: u8 = 0xA5;

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
    /// True if the oracle's questions follow from the checksum of the input. Then one of two inputs with the same
    /// behaviour may show the bug, and the other one may not.
    pub drawn: bool,
    /// The field in which the answers disagree.
    pub field: &'static str,
    /// The kind of the expected answer.
    pub expected: &'static str,
    /// The kind of the actual answer.
    pub actual: &'static str,
    /// The error that the engine gave in place of an answer, if it gave one.
    pub(crate) error: Option<GivenError>,
    /// The first guest byte about which the answers disagree, if the violation is about certain bytes.
    pub guest: Option<GuestOffset>,
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

    /// Names the first guest byte about which the answers disagree, here and at the start of the detail.
    pub(crate) fn at(mut self: Box<Self>, guest: GuestOffset) -> Box<Self> {
        let separator = if self.detail.contains('\n') { ":\n" } else { ": " };
        self.detail.insert_str(0, &format!("guest offset {guest}{separator}"));
        self.guest = Some(guest);
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

    /// Returns the four words of the fingerprint, if it does not also contain the text of an error.
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
    let EngineEnd { process, cause, detail } = end;
    let (oracle, field, (expected, actual)) = process.finding();
    // Process numbers and addresses differ from run to run. The line about an answer has none.
    let lines: Vec<_> = match process {
        ProcessEnd::WrongAnswer => vec![detail],
        _ => detail.lines().map(without_values).collect(),
    };
    let error = cause.map(|cause| GivenError { kind: None, text: without_values(&cause) });
    let (drawn, detail) = (false, lines.join("\n"));
    Box::new(Violation { oracle, drawn, field, expected, actual, error, guest: None, detail })
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
pub type OracleResult<T = ()> = Result<T, Box<Violation>>;

/// Takes a violation. If its finding is known, returns `Ok`, and the oracle goes on with the next answer.
pub(crate) type SetAside<'v> = dyn FnMut(Box<Violation>) -> OracleResult + 'v;

/// Returns whether an oracle goes on with its next question after a result. It does not if the engine has no answer to
/// questions of this kind, or if the violation is not set aside.
pub(crate) fn go_on(
    judged: OracleResult,
    set_aside: &mut SetAside,
) -> OracleResult<ControlFlow<()>> {
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

/// Returns a violation whose first wrong guest byte is at `guest`.
pub(crate) fn violation_at(
    guest: GuestOffset,
    oracle: impl Into<Oracle>,
    field: &'static str,
    kinds: (&'static str, &'static str),
    detail: impl FnOnce() -> String,
) -> OracleResult {
    Err(disagreement(oracle, field, kinds, detail()).at(guest))
}

/// Returns a violation in a box, because violations are rare and every oracle returns this type.
pub(crate) fn disagreement(
    oracle: impl Into<Oracle>,
    field: &'static str,
    (expected, actual): (&'static str, &'static str),
    detail: String,
) -> Box<Violation> {
    let Oracle { name: oracle, drawn } = oracle.into();
    Box::new(Violation { oracle, drawn, field, expected, actual, error: None, guest: None, detail })
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
    found.error = Some(GivenError { kind: None, text: without_values(error) });
    found
}

/// Returns the violation for an error in place of an answer.
pub(crate) fn unexpected_error(
    oracle: impl Into<Oracle>,
    asked: &'static str,
    error: &EngineError,
) -> Box<Violation> {
    let Oracle { name: oracle, drawn } = oracle.into();
    let (kind, detail) = (error.kind(), cause_first(error));
    let actual = match kind {
        ErrorKind::Unsupported => "a feature is unsupported",
        _ => "an error",
    };
    let text = without_values(&detail);
    let (expected, error) = ("an answer", Some(GivenError { kind: Some(kind), text }));
    Box::new(Violation {
        oracle,
        drawn,
        field: asked,
        expected,
        actual,
        error,
        guest: None,
        detail,
    })
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

/// Returns the text of an error. Puts the deepest error, the cause, first, unless the fingerprint contains it anyway.
fn cause_first(error: &dyn Error) -> String {
    let outer = error.to_string();
    let mut deepest = error.source();
    while let Some(deeper) = deepest.and_then(Error::source) {
        deepest = Some(deeper);
    }
    match deepest.map(ToString::to_string) {
        Some(cause) if !without_values(&outer).contains(&without_values(&cause)) => {
            format!("{cause} ({outer})")
        }
        _ => outer,
    }
}

/// The longest text in a fingerprint, in characters.
const MAX_CHARS: usize = 80;

/// Returns the first line of `text` with `_` in place of numbers, hexadecimal numbers, lists of them, paths and quoted
/// values. A digit
/// at the end of a word belongs to the word: L2, qcow2.
fn without_values(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let words = without_quotes(line);
    let mut kept = String::new();
    for word in words.split_whitespace().map(without_value) {
        if kept.chars().count() + 1 + word.chars().count() > MAX_CHARS {
            break;
        }
        // A list of values is one value: its length differs from image to image.
        if kept.ends_with("_,") && word.starts_with('_') {
            kept.truncate(kept.len() - "_,".len());
        } else if !kept.is_empty() {
            kept.push(' ');
        }
        kept.push_str(&word);
    }
    kept
}

/// Replaces each quoted part of a line by `_`. A quote without an end, as in "isn't", quotes nothing.
fn without_quotes(line: &str) -> String {
    let mut rest = line;
    let mut kept = String::new();
    while let Some(at) = rest.find(['"', '\'', '`']) {
        let (before, from) = rest.split_at(at);
        // A quote is one byte long.
        let (quote, behind) = from.split_at(1);
        let begins = before.chars().next_back().is_none_or(|last| !last.is_alphanumeric());
        match behind.find(quote).filter(|_| begins) {
            Some(end) => {
                kept.push_str(before);
                kept.push('_');
                rest = &behind[end + 1..];
            }
            None => {
                kept.push_str(before);
                kept.push_str(quote);
                rest = behind;
            }
        }
    }
    kept + rest
}

/// Returns a word with `_` in place of its values.
fn without_value(word: &str) -> String {
    let bare = word.trim_matches(|one: char| !one.is_alphanumeric());
    let is_hex = bare.len() > 1 && bare.chars().all(|one| one.is_ascii_hexdigit());
    if is_hex && (bare.len() > 7 || bare.contains(|one: char| one.is_ascii_digit())) {
        return word.replace(bare, "_");
    }
    if word.contains('/') {
        return "_".to_string();
    }
    let mut kept = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(|one: char| one.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let is_hex = from.starts_with("0x");
        let digits = from.trim_start_matches(|one: char| {
            one.is_ascii_digit() || one == '_' || is_hex && (one == 'x' || one.is_ascii_hexdigit())
        });
        let length = from.len() - digits.len();
        let in_word = before.chars().next_back().is_some_and(char::is_alphabetic);
        let ends_word = digits.chars().next().is_none_or(|next| !next.is_alphanumeric());
        kept.push_str(before);
        kept.push_str(if in_word && ends_word && length == 1 { &from[..1] } else { "_" });
        rest = digits;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Chained {
        #[error("the image: {0}")]
        Repeats(#[source] std::io::Error),
        #[error("cannot open the image")]
        Hides(#[source] std::io::Error),
        #[error(
            "a long way to the cause, a long way to the cause, a long way to the cause, a long: {0}"
        )]
        Late(#[source] std::io::Error),
        #[error("no source")]
        Alone,
    }

    #[test]
    fn the_cause_comes_first_where_it_would_be_missing() {
        let cause = || std::io::Error::other("checksum 12 is wrong");
        let text = |error: Chained| cause_first(&EngineError::untyped(error));
        assert_eq!(text(Chained::Repeats(cause())), "the image: checksum 12 is wrong");
        let hidden = "checksum 12 is wrong (cannot open the image)";
        assert_eq!(text(Chained::Hides(cause())), hidden);
        assert!(text(Chained::Late(cause())).starts_with("checksum 12 is wrong (a long way"));
        assert_eq!(text(Chained::Alone), "no source");
    }

    #[test]
    fn values_are_left_out() {
        for (text, kept) in [
            ("guest offset 0x1f00 lies past the end", "guest offset _ lies past the end"),
            ("cluster 4096: L2 table of qcow2 v3", "cluster _: L2 table of qcow2 v3"),
            ("/tmp/x.1/layer.qcow2: No such file (os error 2)", "_ No such file (os error _)"),
            ("no format named 'raw2' or \"x y\" here", "no format named _ or _ here"),
            ("it isn't here, they don't say", "it isn't here, they don't say"),
            ("Error { offset: 65536, kind: Other }\nmore", "Error { offset: _, kind: Other }"),
            ("entry8000000000010000 and refs 1_000", "entry_ and refs _"),
            ("cluster 1f00, at (deadbeef)", "cluster _, at (_)"),
            ("a bad face", "a bad face"),
            ("unknown feature(s) 1, 2, 0x20 in a header", "unknown feature(s) _ in a header"),
            ("bits 3, 4, of 5", "bits _, of _"),
            ("", ""),
        ] {
            assert_eq!(without_values(text), kept);
        }
        let long = "nine chars".repeat(20);
        assert_eq!(
            without_values(&long),
            "nine charsnine charsnine charsnine charsnine charsnine charsnine charsnine"
        );
    }
}
