//! The interface of the judges.

use std::io;

use crate::base::error::Error;
use crate::findings::isolation::IsolationError;
use crate::processes::ProcessEnd;

/// Reports whether a candidate shows the bug.
pub trait CandidateJudge {
    /// Reports whether `candidate` shows the bug.
    ///
    /// # Errors
    /// The candidate could not be judged.
    fn shows(&mut self, candidate: &[u8]) -> Result<bool, JudgeError>;

    /// Returns the finding in the input: a fingerprint, or how a command ended.
    fn found(&self) -> String;

    /// Returns the number of other checksums that are tried for each candidate
    /// ([`MinimizeSettings::rerolls`](crate::findings::minimizer::MinimizeSettings::rerolls)).
    fn rerolls(&self) -> u16 {
        0
    }

    /// Reports whether candidates may be run in this process
    /// ([`MinimizeSettings::runs_here`](crate::findings::minimizer::MinimizeSettings::runs_here)).
    fn runs_here(&self) -> bool {
        true
    }
}

/// The reason why an input or a candidate could not be judged.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// The input shows no bug.
    #[error("no violation was found in the input, expected an input that shows one")]
    NothingFound,
    /// The process of a candidate could not be run.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// There is no temporary folder.
    #[error("a temporary folder: {0}")]
    Scratch(io::Error),
    /// A candidate could not be written.
    #[error(transparent)]
    File(#[from] Error),
    /// The command could not be run.
    #[error("{command}: {source}")]
    Command {
        /// The command.
        command: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The command gives the same result for the input and for an empty one.
    #[error(
        "{command}: ended with {end} for the input and for an empty one, expected different results"
    )]
    Undecided {
        /// The command.
        command: String,
        /// The end of both runs.
        end: ProcessEnd,
    },
    /// The build of the input panics. This is the fingerprint of the panic.
    #[error("{0}")]
    Build(String),
}
