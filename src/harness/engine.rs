//! The engine interface: to fuzz your own implementation, implement these two traits. The oracles call every
//! implementation through them, our own walker included. `examples/engine.rs` implements them for a small reader.

use std::error::Error;

use crate::disk::error::StorageError;
use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;

use super::chain::Chain;
use super::claims::{Claims, EnginePolicy};
use super::status::GuestRun;

/// An implementation that opens disk images.
pub trait Engine {
    /// An image that the engine has opened.
    type Disk<'s>: OpenDisk
    where
        Self: 's;

    /// Returns the name of the implementation, for reports.
    fn name(&self) -> &str;

    /// Returns the features that the engine claims to support: by default, all of them. A violation on a valid image
    /// with these features is a bug of the engine.
    fn claims(&self) -> Claims {
        Claims::ALL
    }

    /// Returns the answers of the engine that are excused: by default, none.
    fn policy(&self) -> EnginePolicy {
        EnginePolicy::default()
    }

    /// Begins a run: the next images belong to another input. An engine that caches anything from image to image clears
    /// the cache here, so that the coverage of a run depends on its input alone, as its verdict does.
    fn begin_run(&mut self) {}

    /// Opens the image at the top of `chain`.
    ///
    /// # Errors
    /// The image is refused, or cannot be read.
    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<Self::Disk<'s>, EngineError>;

    /// Opens the snapshot at `index` of the first image's snapshot table, counted from 0. The disk has the size that it
    /// had when the snapshot was taken. Ranges that the snapshot does not map come from the layers below.
    ///
    /// # Errors
    /// As for [`Engine::open`]; or the snapshot does not exist.
    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<Self::Disk<'s>, EngineError> {
        let _ = (chain, index);
        Err(EngineError::NotAsked)
    }
}

/// An image that an engine has opened. An engine implements [`OpenDisk::read`] or [`OpenDisk::status`] at least: the
/// harness judges the answers that it gets, and reports the oracles that are idle for want of answers.
pub trait OpenDisk {
    /// Returns the size of the disk that a guest sees.
    fn virtual_size_bytes(&self) -> u64;

    /// Fills `into` with the guest's bytes from `guest` on. The harness has filled `into` with other bytes.
    ///
    /// # Errors
    /// The image is malformed there, or cannot be read; or the range reaches past the end of the disk.
    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        let _ = (guest, into);
        Err(EngineError::NotAsked)
    }

    /// Returns the status of the bytes from `guest` on.
    ///
    /// # Errors
    /// As for [`OpenDisk::read`].
    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        let _ = guest;
        Err(EngineError::NotAsked)
    }

    /// Calls `visitor` with the extents of `window`, in order, until it breaks: all that `qemu-img map` reports. The
    /// extents are maximal and clipped to the window and the disk.
    ///
    /// # Errors
    /// The image is malformed in the window, or cannot be read. The extents that were emitted before stay valid.
    fn map(&mut self, window: Window, visitor: &mut impl Visitor) -> Result<(), EngineError> {
        let _ = (window, visitor);
        Err(EngineError::NotAsked)
    }
}

/// The reason why an engine did not answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine has no answer to questions of this kind, for any image.
    #[error("not asked")]
    NotAsked,
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
    NotAsked,
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

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAsked => ErrorKind::NotAsked,
            Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Storage(_) | Self::Io(_) => ErrorKind::Io,
            Self::PastEnd { .. } | Self::Failed(_) => ErrorKind::Failed,
            Self::Untyped(_) => ErrorKind::Untyped,
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
