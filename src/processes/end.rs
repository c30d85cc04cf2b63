//! The end of a process: its name, its reason, and the fingerprint of an input that is to blame for it.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::OnceLock;

use rustix::process::Signal;
use serde::{Deserialize, Serialize};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessEnd {
    /// It exited with this code.
    Exit(i32),
    /// This signal ended it.
    Signal(i32),
    /// It was stopped because its time was over, or because it waited without end. The limit is no part of the
    /// fingerprint.
    Timeout,
    /// It was stopped because it printed too much, or stored too much in its folder.
    TooMuchOutput,
    /// It was stopped because it printed something that is no answer.
    WrongAnswer,
    /// It ended because it wanted more memory than it may have.
    OutOfMemory,
}

/// The words in which allocators and languages report that no memory is left.
const OUT_OF_MEMORY: [&str; 5] =
    ["memory allocation of ", "MemoryError", "bad_alloc", "out of memory", "annot allocate memory"];

impl ProcessEnd {
    /// Returns the end of a process with this status.
    #[cfg(any(test, feature = "fuzzer"))]
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// Returns the exit code, if the process ended by itself.
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Exit(code) => Some(code),
            _ => None,
        }
    }

    /// Returns the end as the system names it: `signal: 6 (SIGABRT)`, `exit status: 1`. A process that gave no answer
    /// in time has the name `none`.
    pub fn name(self) -> &'static str {
        static CODES: [OnceLock<String>; 256] = [const { OnceLock::new() }; 256];
        static SIGNALS: [OnceLock<String>; 128] = [const { OnceLock::new() }; 128];
        let (names, number, status) = match self {
            Self::Exit(code) => (&CODES[..], code, code << 8),
            Self::Signal(signal) => (&SIGNALS[..], signal, signal),
            Self::Timeout => return "none",
            Self::TooMuchOutput => return "too much output",
            Self::WrongAnswer => return "a wrong answer",
            Self::OutOfMemory => return "out of memory",
        };
        let name = usize::try_from(number).ok().and_then(|number| names.get(number));
        let named = || ExitStatus::from_raw(status).to_string();
        name.map_or("another end", |name| name.get_or_init(named))
    }

    /// Returns the end in the words of the differential campaign: `signal 6`, `exit 1`, `timeout`.
    pub fn brief(self) -> String {
        match self {
            Self::Exit(code) => format!("exit {code}"),
            Self::Signal(signal) => format!("signal {signal}"),
            Self::Timeout => "timeout".to_string(),
            Self::TooMuchOutput | Self::WrongAnswer | Self::OutOfMemory => self.name().to_string(),
        }
    }

    /// Returns the end, or the lack of memory as its reason if the last text on standard error reports that.
    #[must_use]
    pub fn explained_by(self, stderr: &str) -> Self {
        match OUT_OF_MEMORY.iter().any(|words| stderr.contains(words)) {
            true => Self::OutOfMemory,
            false => self,
        }
    }

    /// Returns the end of a process that enforces its limits of time and memory, and that printed `stderr` last.
    /// Returns `None` if somebody else has killed the process: the system does so when memory runs out, and no input is
    /// to blame for it.
    pub fn within_limits(self, stderr: &str) -> Option<Self> {
        match self {
            Self::Signal(signal) if signal == Signal::KILL.as_raw() => None,
            Self::Signal(signal) if signal == Signal::XCPU.as_raw() => Some(Self::Timeout),
            Self::Signal(_) => Some(self.explained_by(stderr)),
            _ => Some(self),
        }
    }

    /// Returns the parts of the fingerprint: the oracle, the field, the kinds of the expected and the actual answer.
    pub(crate) fn finding(self) -> (&'static str, &'static str, (&'static str, &'static str)) {
        match self {
            Self::OutOfMemory => ("memory", "allocation", ("within the limit", "beyond")),
            Self::WrongAnswer => ("process", "answer", ("within the protocol", "outside of it")),
            _ => ("process", "end", ("an answer", self.name())),
        }
    }

    /// Returns the fingerprint of an input whose process ended in this way.
    pub fn fingerprint(self) -> String {
        let (oracle, field, (expected, actual)) = self.finding();
        format!("{oracle}: {field}, {expected} → {actual}")
    }

    /// Returns the beginning of the name of an artifact.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Timeout => "timeout-",
            Self::OutOfMemory => "oom-",
            _ => "crash-",
        }
    }
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: &str = "a line\nmemory allocation of 10 bytes failed\n";

    fn of(raw: i32, stderr: &str) -> Option<String> {
        let end = ProcessEnd::of(ExitStatus::from_raw(raw));
        end.within_limits(stderr).map(ProcessEnd::fingerprint)
    }

    #[test]
    fn ends_have_reasons() {
        let abort = Signal::ABORT.as_raw();
        let aborted = "process: end, an answer → signal: 6 (SIGABRT)";
        assert_eq!(of(abort, "").as_deref(), Some(aborted));
        // Not every machine keeps a core file.
        assert_eq!(of(abort | 0x80, "").as_deref(), Some(aborted));
        let beyond = "memory: allocation, within the limit → beyond";
        assert_eq!(of(abort, MEMORY).as_deref(), Some(beyond));
        let none = "process: end, an answer → none";
        assert_eq!(of(Signal::XCPU.as_raw(), "").as_deref(), Some(none));
        // The machine killed the process. Its output does not matter.
        assert_eq!(of(Signal::KILL.as_raw(), MEMORY), None);
        // An exit code, although an allocation failed before.
        let code = "process: end, an answer → exit status: 101";
        assert_eq!(of(101 << 8, MEMORY).as_deref(), Some(code));
        // An engine in a language whose allocator ends the process by itself.
        assert_eq!(ProcessEnd::Exit(1).explained_by("MemoryError"), ProcessEnd::OutOfMemory);
    }

    #[test]
    fn every_number_has_a_name() {
        let names = [0, 255, 256, -1].map(|code| ProcessEnd::Exit(code).name());
        let expected = ["exit status: 0", "exit status: 255", "another end", "another end"];
        assert_eq!(names, expected);
        let prefixes = [ProcessEnd::Exit(1), ProcessEnd::Timeout, ProcessEnd::OutOfMemory];
        assert_eq!(prefixes.map(ProcessEnd::prefix), ["crash-", "timeout-", "oom-"]);
    }
}
