//! The process of an engine: its bounds, and its end in place of answers.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::harness::engine::EngineEnd;
use crate::processes::{
    Bounds, Executable, NoAnswer, PipedProcess, ProcessEnd, TakeAnswers, TimeLimit,
};

/// The address space of the process, unless the command raises the limit by `ulimit`.
const MAX_MEMORY_KIB: u64 = 2 << 20;
/// The bounds of the answers about one image.
const BOUNDS: Bounds = Bounds {
    time: TimeLimit::Cpu { used: Duration::from_secs(5), idle: Duration::from_secs(10) },
    unread_bytes: 1 << 30,
};
/// The number of bytes of standard error that are kept.
const KEPT_ERROR_BYTES: usize = 2048;
/// The number of its lines that a finding shows.
const KEPT_ERROR_LINES: usize = 10;

/// The reason why there are no answers.
#[derive(Debug)]
pub(crate) enum Silence {
    /// The process ended, or the harness ended it because it was silent.
    Ended(EngineEnd),
    /// The process wrote something else, or the system refused something. The line is for the user.
    Failed(String),
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// A process, which is stopped with this value.
#[derive(Debug)]
pub(crate) struct EngineProcess(PipedProcess);

impl EngineProcess {
    /// Starts `command` with a shell, in a folder if there is one.
    pub(crate) fn start(command: &str, folder: Option<&Path>) -> io::Result<Self> {
        let shell = Executable::command(command, MAX_MEMORY_KIB);
        // A backtrace would push the message of a panic out of the lines that are kept.
        let shell = shell.with_variable("RUST_BACKTRACE", "0");
        Ok(Self(PipedProcess::start(&shell.in_folder(folder), KEPT_ERROR_BYTES)?))
    }

    /// Returns the bytes of standard output that are no part of an answer yet.
    pub(crate) fn unread(&self) -> &[u8] {
        self.0.unread()
    }

    /// Writes `questions`, and reads until `take` has all answers: see [`PipedProcess::exchange`].
    pub(crate) fn exchange(
        &mut self,
        questions: &[u8],
        take: &mut TakeAnswers<'_>,
    ) -> Result<(), Silence> {
        let what = match self.0.exchange(questions, take, BOUNDS) {
            Ok(()) => return Ok(()),
            Err(NoAnswer::Ended(ProcessEnd::TooMuchOutput)) => {
                format!("expected answers of at most {} bytes", BOUNDS.unread_bytes)
            }
            Err(NoAnswer::Ended(end)) => return Err(Silence::Ended(self.end(end))),
            Err(NoAnswer::Failed(error)) => error.to_string(),
            Err(NoAnswer::Closed) => {
                "expected an answer, but the command has closed its standard input or output".into()
            }
        };
        Err(Silence::Failed(what))
    }

    fn end(&self, end: ProcessEnd) -> EngineEnd {
        let text = self.0.stderr_text();
        let mut lines: Vec<_> = text.trim_end().lines().rev().take(KEPT_ERROR_LINES).collect();
        lines.reverse();
        EngineEnd { process: end.explained_by(&text), detail: lines.join("\n") }
    }
}

/// Runs a command to its end, in a folder if there is one. Returns its end, and all that it has printed to standard
/// output.
///
/// # Errors
/// Returns one line for the user: the command does not run.
pub(crate) fn run_to_end(
    command: &str,
    folder: Option<&Path>,
) -> Result<(EngineEnd, Vec<u8>), String> {
    let mut process = EngineProcess::start(command, folder).map_err(|error| error.to_string())?;
    match process.exchange(b"", &mut |_| Ok((0, false))) {
        Ok(()) => Err("it does not end".to_string()),
        Err(Silence::Failed(what)) => Err(what),
        Err(Silence::Ended(end)) => Ok((end, process.unread().to_vec())),
    }
}
