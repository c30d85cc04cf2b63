//! A judge that runs a command and decides by its exit status.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::base::error::Error;
use crate::base::files::{Existing, replace};
use crate::findings::explain::explain;
use crate::findings::panics::{PanicNote, caught};
use crate::images::limits::Limits;
use crate::processes::{Executable, ProcessEnd};
use crate::programs::Program;
use crate::programs::export;

use super::judge::{CandidateJudge, JudgeError};

/// The file that the command gets.
#[derive(Clone, Copy, Debug)]
pub enum Passed {
    /// The candidate, a program.
    Program,
    /// The candidate, a file.
    File,
    /// The image that the candidate builds, within these limits.
    Image(Limits),
}

/// A command, and its end for the input.
#[derive(Debug)]
pub struct Predicate {
    command: ShellCommand,
    ended: ProcessEnd,
}

/// A command that a shell runs.
#[derive(Debug)]
struct ShellCommand {
    line: String,
    passed: Passed,
    /// The folder for candidates.
    scratch: TempDir,
}

/// The reason why the command was not run.
enum NotRun {
    /// The build panicked.
    Build(PanicNote),
    /// The candidate could not be written, or the command could not be started.
    Error(JudgeError),
}

impl From<JudgeError> for NotRun {
    fn from(error: JudgeError) -> Self {
        Self::Error(error)
    }
}

impl From<Error> for NotRun {
    fn from(error: Error) -> Self {
        Self::Error(error.into())
    }
}

impl From<NotRun> for JudgeError {
    fn from(not_run: NotRun) -> Self {
        match not_run {
            NotRun::Build(note) => Self::Build(note.fingerprint()),
            NotRun::Error(error) => error,
        }
    }
}

impl Predicate {
    /// Runs `command` with `input`, and with an empty program or file.
    ///
    /// # Errors
    /// The command gives the same result for both, so it decides nothing; or it could not be run.
    pub fn new(command: &str, passed: Passed, input: &[u8]) -> Result<Self, JudgeError> {
        let scratch = TempDir::with_prefix("qcowfuzz-").map_err(JudgeError::Scratch)?;
        let command = ShellCommand { line: command.to_string(), passed, scratch };
        let ended = command.run(input)?;
        let empty = match passed {
            Passed::Program | Passed::Image(_) => Program::default().encode(),
            Passed::File => Vec::new(),
        };
        let nothing = command.run(&empty)?;
        if ended == nothing {
            return Err(JudgeError::Undecided { command: command.line, end: ended });
        }
        Ok(Self { command, ended })
    }
}

impl ShellCommand {
    fn run(&self, candidate: &[u8]) -> Result<ProcessEnd, NotRun> {
        let failed = |source: io::Error| JudgeError::Command { command: self.line.clone(), source };
        // Each run has its own folder, so that a shorter chain leaves no file of a longer one.
        let folder = tempfile::tempdir_in(self.scratch.path()).map_err(failed)?;
        let path = self.written(candidate, folder.path())?;
        // Nothing bounds the command, but Ctrl-C ends it, too.
        let shell = Executable::shell(&self.line).with([path]).sharing_group();
        Ok(shell.run_silently().map_err(failed)?)
    }

    fn written(&self, candidate: &[u8], folder: &Path) -> Result<PathBuf, NotRun> {
        let limits = match self.passed {
            Passed::Program | Passed::File => {
                let path = folder.join("candidate");
                replace(&path, folder, candidate)?;
                return Ok(path);
            }
            Passed::Image(limits) => limits,
        };
        let path = folder.join("candidate.qcow2");
        let names = export::names(&path);
        let explained = caught(|| explain(candidate, limits, usize::MAX, &names));
        let explained = explained.map_err(NotRun::Build)?;
        export::write_small_filled(&path, Existing::Replace, explained.built())?;
        Ok(path)
    }
}

impl CandidateJudge for Predicate {
    fn shows(&mut self, candidate: &[u8]) -> Result<bool, JudgeError> {
        match self.command.run(candidate) {
            Ok(ended) => Ok(ended == self.ended),
            // The command gets no image, so the candidate does not show its bug.
            Err(NotRun::Build(_)) => Ok(false),
            Err(NotRun::Error(error)) => Err(error),
        }
    }

    fn found(&self) -> String {
        format!("{}: {}", self.command.line, self.ended)
    }
}
