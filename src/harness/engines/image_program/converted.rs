//! The raw file that a program has written, from which the harness reads the guest's bytes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::disk::offsets::GuestOffset;
use crate::harness::engine::{Answer, EngineError};

/// A raw file. It is deleted with this value.
#[derive(Debug)]
pub(in crate::harness) struct ConvertedFile {
    path: PathBuf,
    file: File,
}

impl ConvertedFile {
    /// Opens the file at `path`, which a program has written.
    ///
    /// # Errors
    /// There is no such file.
    pub(in crate::harness) fn open(path: PathBuf) -> Answer<Self> {
        let missing = |error| EngineError::untyped(format!("no file was written: {error}"));
        let file = File::open(&path).map_err(missing)?;
        Ok(Self { path, file })
    }

    /// Returns the length in bytes.
    pub(in crate::harness) fn length_bytes(&self) -> Answer<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Fills `into` with the bytes from `guest` on.
    ///
    /// # Errors
    /// The file ends before that.
    pub(in crate::harness) fn read(&self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        Ok(self.file.read_exact_at(into, guest.get())?)
    }
}

impl Drop for ConvertedFile {
    fn drop(&mut self) {
        // The folder is a temporary one: a file that stays is deleted with it.
        let _ = fs::remove_file(&self.path);
    }
}
