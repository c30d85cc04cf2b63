//! The files of a recording.

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::base::error::Error;
use crate::differential::campaign::NoIteration;
use crate::processes::{ProcessEnd, Reply};
use crate::recipes::RecipeError;
use crate::recipes::recipe::{DiskQuestion, Recipe};

/// The version of the layout of recordings.
pub(super) const RECORDING_VERSION: u32 = 2;
/// The first file of a recording.
pub(super) const HEAD_FILE: &str = "recording.json";
/// The last file of a recording: the number of its iterations.
pub(super) const END_FILE: &str = "end.json";
/// The last file of an iteration.
pub(super) const ANSWERS_FILE: &str = "answers.json";
/// The bytes that QEMU read.
pub(super) const READ_FILE: &str = "qemu.raw";

/// The facts about a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordingHead {
    /// The version of the layout.
    pub(super) version: u32,
    /// The version of qemu-img.
    pub(super) qemu_version: String,
    /// The seed of the campaign.
    pub(super) rng_seed: u64,
}

/// An iteration of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedIteration {
    pub(super) iteration: u64,
    /// The recipe, whose commands were carried out.
    pub(super) recipe: Recipe,
    /// QEMU's answers to the questions of the last step.
    pub(super) answers: Vec<RecordedAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedAnswer {
    pub(super) question: DiskQuestion,
    pub(super) end: ProcessEnd,
    #[serde(with = "hex")]
    pub(super) stdout: Vec<u8>,
    #[serde(with = "hex")]
    pub(super) stderr: Vec<u8>,
}

impl RecordedAnswer {
    pub(super) fn reply(&self) -> Reply {
        Reply { end: self.end, stdout: self.stdout.clone(), stderr: self.stderr.clone() }
    }
}

/// The reason why a recording could not be written or compared.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] Error),
    /// No iteration is as the user wants.
    #[error(transparent)]
    NoIteration(#[from] NoIteration),
    /// An iteration could not be carried out.
    #[error("iteration {number}: {error}")]
    Iteration {
        /// The number of the iteration.
        number: u64,
        /// The reason.
        error: RecipeError,
    },
    /// A process could not be started, or a file could not be read or written, while an iteration was carried out.
    #[error("iteration {number}: {what}")]
    Failed {
        /// The number of the iteration.
        number: u64,
        /// The reason.
        what: String,
    },
    /// The recording could not be read.
    #[error("{}: {what}, expected a file that --record wrote", .path.display())]
    Malformed {
        /// The recording.
        path: PathBuf,
        /// The fault.
        what: String,
    },
}

impl RecordingError {
    pub(super) fn iteration(number: u64) -> impl Fn(io::Error) -> Self {
        move |error| Self::Iteration { number, error: RecipeError::Process(error) }
    }
}
