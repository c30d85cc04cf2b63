//! The settings of a campaign.

use std::time::{Duration, Instant};

use crate::findings::isolation::{IsolatedRun, IsolatedRuns, Isolation, IsolationError, Repeat};
use crate::fuzzing::corpus;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, KnownFindings};
use crate::processes::{Executable, ProcessLimits};

use super::error::CampaignError;
use super::places::Places;

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct CampaignPlan {
    /// The executable that workers run.
    pub executable: Executable,
    /// The name of the code that is run: see [`build_name`].
    pub build: String,
    /// The target.
    pub target: TargetKind,
    /// The known findings of the implementation. The executable knows them too.
    pub known: KnownFindings,
    /// The folders and files.
    pub places: Places,
    /// The number of jobs, which run at the same time.
    pub jobs: usize,
    /// The seed of the first job. The next ones count up from it.
    pub rng_seed: u64,
    /// The highest number of operations of a program.
    pub max_operations: usize,
    /// The number of runs of all jobs together.
    pub runs: Option<u64>,
    /// The time at which the campaign ends.
    pub end: Option<Instant>,
    /// The campaign runs generated programs, and no mutations of the corpus.
    pub generated: bool,
    /// The times at which the images of a program are verified.
    pub checks: Checks,
    /// The campaign ends with the first finding.
    pub until_found: bool,
    /// The limits of each worker.
    pub limits: ProcessLimits,
}

/// Returns a name for the code that an executable runs: the checksum of its bytes and of `settings`. These are a text
/// that changes with the implementation behind a command and with the known findings. If the name changes, saved inputs
/// may have other coverage.
///
/// # Errors
/// The executable cannot be read.
pub fn build_name(executable: &Executable, settings: &str) -> Result<String, CampaignError> {
    let mut bytes = std::fs::read(executable.path()).map_err(CampaignError::Executable)?;
    bytes.extend(settings.as_bytes());
    Ok(corpus::name(&bytes))
}

impl CampaignPlan {
    /// Runs `input` in a process that runs nothing else.
    pub(super) fn isolated_run(&self, input: &[u8]) -> Result<IsolatedRun, IsolationError> {
        let (executable, target) = (self.executable.clone(), self.target);
        let isolation = Isolation { executable, target, limits: self.limits };
        IsolatedRuns::new(isolation, Repeat::Once).run(input)
    }

    /// Returns the time that is left, if the campaign has an end.
    pub(super) fn left(&self) -> Option<Duration> {
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }
}
