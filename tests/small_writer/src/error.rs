//! Errors of the small writer.

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::walkers::MapError;

/// The reason why a writer has not carried out a request.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file cannot be read or written.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The image is malformed, or has a feature that no walker supports.
    #[error(transparent)]
    Image(#[from] MapError),
    /// The image has a feature with which the writer does not write.
    #[error("the writer does not support {0}")]
    Unsupported(&'static str),
    /// A structure of the image does not suffice for its disk.
    #[error("{0}")]
    Malformed(&'static str),
    /// The image would become longer than a file can be.
    #[error("the file would be too long")]
    TooLong,
}
