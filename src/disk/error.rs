//! What the harness itself could not do. A malformed image is a [`MapError`], a bug that was found
//! is a [`Violation`]; the three are never mixed.
//!
//! [`MapError`]: crate::formats::qcow2::error::MapError
//! [`Violation`]: crate::harness::oracles::Violation

use std::path::PathBuf;

use super::offsets::HostOffset;

/// An image's bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading at host offset {offset}: {kind}")]
pub struct StorageError {
    /// Where the read began.
    pub offset: HostOffset,
    /// What the system said.
    pub kind: std::io::ErrorKind,
}

/// The harness could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// What a campaign has saved is not what it should be.
    #[error("{path}: {what}", path = path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A program's text could not be assembled.
    #[error("line {line}: {what}")]
    Text {
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what was expected.
        what: String,
    },
}

impl Error {
    /// An [`Error::File`] for `path`.
    pub fn file(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::File { path: path.into(), source }
    }
}
