//! Failures of the harness. A malformed image is a [`MapError`], and a bug in the code under test is a [`Violation`]:
//! each of the three has its own type.
//!
//! [`MapError`]: crate::formats::error::MapError
//! [`Violation`]: crate::harness::oracles::Violation

use std::path::PathBuf;

use crate::disk::error::FileError;

/// The harness could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file exists already, and is to be kept.
    #[error("{path}: the file exists already", path = path.display())]
    Exists {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file cannot be written where it should be.
    #[error("{path}: {what}", path = path.display())]
    Output {
        /// The path of the file.
        path: PathBuf,
        /// The reason, and what was expected.
        what: String,
    },
    /// A saved file of a campaign has an unexpected content.
    #[error("{path}: {what}", path = path.display())]
    State {
        /// The path of the file.
        path: PathBuf,
        /// The fault in the content.
        what: String,
    },
    /// A program's text could not be assembled.
    #[error("line {line}: {what}")]
    Text {
        /// The line number, counted from 1.
        line: usize,
        /// The fault, and the input that was expected.
        what: String,
    },
}

impl Error {
    /// Returns an [`Error::File`] for `path`.
    pub fn file(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        FileError::new(path, source).into()
    }
}
