//! The files of a chain in a temporary folder, for an engine that opens paths.

use std::path::PathBuf;

use crate::harness::engine::{Answer, failure};
use crate::harness::files::chain::{Chain, ChainFolder};
use crate::processes::TemporaryFolder;

/// The largest number of stored bytes of a chain, all files together.
const MAX_STORED_BYTES: u64 = 256 << 20;

/// The files of one chain at a time, in a temporary folder that is deleted with this value, and at the end of the
/// process, however it ends. A clone has a folder of its own.
///
/// The folder lies in `TMPDIR` if the user names one, else in memory where the system has a place for that: a busy disk
/// costs more than all else, and not every file system has room for a long disk. All files of a chain together store at
/// most 256 MiB.
#[derive(Debug, Default)]
pub struct ChainFiles(Option<(ChainFolder, TemporaryFolder)>);

impl Clone for ChainFiles {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl ChainFiles {
    /// Writes the files of `chain` over those of the chain before. Returns the path of the image to open.
    ///
    /// # Errors
    /// A read of the chain fails, as the oracle `io` wants it to, or a file cannot be written.
    pub fn write(&mut self, chain: &Chain) -> Answer<PathBuf> {
        let (folder, _) = match &mut self.0 {
            Some(files) => files,
            none => {
                // No image is to blame.
                let dir = TemporaryFolder::in_memory()
                    .unwrap_or_else(|error| failure::fail(format!("a temporary folder: {error}")));
                none.insert((ChainFolder::new(dir.path(), MAX_STORED_BYTES), dir))
            }
        };
        Ok(chain.write_to(folder)?)
    }

    /// Notes that another process may have changed the files: all of them are written again.
    pub(crate) fn forget(&mut self) {
        if let Some((folder, _)) = &mut self.0 {
            folder.forget();
        }
    }

    /// Returns the folder, if a chain was written.
    pub(crate) fn folder(&self) -> Option<&ChainFolder> {
        self.0.as_ref().map(|(folder, _)| folder)
    }
}
