//! A judge of fingerprints: a candidate must have the fingerprint of the input.

use crate::findings::runner::{Finding, Runner, finding_of_two};
use crate::harness::Checks;
use crate::harness::implementation::Implementation;
use crate::harness::targets::TargetKind;
use crate::images::files::FileNames;

use super::judge::{CandidateJudge, JudgeError};

/// The number of other checksums that are tried for each candidate if the oracle draws its questions from the checksum.
const REROLLS: u16 = 12;

/// Runs candidates, and compares fingerprints.
pub struct SameFingerprint<I> {
    fingerprint: String,
    drawn: bool,
    runner: Runner<(), I>,
    /// Runs candidates again if the bug is a difference between two runs.
    again: Option<Runner<(), I>>,
}

impl<I: Implementation> SameFingerprint<I> {
    /// Creates a judge for the fingerprint of `input`, with `implementation` under test.
    ///
    /// # Errors
    /// The input shows no bug.
    pub fn new(implementation: &I, input: &[u8], target: TargetKind) -> Result<Self, JudgeError> {
        let [mut runner, mut again] =
            [(), ()].map(|()| Runner::new(implementation, target, FileNames::default(), &()));
        let [first, second] =
            [&mut runner, &mut again].map(|runner| runner.run(input, Checks::AtCheckpoints));
        let Some(Finding { fingerprint, .. }) = finding_of_two(&first, &second) else {
            return Err(JudgeError::NothingFound);
        };
        let is_steady = first == second;
        let (drawn, again) = (is_steady && first.is_drawn(), (!is_steady).then_some(again));
        Ok(Self { fingerprint, drawn, runner, again })
    }
}

impl<I: Implementation> CandidateJudge for SameFingerprint<I> {
    fn shows(&mut self, candidate: &[u8]) -> Result<bool, JudgeError> {
        let ran = self.runner.run(candidate, Checks::AtCheckpoints);
        let finding = match &mut self.again {
            Some(again) => finding_of_two(&ran, &again.run(candidate, Checks::AtCheckpoints)),
            None => ran.finding(),
        };
        Ok(finding.is_some_and(|finding| finding.fingerprint == self.fingerprint))
    }

    fn found(&self) -> String {
        self.fingerprint.clone()
    }

    fn rerolls(&self) -> u16 {
        if self.drawn { REROLLS } else { 0 }
    }
}
