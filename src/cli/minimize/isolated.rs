//! Candidates in processes of their own, where the bug ends the process that meets it.

use std::time::Duration;

use crate::cli::exit::Failure;
use crate::cli::once::Scratch;
use qcowfuzz::harness::targets::TargetKind;

use super::judge::Judge;

/// Runs candidates as the input was run, and compares how that ends.
pub struct Isolated {
    target: TargetKind,
    timeout: Duration,
    scratch: Scratch,
    /// How it ended with the input.
    fingerprint: String,
    /// Why a candidate could not be run.
    failure: Option<Failure>,
}

impl Isolated {
    /// Runs the input; `None` where it comes to its own end.
    pub fn new(
        input: &[u8],
        target: TargetKind,
        timeout: Duration,
    ) -> Result<Option<Self>, Failure> {
        let scratch = Scratch::new()?;
        let ran = scratch.run(input, target, timeout)?;
        let Some(fingerprint) = ran.fingerprint.filter(|_| ran.ended) else { return Ok(None) };
        Ok(Some(Self { target, timeout, scratch, fingerprint, failure: None }))
    }
}

impl Judge for Isolated {
    fn keeps(&mut self, candidate: &[u8]) -> bool {
        if self.failure.is_some() {
            return false;
        }
        match self.scratch.run(candidate, self.target, self.timeout) {
            Ok(ran) => ran.fingerprint.as_ref() == Some(&self.fingerprint),
            Err(failure) => {
                self.failure = Some(failure);
                false
            }
        }
    }
    fn shown(&self) -> String {
        self.fingerprint.clone()
    }

    fn runs_here(&self) -> bool {
        false
    }

    fn failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}
