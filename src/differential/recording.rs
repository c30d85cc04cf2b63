//! Recordings: QEMU's answers and the images, in one file. A recording is compared later, where QEMU is missing or has
//! another version.
//!
//! A recording is a tar archive. `recording.json` comes first. Each iteration has a folder with the files of its disk
//! after the last step, with the bytes that QEMU read (`qemu.raw`), and at last `answers.json`.

mod check;
mod write;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::perform::IterationError;
use super::process::{Reply, ReplyEnd};
use super::recipe::{DiskQuestion, Recipe};
use crate::disk::error::Error;

pub use check::check;
pub use write::write;

/// The version of the layout of recordings.
const RECORDING_VERSION: u32 = 1;
/// The first file of a recording.
const HEAD_FILE: &str = "recording.json";
/// The last file of an iteration.
const ANSWERS_FILE: &str = "answers.json";
/// The bytes that QEMU read.
const READ_FILE: &str = "qemu.raw";
/// The folder of the images.
const DISK_FOLDER: &str = "disk";

/// The facts about a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordingHead {
    /// The version of the layout.
    version: u32,
    /// The version of qemu-img.
    qemu_version: String,
    /// The seed of the campaign.
    rng_seed: u64,
}

/// An iteration of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedIteration {
    iteration: u64,
    /// The recipe, whose commands were carried out.
    recipe: Recipe,
    /// QEMU's answers to the questions of the last step.
    answers: Vec<RecordedAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedAnswer {
    question: DiskQuestion,
    end: ReplyEnd,
    #[serde(with = "hex")]
    stdout: Vec<u8>,
    #[serde(with = "hex")]
    stderr: Vec<u8>,
}

impl RecordedAnswer {
    fn reply(&self) -> Reply {
        Reply { end: self.end, stdout: self.stdout.clone(), stderr: self.stderr.clone() }
    }
}

/// The reason why a recording could not be written or compared.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] Error),
    /// An iteration could not be carried out.
    #[error("iteration {number}: {error}")]
    Iteration {
        /// The number of the iteration.
        number: u64,
        /// The reason.
        error: IterationError,
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
    fn iteration(number: u64) -> impl Fn(io::Error) -> Self {
        move |error| Self::Iteration { number, error: IterationError::Process(error) }
    }
}
