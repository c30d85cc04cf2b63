//! The files of a chain in a temporary folder, for an engine that opens paths.

use std::collections::BTreeSet;
use std::fs;
#[cfg(feature = "cli")]
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::harness::engine::{Answer, failure};
use crate::harness::files::chain::{Chain, ChainFolder};

/// The largest number of stored bytes of a chain, all files together.
const MAX_STORED_BYTES: u64 = 256 << 20;

/// The files of one chain at a time, in a temporary folder that is deleted with this value. A clone has a folder of its
/// own.
///
/// The folder lies in `TMPDIR` if the user names one, else in memory where the system has a place for that: a busy disk
/// costs more than all else, and not every file system has room for a long disk. All files of a chain together store at
/// most 256 MiB.
#[derive(Debug, Default)]
pub struct ChainFiles(Option<(ChainFolder, TempDir)>);

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
                let dir = TempDir::with_prefix_in(prefix(std::process::id()), place())
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

    /// Deletes the folders of a process that has ended: one that was killed has left them.
    pub(crate) fn delete_those_of(process: u32) {
        let prefix = prefix(process);
        let places = BTreeSet::from([place(), std::env::temp_dir()]);
        for entry in places.into_iter().flat_map(fs::read_dir).flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                // A folder that cannot be deleted stays. It does no harm in a place for temporary files.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Returns the folder in which temporary folders are created.
fn place() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match std::env::var_os("TMPDIR").is_none() && memory.is_dir() {
        true => memory.to_path_buf(),
        false => std::env::temp_dir(),
    }
}

/// Returns the beginning of the names of a process's temporary folders.
fn prefix(process: u32) -> String {
    format!("qcowfuzz-{process}-")
}

/// Returns a new temporary folder that does not lie in memory.
#[cfg(feature = "cli")]
pub(crate) fn folder_on_disk() -> io::Result<TempDir> {
    TempDir::with_prefix(prefix(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_folders_of_the_process_are_deleted() {
        // No process has such an id: those of Linux have at most 22 bits.
        let (killed, other) = (u32::MAX, u32::MAX - 1);
        let left = TempDir::with_prefix_in(prefix(killed), place()).unwrap();
        fs::write(left.path().join("image"), "x").unwrap();
        let kept = TempDir::with_prefix_in(prefix(other), place()).unwrap();
        ChainFiles::delete_those_of(killed);
        assert!(!left.path().exists());
        assert!(kept.path().exists());
    }
}
