//! The engine interface: to fuzz your own implementation, implement these two traits. The oracles call every
//! implementation through them, our own walker included. `examples/engine.rs` implements them for a small reader.

use std::error::Error;

use crate::disk::error::StorageError;
use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::processes::ProcessEnd;
pub use crate::programs::{BitmapChange, NewImage};

use super::chain::Chain;
use super::claims::{Claims, EnginePolicy};
use super::info::{CheckCounts, ImageInfo};
use super::known::KnownFindings;
use super::status::GuestRun;

/// An implementation that opens disk images.
pub trait Engine {
    /// An image that the engine has opened.
    type Disk<'s>: OpenDisk
    where
        Self: 's;

    /// Returns the name of the implementation, for reports.
    fn name(&self) -> &str;

    /// Returns the features that the engine claims to support: by default, all those of qcow2 images. A violation on a
    /// valid image with these features is a bug of the engine.
    fn claims(&self) -> Claims {
        Claims::QCOW2
    }

    /// Returns the answers of the engine that are excused: by default, none.
    fn policy(&self) -> EnginePolicy {
        EnginePolicy::default()
    }

    /// Returns the known findings of the implementation: by default, none. Every target sets them aside.
    fn known_findings(&self) -> KnownFindings {
        KnownFindings::default()
    }

    /// Reports whether the accesses of the engine to its files are feedback: the parts of the images that it reads and
    /// writes, in their order. By default, they are not. They must depend on the input alone, so the engine keeps
    /// nothing from run to run, or forgets it in [`Engine::begin_run`].
    fn accesses_are_feedback(&self) -> bool {
        false
    }

    /// Reports the same for the accesses of an engine that has the image open for writing. By default, it is as for
    /// reading.
    fn written_accesses_are_feedback(&self) -> bool {
        self.accesses_are_feedback()
    }

    /// Reports whether the order of the accesses depends on the input alone while the engine writes. An engine that
    /// writes its caches in a random order says no: then the parts of the images are feedback, and not their order.
    fn written_accesses_are_ordered(&self) -> bool {
        true
    }

    /// Begins a rehearsal, if the engine wants one: the harness judges the next image twice, and discards the first
    /// verdict. The engine answers as well as it can, and learns the questions about the image before it has to answer
    /// them. By default, there is none.
    fn begin_rehearsal(&mut self) -> bool {
        false
    }

    /// Ends a rehearsal: the next answers count.
    fn end_rehearsal(&mut self) {}

    /// Returns the end of the process that should have answered about the image that was judged last, if the image has
    /// ended it. Such an end is a violation, even if no oracle finds one.
    fn take_end(&mut self) -> Option<EngineEnd> {
        None
    }

    /// Begins a run: the next images belong to another input. An engine that caches anything from image to image clears
    /// the cache here, so that the coverage of a run depends on its input alone, as its verdict does.
    fn begin_run(&mut self) {}

    /// Opens the image at the top of `chain`.
    ///
    /// # Errors
    /// The image is refused, or cannot be read.
    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<Self::Disk<'s>, EngineError>;

    /// Returns the features of the images to which the engine can write: by default, those that it claims to read. The
    /// target `writes` has no other images. Nor has it images that a writer would repair at open.
    fn write_claims(&self) -> Claims {
        self.claims()
    }

    /// Opens the image at the top of `chain` for reading and writing. Only its file and its data file can be written
    /// ([`ChainFile::write_at`](super::chain::ChainFile::write_at)). By default, the engine does not write.
    ///
    /// # Errors
    /// As for [`Engine::open`].
    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Answer<Self::Disk<'s>> {
        let _ = chain;
        Err(EngineError::NotAsked)
    }

    /// Creates an empty image in the first file of `chain`, which is empty and can be written. The next call opens it
    /// ([`Engine::open_to_write`]). By default, the engine creates no images, and writes to those of the harness.
    ///
    /// # Errors
    /// The engine does not create such images ([`EngineError::Unsupported`]), which is no finding here; or the file
    /// cannot be written.
    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        let _ = (chain, image);
        Err(EngineError::NotAsked)
    }

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

    /// Fills `into` with the guest's bytes from `guest` on. The harness has filled `into` with other bytes. If the
    /// range reaches past the end of the disk, the engine fails, or fills the rest with zeros.
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

    /// Returns the engine's report about the image.
    ///
    /// # Errors
    /// The image cannot be read.
    fn info(&mut self) -> Result<ImageInfo, EngineError> {
        Err(EngineError::NotAsked)
    }

    /// Checks the image, as `qemu-img check` does, and changes nothing.
    ///
    /// # Errors
    /// The image cannot be checked. An error in the image is a result.
    fn check(&mut self) -> Result<CheckCounts, EngineError> {
        Err(EngineError::NotAsked)
    }

    /// Writes `bytes` to the guest disk from `guest` on. The disk was opened for writing, as for all changes below; the
    /// range lies on it.
    ///
    /// # Errors
    /// The image is malformed there, or its file cannot be read or written. The same holds for all changes below.
    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        let _ = (guest, bytes);
        Err(EngineError::NotAsked)
    }

    /// Makes a range of the disk read as zeros. Engines need not store them.
    ///
    /// # Errors
    /// As for [`OpenDisk::write`]; or this image does not allow it ([`EngineError::Unsupported`]), and the engine has
    /// changed nothing. This is no finding here, nor for [`OpenDisk::discard`] and [`OpenDisk::resize`].
    fn write_zeroes(&mut self, guest: GuestOffset, length_bytes: u64) -> Answer {
        let _ = (guest, length_bytes);
        Err(EngineError::NotAsked)
    }

    /// Frees whole clusters, which then read as zeros.
    ///
    /// # Errors
    /// As for [`OpenDisk::write`].
    fn discard(&mut self, guest: GuestOffset, length_bytes: u64) -> Answer {
        let _ = (guest, length_bytes);
        Err(EngineError::NotAsked)
    }

    /// Gives the disk another size. New bytes read as zeros, also if the layers below have other bytes
    /// there.
    ///
    /// # Errors
    /// As for [`OpenDisk::write`].
    fn resize(&mut self, size_bytes: u64) -> Answer {
        let _ = size_bytes;
        Err(EngineError::NotAsked)
    }

    /// Takes a snapshot of the disk as it is now. It comes behind all others in the snapshot table of the image.
    ///
    /// # Errors
    /// As for [`OpenDisk::write_zeroes`]. The same holds for the next two.
    fn take_snapshot(&mut self) -> Answer {
        Err(EngineError::NotAsked)
    }

    /// Restores the disk, with its size, from the snapshot at `index` of the snapshot table, counted from 0.
    ///
    /// # Errors
    /// As for [`OpenDisk::take_snapshot`].
    fn apply_snapshot(&mut self, index: u32) -> Answer {
        let _ = index;
        Err(EngineError::NotAsked)
    }

    /// Deletes the snapshot at `index` of the snapshot table, counted from 0. Those behind it move up.
    ///
    /// # Errors
    /// As for [`OpenDisk::take_snapshot`].
    fn delete_snapshot(&mut self, index: u32) -> Answer {
        let _ = index;
        Err(EngineError::NotAsked)
    }

    /// Changes the bitmap at `index` of the image's directory of persistent dirty bitmaps, counted from 0. A new one
    /// comes behind all others, and `index` is their number. An enabled bitmap has a one for every byte that changes.
    ///
    /// An engine that does not support bitmaps clears the autoclear bit of an image that has some, before it changes
    /// anything.
    ///
    /// # Errors
    /// As for [`OpenDisk::write_zeroes`].
    fn change_bitmap(&mut self, index: u32, change: BitmapChange) -> Answer {
        let _ = (index, change);
        Err(EngineError::NotAsked)
    }

    /// Writes all changes to the file, and has it keep them in a power cut
    /// ([`ChainFile::flush`](super::chain::ChainFile::flush)).
    ///
    /// # Errors
    /// As for [`OpenDisk::write`].
    fn flush(&mut self) -> Answer {
        Err(EngineError::NotAsked)
    }

    /// Closes the image, which then contains all changes. By default, there is nothing to do.
    ///
    /// # Errors
    /// The file cannot be written.
    fn close(self) -> Answer
    where
        Self: Sized,
    {
        Ok(())
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

/// The answer of an engine to a question.
pub type Answer<T = ()> = Result<T, EngineError>;

/// The end of a process in place of its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineEnd {
    /// How the process ended.
    pub process: ProcessEnd,
    /// The last lines that the process wrote to standard error.
    pub detail: String,
}

/// The reason why an engine did not answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine has no answer to questions of this kind, for any image.
    #[error("not asked")]
    NotAsked,
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

    /// Creates the answer to a question about a byte past the end of the disk.
    pub fn past_end(guest: GuestOffset, virtual_size: u64) -> Self {
        Self::PastEnd { guest, virtual_size }
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NotAsked | Self::NotGiven(_) => ErrorKind::NotAsked,
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

/// Defines the functions of [`Engine`] that a wrapper passes on to its field `engine`: all but those about claims,
/// known findings and images. The wrappers share this list, so that none of them lacks a function.
macro_rules! pass_on_to_engine {
    () => {
        fn name(&self) -> &str {
            self.engine.name()
        }

        fn policy(&self) -> $crate::harness::claims::EnginePolicy {
            self.engine.policy()
        }

        fn accesses_are_feedback(&self) -> bool {
            self.engine.accesses_are_feedback()
        }

        fn written_accesses_are_feedback(&self) -> bool {
            self.engine.written_accesses_are_feedback()
        }

        fn written_accesses_are_ordered(&self) -> bool {
            self.engine.written_accesses_are_ordered()
        }

        fn begin_rehearsal(&mut self) -> bool {
            self.engine.begin_rehearsal()
        }

        fn end_rehearsal(&mut self) {
            self.engine.end_rehearsal();
        }

        fn take_end(&mut self) -> Option<$crate::harness::engine::EngineEnd> {
            self.engine.take_end()
        }

        fn begin_run(&mut self) {
            self.engine.begin_run();
        }
    };
}
pub(super) use pass_on_to_engine;
