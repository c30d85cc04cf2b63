//! The processes of engines: their bounds, their ends in place of answers, and the commands of a program about the
//! files in a folder.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::harness::engine::{Answer, EngineEnd, EngineError, failure};
use crate::processes::{
    Bounds, Executable, NoAnswer, PipedProcess, ProcessEnd, TakeAnswers, TimeLimit, cause_in,
};

/// The address space of the process, unless the command raises the limit by `ulimit`.
const MAX_MEMORY_KIB: u64 = 2 << 20;
/// The bounds of the answers about one image.
const BOUNDS: Bounds = Bounds {
    time: TimeLimit::Cpu { used: Duration::from_secs(5), idle: Duration::from_secs(10) },
    unread_bytes: 1 << 30,
    // The files of the images store a quarter of that at most, and so does what is written of their disks.
    stored_bytes: 1 << 30,
};
/// The detail of a process that reaches the limit of time. The finding masks numbers, but not words.
const NO_ANSWER: &str = "no answer in five seconds of CPU time, or ten seconds without progress";
/// The number of bytes of standard error that are kept: the report of a sanitizer, or the stacks of all threads.
const KEPT_ERROR_BYTES: usize = 1 << 16;
/// The number of its lines that a finding shows.
const KEPT_ERROR_LINES: usize = 10;

/// The reason why there are no answers.
#[derive(Debug)]
pub(crate) enum Silence {
    /// The process ended, or the harness ended it because it was silent.
    Ended(EngineEnd),
    /// The system refused something. The line is for the user.
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

    /// Waits until all threads of the process wait for something, as long as it may take for an answer.
    pub(crate) fn wait_until_asleep(&self) {
        let (TimeLimit::Cpu { idle: longest, .. } | TimeLimit::Clock(longest)) = BOUNDS.time;
        self.0.wait_until_asleep(longest);
    }

    /// Returns the bytes of standard output that are no part of an answer yet.
    pub(crate) fn unread_text(&self) -> String {
        String::from_utf8_lossy(self.0.unread()).into_owned()
    }

    /// Writes `questions`, and reads until `take` has all answers: see [`PipedProcess::exchange`].
    pub(crate) fn exchange(
        &mut self,
        questions: &[u8],
        take: &mut TakeAnswers<'_>,
    ) -> Result<(), Silence> {
        match self.0.exchange(questions, take, BOUNDS) {
            Ok(()) => Ok(()),
            Err(NoAnswer::Ended(end)) => Err(Silence::Ended(self.end(end))),
            Err(NoAnswer::Wrong(what)) => Err(Silence::Ended(wrong_answer(what))),
            Err(NoAnswer::Closed) => {
                let what = "expected an answer, found that the command has closed its standard input or output";
                Err(Silence::Ended(wrong_answer(what.to_string())))
            }
            Err(NoAnswer::Failed(error)) => Err(error.into()),
        }
    }

    fn end(&self, end: ProcessEnd) -> EngineEnd {
        let text = self.0.stderr_text();
        let (process, cause) = (end.explained_by(&text), cause_in(&text));
        let lines: Vec<_> = text.trim_end().lines().collect();
        let first = match &cause {
            Some(cause) => cause.line,
            None => lines.len().saturating_sub(KEPT_ERROR_LINES),
        };
        let lines: Vec<_> = lines.into_iter().skip(first).take(KEPT_ERROR_LINES).collect();
        let limit = match process {
            ProcessEnd::Timeout => Some(NO_ANSWER),
            _ => None,
        };
        let detail: Vec<_> = limit.into_iter().chain(lines).collect();
        EngineEnd { process, cause: cause.map(|it| it.message), detail: detail.join("\n") }
    }
}

/// Returns the end of a process that the harness stops because of its answer.
fn wrong_answer(what: String) -> EngineEnd {
    EngineEnd { process: ProcessEnd::WrongAnswer, cause: Some(what.clone()), detail: what }
}

/// The end of a program, and the bytes that it has printed to standard output.
#[derive(Clone, Debug)]
pub(crate) struct EndedProgram {
    pub(crate) end: EngineEnd,
    pub(crate) output: String,
}

pub(crate) fn run_to_end(command: &str, folder: Option<&Path>) -> Result<EndedProgram, String> {
    let mut process = EngineProcess::start(command, folder).map_err(|error| error.to_string())?;
    match process.exchange(b"", &mut |_| Ok((0, false))) {
        Ok(()) => Err("it does not end".to_string()),
        Err(Silence::Failed(what)) => Err(what),
        Err(Silence::Ended(end)) => Ok(EndedProgram { end, output: process.unread_text() }),
    }
}

/// The exit codes of a shell that cannot run a command.
const NOT_RUN: [i32; 2] = [126, 127];

/// The commands of a program about the files in a folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageCommands<'p> {
    /// The program, which a shell runs.
    pub(crate) line: &'p str,
    /// The folder of the files. Images name each other by their names in it.
    pub(crate) folder: &'p Path,
}

impl ImageCommands<'_> {
    /// Runs the program to its end with these arguments. If it cannot be run, no image is to blame.
    pub(crate) fn run(&self, arguments: &[&str]) -> EndedProgram {
        self.try_run(arguments).unwrap_or_else(|what| failure::fail(what))
    }

    /// Runs the program to its end with these arguments.
    pub(super) fn try_run(&self, arguments: &[&str]) -> Result<EndedProgram, String> {
        let failed = |what: &str| format!("{}: {what}", self.line);
        let mut line = self.line.to_string();
        for argument in arguments {
            // A string takes everything. The harness has chosen the names, and none contains a quote.
            let _ = write!(line, " '{argument}'");
        }
        let ran = run_to_end(&line, Some(self.folder));
        let EndedProgram { end, output } = ran.map_err(|what| failed(&what))?;
        if end.process.code().is_some_and(|code| NOT_RUN.contains(&code)) {
            return Err(failed(&format!("cannot be run: {}", end.detail)));
        }
        let end = EngineEnd { detail: self.without_folder(&end.detail), ..end };
        Ok(EndedProgram { end, output })
    }

    /// Runs the program, which must succeed, and returns its output.
    pub(crate) fn answer(&self, arguments: &[&str]) -> Answer<String> {
        let EndedProgram { end, output } = self.run(arguments);
        match end.process {
            ProcessEnd::Exit(0) => Ok(output),
            ProcessEnd::Exit(1) => Err(reported(&end)),
            _ => Err(EngineError::Ended(Box::new(end))),
        }
    }

    /// Removes the path of the folder from a message, because each process has another one.
    fn without_folder(&self, text: &str) -> String {
        text.replace(&*self.folder.join("").to_string_lossy(), "")
    }
}

/// Returns the error that a program has reported.
pub(super) fn reported(end: &EngineEnd) -> EngineError {
    match end.detail.is_empty() {
        true => EngineError::untyped(end.process.name()),
        false => EngineError::untyped(end.detail.clone()),
    }
}
