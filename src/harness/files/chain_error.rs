//! The failure to write the files of a chain, as an engine's error.

use crate::harness::engine::EngineError;
use crate::harness::files::chain::ChainFolderError;

/// Only a failed read belongs to the image: an engine that reads the files itself has it, too.
impl From<ChainFolderError> for EngineError {
    fn from(error: ChainFolderError) -> Self {
        match error {
            ChainFolderError::Read(error) => Self::Storage(error),
            error => Self::NotGiven(error.into()),
        }
    }
}
