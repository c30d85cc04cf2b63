//! The reasons why an engine did not answer, and the failure of an engine that cannot work at all: no input is to blame
//! for it, so it is no finding.

use std::error::Error;
use std::panic::resume_unwind;
#[cfg(feature = "fuzzer")]
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::disk::error::StorageError;
use crate::disk::offsets::GuestOffset;
use crate::processes::ProcessEnd;

/// The end of a process that should have answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEnd {
    /// How the process ended.
    pub process: ProcessEnd,
    /// The cause that the process reported on standard error, if it did.
    pub cause: Option<String>,
    /// Lines for people: those of standard error from the cause on, or the last ones.
    pub detail: String,
}

/// The reason why an engine did not answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine has no answer to questions of this kind, for any image.
    #[error("no answer")]
    NoAnswer,
    /// The process that should have answered has ended because of the image. That is a violation, even if no oracle
    /// finds one.
    #[error("the process has ended: {}", .0.process.name())]
    Ended(Box<EngineEnd>),
    /// The harness could not give the image to the engine: its files are too large for a folder, say. If an opening
    /// fails in this way, the image is not judged.
    #[error(transparent)]
    NotGiven(Box<dyn Error + Send + Sync>),
    /// The image has a feature that the engine does not support.
    #[error(transparent)]
    Unsupported(Box<dyn Error + Send + Sync>),
    /// A read of the chain's files failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The same, in the engine's own words.
    #[error(transparent)]
    Io(Box<dyn Error + Send + Sync>),
    /// The bytes lie past the end of the disk.
    #[error("guest offset {guest} lies past the end of the disk at {virtual_size}")]
    PastEnd {
        /// The requested guest offset.
        guest: GuestOffset,
        /// The disk's size in bytes.
        virtual_size: u64,
    },
    /// The image is malformed, or the question cannot be answered.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
    /// An error whose kind the engine does not report.
    #[error(transparent)]
    Untyped(Box<dyn Error + Send + Sync>),
}

/// The kind of an [`EngineError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The engine has no answer to questions of this kind.
    NoAnswer,
    /// The engine does not support a feature.
    Unsupported,
    /// A read of the chain's files failed.
    Io,
    /// The image is malformed, or the question cannot be answered.
    Failed,
    /// The engine does not report the kind.
    Untyped,
}

impl EngineError {
    /// Creates an error that says which feature the engine does not support.
    pub fn unsupported(feature: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unsupported(feature.into())
    }

    /// Creates an error whose kind the engine does not report.
    pub fn untyped(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Untyped(error.into())
    }

    /// Creates the answer to a question about a byte past the end of the disk.
    pub fn past_end(guest: GuestOffset, virtual_size: u64) -> Self {
        Self::PastEnd { guest, virtual_size }
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoAnswer | Self::NotGiven(_) => ErrorKind::NoAnswer,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Storage(_) | Self::Io(_) => ErrorKind::Io,
            Self::PastEnd { .. } | Self::Failed(_) => ErrorKind::Failed,
            Self::Untyped(_) | Self::Ended(_) => ErrorKind::Untyped,
        }
    }
}

/// Takes the kind from that of the error. Only `Unsupported` says more than that something failed.
impl From<std::io::Error> for EngineError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::Unsupported => Self::Unsupported(error.into()),
            _ => Self::Untyped(error.into()),
        }
    }
}

/// One line for the user. It unwinds the stack, past everything that catches panics of the code under test, to
/// [`catch`]: an engine has no other way to end a run without a verdict.
pub(crate) struct EngineFailure(String);

/// Ends the run without a verdict.
pub(crate) fn fail(line: String) -> ! {
    resume_unwind(Box::new(EngineFailure(line)))
}

/// Passes a failure on, if `payload` is one: it is not a panic of the code under test.
pub(crate) fn pass_on(payload: &(dyn std::any::Any + Send)) {
    if let Some(EngineFailure(line)) = payload.downcast_ref() {
        resume_unwind(Box::new(EngineFailure(line.clone())));
    }
}

/// Returns a line for the user about a panic that has ended a run: that of the engine's failure, or the message of a
/// panic of the harness.
#[cfg(feature = "fuzzer")]
pub fn line_of(payload: &(dyn std::any::Any + Send)) -> String {
    let message = payload.downcast_ref::<&str>().copied().map(str::to_string);
    match payload.downcast_ref() {
        Some(EngineFailure(line)) => line.clone(),
        None => {
            let message = message.or_else(|| payload.downcast_ref::<String>().cloned());
            // Panics have a message, unless code passes on another payload.
            format!("a panic of the harness: {}", message.unwrap_or_default())
        }
    }
}

/// Runs `work`.
///
/// # Errors
/// Returns the line of the engine's failure.
#[cfg(feature = "fuzzer")]
pub(crate) fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        match payload.downcast::<EngineFailure>() {
            Ok(failure) => failure.0,
            Err(panic) => resume_unwind(panic),
        }
    })
}
