//! A judge of inputs that end their process: a candidate must end its process in the same way.

use crate::findings::isolation::{IsolatedRun, Isolation, ProcessEnd};

use super::judge::{CandidateJudge, JudgeError};

/// Runs candidates in processes of their own, and compares the ends of the processes.
#[derive(Debug)]
pub struct SameEnd {
    end: ProcessEnd,
    isolation: Isolation,
}

impl SameEnd {
    /// Creates a judge for an input that ended its process with `end`.
    pub fn new(end: ProcessEnd, isolation: Isolation) -> Self {
        Self { end, isolation }
    }
}

impl CandidateJudge for SameEnd {
    fn shows(&mut self, candidate: &[u8]) -> Result<bool, JudgeError> {
        Ok(self.isolation.isolated_run(candidate)? == IsolatedRun::Ended(self.end))
    }

    fn found(&self) -> String {
        self.end.fingerprint()
    }

    fn runs_here(&self) -> bool {
        false
    }
}
