//! The lines of a command: the first ones, which state its name, its claims, its policy and the questions that it
//! answers; then questions and answers. `docs/engines.md` describes them.
//!
//! # Arithmetic
//! A count that has no room in a `usize` is past the limit. A piece that is not there is empty.

use std::fmt;

use crate::disk::extent::{Extent, Mapping, Window};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::harness::engine::claims::{Claims, EnginePolicy};
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};
use crate::harness::engine::statement::Statement;
use crate::harness::engine::status::{GuestRun, GuestStatus};
use crate::harness::engine::{EngineQuestion, ErrorKind};

/// The longest line of a command.
const MAX_LINE_BYTES: usize = 64 << 10;
/// The largest number of extents in an answer. The disk of a program has fewer cells.
const MAX_ANSWER_EXTENTS: usize = 1 << 24;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ParsedAnswer {
    /// The size of the disk in bytes.
    Opened(u64),
    /// The extents.
    Extents(Vec<Extent>),
    /// The status.
    Status(GuestRun),
    /// The bytes.
    Bytes(Vec<u8>),
    /// An error, of the kind that the first word of its line names, and with this text.
    Error(ErrorKind, String),
}

/// Prints the line of the question, without its end.
impl fmt::Display for EngineQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Open => f.write_str("open"),
            Self::OpenSnapshot(index) => write!(f, "snapshot {index}"),
            Self::Map(Window { start, length_bytes }) => {
                write!(f, "map {} {length_bytes}", start.get())
            }
            Self::Status(guest) => write!(f, "status {}", guest.get()),
            Self::Read(guest, length) => write!(f, "read {} {length}", guest.get()),
            // No command declares that it answers these.
            Self::Report(kind) => write!(f, "report {kind:?}"),
        }
    }
}

/// Parses the answer at the beginning of `bytes`. Returns the answer with its length; `None` if `bytes` does not
/// contain its end yet.
pub(super) fn parse_answer(
    question: EngineQuestion,
    bytes: &[u8],
) -> Result<Option<(ParsedAnswer, usize)>, String> {
    let mut lines = Lines { bytes, at: 0 };
    let Some(line) = lines.next_line()? else { return Ok(None) };
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let error = match word {
        "ok" => None,
        "unsupported" => Some(ErrorKind::Unsupported),
        "failed" => Some(ErrorKind::Failed),
        "io" => Some(ErrorKind::Io),
        "error" => Some(ErrorKind::Untyped),
        _ => return Err(unexpected(question, "ok, unsupported, failed, io or error", line)),
    };
    let answer = match error {
        Some(kind) => Some(ParsedAnswer::Error(kind, rest.to_string())),
        None => parse_ok(question, line, rest, &mut lines)?,
    };
    Ok(answer.map(|answer| (answer, lines.at)))
}

fn parse_ok(
    question: EngineQuestion,
    line: &str,
    rest: &str,
    lines: &mut Lines<'_>,
) -> Result<Option<ParsedAnswer>, String> {
    let number = |what| rest.parse::<u64>().map_err(|_| unexpected(question, what, line));
    Ok(match question {
        EngineQuestion::Open | EngineQuestion::OpenSnapshot(_) => {
            Some(ParsedAnswer::Opened(number("ok SIZE")?))
        }
        EngineQuestion::Status(_) => {
            let run = run(rest)
                .ok_or_else(|| unexpected(question, "ok LENGTH STATUS HOST DEPTH", line))?;
            Some(ParsedAnswer::Status(run))
        }
        EngineQuestion::Read(_, length) => match number("ok LENGTH")? == length as u64 {
            true => lines.take(length).map(|bytes| ParsedAnswer::Bytes(bytes.to_vec())),
            false => return Err(unexpected(question, &format!("ok {length}"), line)),
        },
        EngineQuestion::Map(_) => {
            let count = usize::try_from(number("ok COUNT")?).unwrap_or(usize::MAX);
            if count > MAX_ANSWER_EXTENTS {
                let most = format!("at most {MAX_ANSWER_EXTENTS} extents");
                return Err(unexpected(question, &most, line));
            }
            let mut extents = Vec::new();
            for _ in 0..count {
                let Some(line) = lines.next_line()? else { return Ok(None) };
                let what = "START LENGTH STATUS HOST DEPTH";
                extents.push(extent(line).ok_or_else(|| unexpected(question, what, line))?);
            }
            Some(ParsedAnswer::Extents(extents))
        }
        EngineQuestion::Report(_) => return Err(unexpected(question, "no report", line)),
    })
}

fn unexpected(question: EngineQuestion, expected: &str, line: &str) -> String {
    let shown: String = line.chars().take(200).collect();
    format!("the answer to {question}: expected {expected}, found '{shown}'")
}

/// The bytes of a command, taken from the front.
pub(super) struct Lines<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) at: usize,
}

impl<'b> Lines<'b> {
    /// Returns the next line without its end; `None` if its end is not there yet.
    ///
    /// # Errors
    /// The line is too long, or is not UTF-8.
    pub(super) fn next_line(&mut self) -> Result<Option<&'b str>, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(length) = rest.iter().take(MAX_LINE_BYTES + 1).position(|byte| *byte == b'\n')
        else {
            return match rest.len() > MAX_LINE_BYTES {
                true => Err(format!(
                    "expected lines of at most {MAX_LINE_BYTES} bytes, found a longer one"
                )),
                false => Ok(None),
            };
        };
        self.at += length + 1;
        let text = rest.get(..length).unwrap_or_default();
        let found = || {
            format!("expected a line of text, found '{}'", text[..length.min(80)].escape_ascii())
        };
        std::str::from_utf8(text).map(Some).map_err(|_| found())
    }

    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let bytes = self.bytes.get(self.at..)?.get(..length)?;
        self.at += length;
        Some(bytes)
    }
}

/// Parses `LENGTH STATUS HOST DEPTH`. Without a depth, the status is as coarse as the words say.
fn run(text: &str) -> Option<GuestRun> {
    let mut words = text.split(' ');
    let length_bytes = words.next()?.parse().ok()?;
    let (status, host, depth) = (words.next()?, words.next()?, words.next()?);
    let host = optional(host)?.map(HostOffset::new);
    let status = match (optional(depth)?, status) {
        (Some(depth), _) => GuestStatus::Exact(mapping(status, host, depth)?),
        (None, "data") => GuestStatus::Data(host),
        (None, "compressed") => GuestStatus::Compressed,
        (None, "stored") => GuestStatus::Stored,
        (None, "zeros") => GuestStatus::Zeros(host),
        (None, "hole") => GuestStatus::Hole,
        (None, "below") => GuestStatus::Below,
        _ => return None,
    };
    words.next().is_none().then_some(GuestRun { length_bytes, status })
}

/// Parses `START LENGTH STATUS HOST DEPTH`.
fn extent(line: &str) -> Option<Extent> {
    let mut words = line.split(' ');
    let start = GuestOffset::new(words.next()?.parse().ok()?);
    let length_bytes = words.next()?.parse().ok()?;
    let (status, host, depth) = (words.next()?, words.next()?, words.next()?);
    let mapping = mapping(status, optional(host)?.map(HostOffset::new), optional(depth)??)?;
    words.next().is_none().then_some(Extent { start, length_bytes, mapping })
}

/// Parses a number, or `-` for none.
fn optional(word: &str) -> Option<Option<u64>> {
    match word {
        "-" => Some(None),
        word => word.parse().ok().map(Some),
    }
}

fn mapping(status: &str, offset: Option<HostOffset>, depth: u64) -> Option<Mapping> {
    let (present, zero, data, compressed) = match status {
        "hole" => (false, true, false, false),
        "zeros" => (true, true, false, false),
        "data" => (true, false, true, false),
        "compressed" => (true, false, true, true),
        _ => return None,
    };
    let depth = u32::try_from(depth).ok()?;
    Some(Mapping { depth, present, zero, data, compressed, offset })
}

/// The version of the protocol, and the first line of a command.
const FIRST_LINE: &str = "qcowfuzz-engine 1";

/// The statement of a command about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) claims: Claims,
    pub(super) policy: EnginePolicy,
    pub(super) answers: QuestionKinds,
}

/// The lines that have been read.
#[derive(Debug, Default)]
pub(super) struct HelloParser {
    is_begun: bool,
    name: Option<String>,
    stated: Statement,
    answers: Option<QuestionKinds>,
}

impl HelloParser {
    /// Takes the next line. Returns the statement after the last line.
    pub(super) fn line(&mut self, line: &str) -> Result<Option<Hello>, String> {
        if !self.is_begun {
            self.is_begun = true;
            return match line == FIRST_LINE {
                true => Ok(None),
                false => Err(format!("expected the first line '{FIRST_LINE}', found '{line}'")),
            };
        }
        let (key, value) = line.split_once(' ').unwrap_or((line, ""));
        match key {
            "name" if !value.is_empty() => self.name = Some(value.to_string()),
            "answers" => self.answers = Some(answers(value)?),
            "ready" if value.is_empty() => return self.ready().map(Some),
            _ if self.stated.take(key, value)? => {}
            _ => {
                let keys = Statement::KEYS;
                return Err(format!(
                    "expected a line with 'name', {keys}, 'answers' or 'ready', found '{line}'"
                ));
            }
        }
        Ok(None)
    }

    fn ready(&mut self) -> Result<Hello, String> {
        let missing = |key: &str| format!("expected a line with '{key}' before 'ready'");
        let name = self.name.take().ok_or_else(|| missing("name"))?;
        let answers = self.answers.ok_or_else(|| missing("answers"))?;
        let Statement { version, claims, size } = std::mem::take(&mut self.stated);
        let policy = EnginePolicy { size, ..EnginePolicy::OTHER_PROCESS };
        Ok(Hello { name, version, claims, policy, answers })
    }
}

fn answers(value: &str) -> Result<QuestionKinds, String> {
    let mut kinds = QuestionKinds::of(&[QuestionKind::Open]);
    for word in value.split_whitespace() {
        kinds = kinds.with(match word {
            "map" => QuestionKind::Map,
            "status" => QuestionKind::Status,
            "read" => QuestionKind::Read,
            "snapshot" => QuestionKind::Snapshots,
            _ => return Err(format!("expected map, status, read or snapshot, found '{word}'")),
        });
    }
    match [QuestionKind::Map, QuestionKind::Status, QuestionKind::Read]
        .iter()
        .any(|it| kinds.has(*it))
    {
        true => Ok(kinds),
        false => Err("expected 'answers' with map, status or read".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use crate::base::features::{Feature, FeatureSet};
    use crate::harness::engine::claims::{Claim, SizePolicy};

    use super::*;

    const READ: EngineQuestion = EngineQuestion::Read(GuestOffset::new(512), 4);
    const MAP: EngineQuestion = EngineQuestion::Map(Window::ALL);

    #[test]
    fn answers_are_taken_when_they_are_whole() {
        for (question, text) in [
            (EngineQuestion::Open, "ok 1024\n"),
            (EngineQuestion::OpenSnapshot(1), "unsupported snapshots\n"),
            (READ, "ok 4\na\nb\n"),
            (MAP, "ok 2\n0 512 data 65536 0\n512 512 hole - 1\n"),
            (EngineQuestion::Status(GuestOffset::ZERO), "ok 512 stored - -\n"),
        ] {
            let (_, length) = parse_answer(question, text.as_bytes()).unwrap().unwrap();
            assert_eq!(length, text.len());
            for part in 0..text.len() {
                assert_eq!(parse_answer(question, &text.as_bytes()[..part]), Ok(None), "{text}");
            }
        }
    }

    #[test]
    fn extents_and_statuses_are_parsed() {
        let offset = Some(HostOffset::new(65536));
        let data = Mapping { present: true, zero: false, data: true, offset, ..Mapping::HOLE };
        assert_eq!(extent("0 512 data 65536 0").unwrap().mapping, data);
        assert_eq!(extent("0 512 hole - 0").unwrap().mapping, Mapping::HOLE);
        let status = |text| run(text).unwrap().status;
        assert_eq!(status("1 data 65536 0"), GuestStatus::Exact(data));
        assert_eq!(status("1 data 65536 -"), GuestStatus::Data(offset));
        assert_eq!(status("1 below - -"), GuestStatus::Below);
        for wrong in ["1 stored - 0", "1 data", "x data - -", "1 data - - -", "1 map - -"] {
            assert_eq!(run(wrong), None, "{wrong}");
        }
        assert_eq!(extent("0 512 data 65536 -"), None);
    }

    #[test]
    fn mistakes_name_the_question_and_the_answer() {
        let long = "x".repeat(MAX_LINE_BYTES + 1);
        for (question, bytes, expected) in [
            (READ, "ok 3\n", "the answer to read 512 4: expected ok 4, found 'ok 3'"),
            (READ, "yes\n", "expected ok, unsupported, failed, io or error, found 'yes'"),
            (EngineQuestion::Open, "ok big\n", "expected ok SIZE, found 'ok big'"),
            (EngineQuestion::Open, &long, "expected lines of at most 65536 bytes"),
            (MAP, "ok 99999999999\n", "expected at most 16777216 extents"),
            (MAP, "ok 1\n0 x\n", "STATUS HOST DEPTH, found '0 x'"),
        ] {
            let error = parse_answer(question, bytes.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let binary = parse_answer(EngineQuestion::Open, b"ok \xff\n").unwrap_err();
        assert!(binary.contains("found 'ok \\xff'"));
    }

    fn parsed(text: &str) -> Result<Option<Hello>, String> {
        let mut parser = HelloParser::default();
        text.lines().try_fold(None, |_, line| parser.line(line))
    }

    #[test]
    fn a_statement_is_read() {
        let text = "qcowfuzz-engine 1\nname my reader\nversion 1.2\nno extended L2 entries\nrefuse snapshots\n\
                    size near\nanswers read map\nready";
        let hello = parsed(text).unwrap().unwrap();
        assert_eq!((&*hello.name, &*hello.version), ("my reader", "1.2"));
        let about = |feature| hello.claims.about(FeatureSet::of(&[feature]));
        assert_eq!(about(Feature::ExtendedL2), Claim::No);
        assert_eq!(about(Feature::Snapshots), Claim::RefuseOrBeRight);
        assert_eq!(about(Feature::Zstd), Claim::Yes);
        assert_eq!(hello.policy.size, SizePolicy::Near);
        let kinds = [QuestionKind::Open, QuestionKind::Map, QuestionKind::Read];
        assert_eq!(hello.answers, QuestionKinds::of(&kinds));
    }

    #[test]
    fn mistakes_are_named() {
        let first = "qcowfuzz-engine 1\n";
        for (text, expected) in [
            ("hello", "expected the first line 'qcowfuzz-engine 1', found 'hello'"),
            ("qcowfuzz-engine 2", "found 'qcowfuzz-engine 2'"),
            (&format!("{first}no L2"), "expected a feature, found 'L2'"),
            (&format!("{first}size big"), "found 'size big'"),
            (&format!("{first}answers fly"), "found 'fly'"),
            (&format!("{first}answers snapshot"), "with map, status or read"),
            (&format!("{first}answers read\nready"), "'name' before 'ready'"),
            (&format!("{first}name a\nready"), "'answers' before 'ready'"),
            (&format!("{first}claims all"), "found 'claims all'"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
