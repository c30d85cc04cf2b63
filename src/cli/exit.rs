//! How a command ends: what it found, or why it could not do its work.

use std::path::Path;

use qcowfuzz::disk::error::Error;
use qcowfuzz::findings::isolation::IsolationError;

/// How a command that did its work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing was found.
    Nothing,
    /// A violation was found.
    Violation,
    /// The exit code of `check`.
    Check(u8),
}

impl Exit {
    /// After so many violations.
    pub fn after(violations: usize) -> Self {
        if violations == 0 { Self::Nothing } else { Self::Violation }
    }
}

/// How a command that could not do its work ends.
#[derive(Debug)]
pub enum Failure {
    /// What is wrong, where, and what was expected: one line.
    Told(String),
    /// The same for `check`, which has a code of its own for it.
    CheckTold(String),
    /// Whoever reads the output has gone, and wants to hear no more.
    Pipe,
}

impl Failure {
    /// Something is wrong with the file at `path`.
    pub fn at(path: &Path, what: impl std::fmt::Display) -> Self {
        Self::Told(format!("{}: {what}", path.display()))
    }

    /// Standard output could not be written.
    pub fn output(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Told(format!("standard output: {error}")),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Told(line) | Self::CheckTold(line) => f.write_str(line),
            Self::Pipe => f.write_str("standard output was closed"),
        }
    }
}

/// Why a file is not written.
pub const THERE_ALREADY: &str = "the file is there already, expected a new one or --force";

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Exists { path } => Self::at(&path, THERE_ALREADY),
            error => Self::Told(error.to_string()),
        }
    }
}

impl From<IsolationError> for Failure {
    fn from(error: IsolationError) -> Self {
        Self::Told(error.to_string())
    }
}

pub type Outcome = Result<Exit, Failure>;
