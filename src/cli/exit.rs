//! Results of commands: the exit of a command that did its work, and the failure of one that could not.

use std::path::Path;

use crate::base::error::Error;
use crate::disk::error::FileError;
use crate::findings::isolation::IsolationError;

/// The result of a command that did its work.
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
    /// Returns the exit for a number of violations.
    pub fn after(violations: usize) -> Self {
        if violations == 0 { Self::Nothing } else { Self::Violation }
    }
}

/// The reason why a command could not do its work.
#[derive(Debug)]
pub enum CommandError {
    /// One line for the user: the place, the fault, and what was expected.
    Message(String),
    /// The same line for a command that has the exit codes of qemu-img.
    AsInQemuImg(String),
    /// The reader of standard output has closed it.
    Pipe,
}

impl CommandError {
    /// Returns the failure of a command because of the file at `path`.
    pub fn at(path: &Path, what: impl std::fmt::Display) -> Self {
        Self::Message(format!("{}: {what}", path.display()))
    }

    /// Returns the same failure, with the exit code of qemu-img.
    pub fn with_exit_code_of_qemu_img(self) -> Self {
        match self {
            Self::Message(line) => Self::AsInQemuImg(line),
            failure => failure,
        }
    }

    /// Returns the failure to write to standard output.
    pub fn output(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Message(format!("standard output: {error}")),
        }
    }
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Message(line) | Self::AsInQemuImg(line) => f.write_str(line),
            Self::Pipe => f.write_str("standard output was closed"),
        }
    }
}

/// The message about an output file that exists.
pub const OUTPUT_EXISTS: &str = "the file exists, expected a new one or --force";

impl From<Error> for CommandError {
    fn from(error: Error) -> Self {
        match error {
            Error::Exists { path } => Self::at(&path, OUTPUT_EXISTS),
            error => Self::Message(error.to_string()),
        }
    }
}

impl From<FileError> for CommandError {
    fn from(error: FileError) -> Self {
        Self::Message(error.to_string())
    }
}

impl From<IsolationError> for CommandError {
    fn from(error: IsolationError) -> Self {
        Self::Message(error.to_string())
    }
}

pub type ExitResult = Result<Exit, CommandError>;
