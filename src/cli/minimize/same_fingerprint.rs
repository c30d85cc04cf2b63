//! Candidates that have the fingerprint of the input.

use std::path::Path;

use qcowfuzz::harness::Checks;
use qcowfuzz::images::files::FileNames;

use crate::cli::examine::Examiner;
use crate::cli::exit::Failure;
use crate::cli::files;
use qcowfuzz::findings::runner::Runner;
use qcowfuzz::harness::targets::TargetKind;

use super::judge::Judge;

/// Oracles that ask where the checksum of an input says: what is found depends on more than what it does.
const DRAWN: [&str; 4] = ["window: ", "io: ", "snapshots: ", "hostile: "];
/// How many other checksums are tried for each candidate then.
const REROLLS: u16 = 12;

/// Runs candidates, and compares fingerprints.
pub struct SameFingerprint {
    fingerprint: String,
    runner: Runner<()>,
    /// Runs them twice, where the bug is that this is not the same.
    twice: Option<Examiner>,
}

impl SameFingerprint {
    /// For the fingerprint of the input at `path`.
    pub fn new(path: &Path, target: TargetKind, input: &[u8]) -> Result<Self, Failure> {
        let names = FileNames::default();
        let mut examiner = Examiner::new(target, Checks::AtCheckpoints, names.clone());
        let account = examiner.judge(path, input);
        let Some(fingerprint) = account.fingerprint else {
            return Err(files::nothing_found(path, target));
        };
        let twice = (!account.steady).then_some(examiner);
        Ok(Self { fingerprint, runner: Runner::new(target, names, &()), twice })
    }
}

impl Judge for SameFingerprint {
    fn keeps(&mut self, candidate: &[u8]) -> bool {
        let found = match &mut self.twice {
            Some(examiner) => examiner.judge(Path::new("candidate"), candidate).fingerprint,
            None => {
                let found = self.runner.run(candidate, Checks::AtCheckpoints).finding();
                found.map(|found| found.fingerprint)
            }
        };
        found.as_ref() == Some(&self.fingerprint)
    }

    fn shown(&self) -> String {
        self.fingerprint.clone()
    }

    fn rerolls(&self) -> u16 {
        let drawn = DRAWN.iter().any(|oracle| self.fingerprint.starts_with(oracle));
        if drawn { REROLLS } else { 0 }
    }
}
