//! The reasons why a chain cannot be opened.

use std::path::PathBuf;

use crate::disk::error::FileError;
use crate::disk::limits::MAX_FILE_LAYERS;
use crate::formats::error::MapError;

/// The reason why a chain could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The top image could not be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file that an image names could not be opened.
    #[error("{path}: the {what} that it names: {error}", path = path.display())]
    Named {
        /// The image that contains the name.
        path: PathBuf,
        /// The purpose of the file.
        what: &'static str,
        /// The reason why it could not be opened.
        error: FileError,
    },
    /// An image is malformed, or of a format that is not supported.
    #[error("{path}: {error}", path = path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// The fault of the image.
        error: MapError,
    },
    /// A name contains more than the name of a file.
    #[error(
        "{path}: the {what} '{name}' names a protocol, expected the name of a file",
        path = path.display()
    )]
    Protocol {
        /// The image that contains the name.
        path: PathBuf,
        /// The purpose of the file.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// An image lies below itself.
    #[error("{path}: the backing file '{name}' is a file above it in the chain", path = path.display())]
    Loop {
        /// The image that contains the name.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The chain has too many images.
    #[error("{path}: more than {MAX_FILE_LAYERS} images in the chain", path = path.display())]
    TooDeep {
        /// The last image that was opened.
        path: PathBuf,
    },
}
