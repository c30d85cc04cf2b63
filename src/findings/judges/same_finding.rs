//! A judge of findings: a candidate must show the finding of the input.

use crate::findings::isolation::{FinishedRun, IsolatedRun, IsolatedRuns, Isolation, Repeat};
use crate::findings::runner::UNSTEADY;

use super::judge::{CandidateJudge, JudgeError};

/// The number of other checksums that are tried for each candidate if the oracle draws its questions from the checksum.
const REROLLS: u16 = 12;

/// Runs candidates in another process, and compares their findings.
#[derive(Debug)]
pub struct SameFinding {
    shown: String,
    drawn: bool,
    ends: bool,
    runs: IsolatedRuns,
}

impl SameFinding {
    /// Creates a judge for the finding of `input`, or for its first known finding if it has no other.
    ///
    /// # Errors
    /// The input shows no bug, or could not be run.
    pub fn new(input: &[u8], isolation: Isolation) -> Result<Self, JudgeError> {
        let ran = isolation.isolated_run(input)?;
        let shown = shown(&ran).ok_or(JudgeError::NothingFound)?;
        let drawn = matches!(ran, IsolatedRun::Finished(FinishedRun { drawn: true, .. }));
        let repeat = if shown == UNSTEADY { Repeat::Twice } else { Repeat::Once };
        let ends = matches!(ran, IsolatedRun::Ended(_));
        Ok(Self { shown, drawn, ends, runs: IsolatedRuns::new(isolation, repeat) })
    }
}

/// Returns the fingerprint of the finding of a run, or else of its first known finding.
fn shown(ran: &IsolatedRun) -> Option<String> {
    match ran {
        IsolatedRun::Finished(run) => run.fingerprint.as_ref().or(run.known.first()).cloned(),
        IsolatedRun::Ended(end) => Some(end.fingerprint()),
    }
}

impl CandidateJudge for SameFinding {
    fn shows(&mut self, candidate: &[u8]) -> Result<bool, JudgeError> {
        Ok(shown(&self.runs.run(candidate)?).is_some_and(|shown| shown == self.shown))
    }

    fn found(&self) -> String {
        self.shown.clone()
    }

    fn rerolls(&self) -> u16 {
        if self.drawn { REROLLS } else { 0 }
    }

    fn runs_here(&self) -> bool {
        // Perhaps the build of the input's image ends the process.
        !self.ends
    }
}
