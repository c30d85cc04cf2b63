//! Candidates in processes of their own, where the bug ends the process that meets it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use qcowfuzz::corpus;

use crate::cli::Failure;
use crate::cli::once::once;
use crate::cli::runner::Target;

/// Runs candidates as the input was run, and compares how that ends.
pub struct Isolated {
    target: Target,
    timeout: Duration,
    /// Candidates are written here.
    scratch: TempDir,
    /// How it ended with the input.
    pub fingerprint: String,
    /// Why a candidate could not be run.
    pub failure: Option<Failure>,
}

impl Isolated {
    /// Runs the input at `path`; `None` where it comes to its own end.
    pub fn new(path: &Path, target: Target, timeout: Duration) -> Result<Option<Self>, Failure> {
        let ran = once(path, target, timeout)?;
        let Some(fingerprint) = ran.fingerprint.filter(|_| ran.ended) else { return Ok(None) };
        let scratch = TempDir::with_prefix("qcowfuzz-")
            .map_err(|error| Failure::Told(format!("a temporary folder: {error}")))?;
        Ok(Some(Self { target, timeout, scratch, fingerprint, failure: None }))
    }

    /// Whether a candidate ends as the input did. After a failure, never.
    pub fn keeps(&mut self, candidate: &[u8]) -> bool {
        if self.failure.is_some() {
            return false;
        }
        match self.fingerprint_of(candidate) {
            Ok(fingerprint) => fingerprint.as_ref() == Some(&self.fingerprint),
            Err(failure) => {
                self.failure = Some(failure);
                false
            }
        }
    }

    fn fingerprint_of(&self, candidate: &[u8]) -> Result<Option<String>, Failure> {
        let path: PathBuf = self.scratch.path().join("candidate");
        corpus::replace(&path, self.scratch.path(), candidate)?;
        Ok(once(&path, self.target, self.timeout)?.fingerprint)
    }
}
