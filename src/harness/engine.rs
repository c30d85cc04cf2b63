//! The engine interface: to fuzz your own implementation, implement these two traits. The oracles call every
//! implementation through them, our own walker included. `examples/engine.rs` implements them for a small reader.

pub mod claims;
pub(crate) mod engine_failure;
pub mod info;
pub(crate) mod known;
pub mod questions;
pub mod status;
pub(crate) mod tested;

use std::borrow::Cow;
use std::error::Error;

use crate::base::features::FeatureSet;
use crate::disk::error::StorageError;
use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::claims::{Claims, EnginePolicy};
use crate::harness::engine::info::{CheckCounts, ImageInfo};
use crate::harness::engine::known::KnownFindings;
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};
use crate::harness::engine::status::GuestRun;
use crate::harness::files::chain::Chain;
use crate::processes::ProcessEnd;
pub use crate::programs::{BitmapChange, NewImage};

/// The statement of an implementation about itself. The harness asks for it once, before the first image.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The name of the implementation, for reports.
    pub name: Cow<'static, str>,
    /// The features that the engine claims to read: by default, all those of qcow2 images. A violation on a valid image
    /// with these features is a bug of the engine.
    pub claims: Claims,
    /// The features of the images to which the engine can write; by default, those that it claims to read. The target
    /// `writes` has no other images. Nor has it images that a writer would repair at open.
    pub write_claims: Option<Claims>,
    /// The kinds of questions that the engine may answer: by default, all. No other reaches it.
    pub answers: QuestionKinds,
    /// The answers that are excused: by default, none.
    pub policy: EnginePolicy,
    /// The known findings of the implementation: by default, none. Every target sets them aside.
    pub known: KnownFindings,
    /// The accesses to files while the engine reads: by default, they are feedback in their order. The self-test
    /// measures whether they may be.
    pub reads: AccessFeedback,
    /// The accesses to files while the engine has an image open for writing; by default, they are as while it reads.
    pub writes: Option<AccessFeedback>,
    /// The engine wants to know the questions about an image before it opens the image ([`Engine::prepare`]): by
    /// default, it does not.
    pub is_prepared: bool,
}

/// The part of an engine's accesses to its files that is feedback: the parts of the images that it reads and writes.
/// Feedback must depend on the input alone, so the engine keeps nothing from run to run, or forgets it in
/// [`Engine::begin_run`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessFeedback {
    /// None: an engine that keeps caches from run to run, or reads the files in another process.
    None,
    /// The parts, and not their order: an engine that writes its caches in a random order.
    Parts,
    /// The parts in their order.
    #[default]
    Ordered,
}

impl Facts {
    /// Creates the facts of an implementation with the defaults of all fields but the name.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: name.into(),
            claims: Claims::QCOW2,
            write_claims: None,
            answers: QuestionKinds::ALL,
            policy: EnginePolicy::default(),
            known: KnownFindings::default(),
            reads: AccessFeedback::default(),
            writes: None,
            is_prepared: false,
        }
    }

    /// Returns the features of the images to which the engine can write.
    pub fn write_claims(&self) -> Claims {
        self.write_claims.unwrap_or(self.claims)
    }

    /// Returns the accesses that are feedback while the engine has an image open for writing.
    pub fn writes(&self) -> AccessFeedback {
        self.writes.unwrap_or(self.reads)
    }

    /// Returns these facts without the claims about `features`.
    pub fn without(self, features: FeatureSet) -> Self {
        let write_claims = self.write_claims.map(|claims| claims.without(features));
        Self { claims: self.claims.without(features), write_claims, ..self }
    }
}

/// An implementation that opens disk images.
pub trait Engine {
    /// Returns the statement of the implementation about itself.
    fn facts(&self) -> Facts;

    /// Begins a run: the next images belong to another input. An engine that caches anything from image to image clears
    /// the cache here, so that the coverage of a run depends on its input alone, as its verdict does.
    fn begin_run(&mut self) {}

    /// Takes the questions that the harness is about to ask about `chain`, in order: an engine for which one batch is
    /// cheaper than many questions answers all of them at once. Other questions may follow. The harness calls this only
    /// if [`Facts::is_prepared`].
    fn prepare(&mut self, chain: &Chain, questions: &[EngineQuestion]) {
        let _ = (chain, questions);
    }

    /// Opens the image at the top of `chain`.
    ///
    /// # Errors
    /// The image is refused, or cannot be read.
    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s>;

    /// Opens the image at the top of `chain` for reading and writing. Only its file and its data file can be written
    /// ([`ChainFile::write_at`](crate::harness::files::chain::ChainFile::write_at)). By default, the engine does not
    /// write.
    ///
    /// # Errors
    /// As for [`Engine::open`].
    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let _ = chain;
        Err(EngineError::NoAnswer)
    }

    /// Opens the snapshot at `index` of the first image's snapshot table, counted from 0. The disk has the size that it
    /// had when the snapshot was taken. Ranges that the snapshot does not map come from the layers below.
    ///
    /// # Errors
    /// As for [`Engine::open`]; or the snapshot does not exist.
    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        let _ = (chain, index);
        Err(EngineError::NoAnswer)
    }

    /// Creates an empty image in the first file of `chain`, which is empty and can be written. The next call opens it
    /// ([`Engine::open_to_write`]). By default, the engine creates no images, and writes to those of the harness.
    ///
    /// # Errors
    /// The engine does not create such images ([`EngineError::Unsupported`]), which is no finding here; or the file
    /// cannot be written.
    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        let _ = (chain, image);
        Err(EngineError::NoAnswer)
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
        Err(EngineError::NoAnswer)
    }

    /// Returns the status of the bytes from `guest` on.
    ///
    /// # Errors
    /// As for [`OpenDisk::read`].
    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        let _ = guest;
        Err(EngineError::NoAnswer)
    }

    /// Calls `visitor` with the extents of `window`, in order, until it breaks: all that `qemu-img map` reports. The
    /// extents are maximal and clipped to the window and the disk.
    ///
    /// # Errors
    /// The image is malformed in the window, or cannot be read. The extents that were emitted before stay valid.
    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        let _ = (window, visitor);
        Err(EngineError::NoAnswer)
    }

    /// Returns a report about the image. A check, as that of `qemu-img check`, changes nothing.
    ///
    /// # Errors
    /// The image cannot be read or checked. An error that a check finds in the image is a result.
    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        let _ = about;
        Err(EngineError::NoAnswer)
    }

    /// Carries out a request. The disk was opened for writing.
    ///
    /// # Errors
    /// The image is malformed there, or its file cannot be read or written; or this image does not allow the request
    /// ([`EngineError::Unsupported`]), and the engine has changed nothing. That is no finding here, unless the request
    /// is a write or a flush. By default, the engine carries out no requests.
    fn request(&mut self, request: &Request) -> Answer {
        let _ = request;
        Err(EngineError::NoAnswer)
    }

    /// Closes the image, which then contains all changes. By default, there is nothing to do.
    ///
    /// # Errors
    /// The file cannot be written.
    fn close(self: Box<Self>) -> Answer {
        Ok(())
    }
}

/// The answer of an engine to a question.
pub type Answer<T = ()> = Result<T, EngineError>;

/// The answer of an engine that opens an image.
pub type Opened<'s> = Answer<Box<dyn OpenDisk + 's>>;

/// A request to a disk that is open for writing. Its range lies on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// Writes `bytes` to the guest disk from `guest` on.
    Write {
        /// The first byte.
        guest: GuestOffset,
        /// The bytes.
        bytes: &'b [u8],
    },
    /// Makes a range read as zeros. Engines need not store them.
    WriteZeroes {
        /// The first byte.
        guest: GuestOffset,
        /// The number of bytes.
        length_bytes: u64,
    },
    /// Frees whole clusters, which then read as zeros.
    Discard {
        /// The first byte, at the edge of a cluster.
        guest: GuestOffset,
        /// The number of bytes: whole clusters, or all up to the end of the disk.
        length_bytes: u64,
    },
    /// Gives the disk another size. New bytes read as zeros, also if the layers below have other bytes there.
    Resize {
        /// The new size in bytes: whole sectors of 512 bytes.
        size_bytes: u64,
    },
    /// Takes a snapshot of the disk as it is now. It comes behind all others in the snapshot table of the image.
    TakeSnapshot,
    /// Restores the disk, with its size, from the snapshot at `index` of the snapshot table, counted from 0.
    ApplySnapshot {
        /// The index.
        index: u32,
    },
    /// Deletes the snapshot at `index` of the snapshot table, counted from 0. Those behind it move up.
    DeleteSnapshot {
        /// The index.
        index: u32,
    },
    /// Changes the bitmap at `index` of the image's directory of persistent dirty bitmaps, counted from 0. A new one
    /// comes behind all others, and `index` is their number. An enabled bitmap has a one for every byte that changes.
    ///
    /// An engine that does not support bitmaps clears the autoclear bit of an image that has some, before it changes
    /// anything.
    ChangeBitmap {
        /// The index.
        index: u32,
        /// The change.
        change: BitmapChange,
    },
    /// Writes all changes to the file, and has it keep them in a power cut
    /// ([`ChainFile::flush`](crate::harness::files::chain::ChainFile::flush)).
    Flush,
}

/// A report about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    /// Fields of `qemu-img info`.
    Info,
    /// The result of a check.
    Check,
}

/// An engine's report about an image, of the kind that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageReport {
    /// Fields of `qemu-img info`.
    Info(ImageInfo),
    /// The result of a check.
    Check(CheckCounts),
}

/// A question to an engine, as [`Engine::prepare`] announces it. The questions that follow an opening are about the
/// disk that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineQuestion {
    /// [`Engine::open`].
    Open,
    /// [`Engine::open_snapshot`], with the index of the snapshot.
    OpenSnapshot(u32),
    /// [`OpenDisk::map`]. The harness may stop the walk.
    Map(Window),
    /// [`OpenDisk::status`].
    Status(GuestOffset),
    /// [`OpenDisk::read`].
    Read(GuestOffset, usize),
    /// [`OpenDisk::report`].
    Report(ReportKind),
}

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
    #[error("no answer")]
    NoAnswer,
    /// The process that should have answered has ended, and the image has ended it. That is a violation, even if no
    /// oracle finds one.
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

impl EngineQuestion {
    /// Returns the kind.
    pub(super) const fn kind(&self) -> QuestionKind {
        match self {
            Self::Open => QuestionKind::Open,
            Self::OpenSnapshot(_) => QuestionKind::Snapshots,
            Self::Map(_) => QuestionKind::Map,
            Self::Status(_) => QuestionKind::Status,
            Self::Read(..) => QuestionKind::Read,
            Self::Report(ReportKind::Info) => QuestionKind::Info,
            Self::Report(ReportKind::Check) => QuestionKind::Check,
        }
    }
}

impl Request<'_> {
    /// Returns the kind.
    pub(super) const fn kind(&self) -> QuestionKind {
        match self {
            Self::Write { .. } => QuestionKind::Writing,
            Self::WriteZeroes { .. } => QuestionKind::WriteZeroes,
            Self::Discard { .. } => QuestionKind::Discard,
            Self::Resize { .. } => QuestionKind::Resize,
            Self::TakeSnapshot => QuestionKind::TakeSnapshot,
            Self::ApplySnapshot { .. } => QuestionKind::ApplySnapshot,
            Self::DeleteSnapshot { .. } => QuestionKind::DeleteSnapshot,
            Self::ChangeBitmap { .. } => QuestionKind::ChangeBitmap,
            Self::Flush => QuestionKind::Flush,
        }
    }
}
