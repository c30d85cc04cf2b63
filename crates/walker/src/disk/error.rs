//! Failures of storage.

use std::path::PathBuf;

use super::offsets::HostOffset;

/// An image's bytes could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading at host offset {offset}: {kind}")]
pub struct StorageError {
    /// The offset at which the read or the write began.
    pub offset: HostOffset,
    /// The error of the system.
    pub kind: std::io::ErrorKind,
}

impl From<StorageError> for std::io::Error {
    fn from(error: StorageError) -> Self {
        Self::new(error.kind, error)
    }
}

/// A file could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}", path = path.display())]
pub struct FileError {
    /// The path of the file.
    pub path: PathBuf,
    /// The error of the system.
    pub source: std::io::Error,
}

impl FileError {
    /// Creates the error for `path`.
    pub fn new(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self { path: path.into(), source }
    }
}
