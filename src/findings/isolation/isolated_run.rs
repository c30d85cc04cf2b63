//! A run in another process: its settings and its result.

use std::io;

use serde::{Deserialize, Serialize};

use crate::harness::targets::TargetKind;
use crate::processes::{Executable, ProcessEnd, ProcessLimits};

/// How inputs are run in other processes.
#[derive(Clone, Debug)]
pub struct Isolation {
    /// The executable that runs the inputs.
    pub executable: Executable,
    /// The target of the inputs.
    pub target: TargetKind,
    /// The limits of each run.
    pub limits: ProcessLimits,
}

/// The number of times that an input runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Once.
    Once,
    /// Twice. A difference between the two runs is a finding.
    Twice,
}

/// The reason why an input did not run.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// The process could not be started, or its output could not be read.
    #[error("a process for inputs: {0}")]
    Process(#[from] io::Error),
    /// The executable printed something other than the expected JSON object.
    #[error("the answer of a process for inputs: {0}")]
    Answer(#[from] serde_json::Error),
    /// The executable could not run the input, and printed this line.
    #[error("{0}")]
    Refused(String),
    /// Somebody else killed the process. The system does so when memory runs out.
    #[error("the system killed the process of the input, expected more free memory")]
    Killed,
}

/// The result of a run in another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IsolatedRun {
    /// The process finished its run.
    Finished(FinishedRun),
    /// The input ended its process, or the process exceeded the time limit.
    Ended(ProcessEnd),
}

/// The result of a run that its process finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FinishedRun {
    /// The fingerprint of the finding, if there is one.
    pub fingerprint: Option<String>,
    /// The fingerprints of known findings that the run met.
    pub known: Vec<String>,
    /// True if the oracle with the finding draws its questions from the checksum of the input.
    pub drawn: bool,
}

impl IsolatedRun {
    /// Returns the fingerprint of the finding, if there is one.
    pub fn fingerprint(&self) -> Option<String> {
        match self {
            Self::Finished(run) => run.fingerprint.clone(),
            Self::Ended(end) => Some(end.fingerprint()),
        }
    }
}
