//! The engine interface: to fuzz your own implementation, implement these two traits. The oracles call every
//! implementation through them, our own walker included. `examples/engine.rs` implements them for a small reader.

pub mod claims;
pub(crate) mod failure;
pub mod flights;
pub(crate) mod known;
pub mod questions;
mod request;
mod sectors;
pub(crate) mod statement;
pub mod status;
pub(crate) mod tested;

use std::borrow::Cow;
use std::path::Path;

use crate::base::features::FeatureSet;
use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::claims::{Claims, EnginePolicy};
use crate::harness::engine::flights::Flights;
use crate::harness::engine::known::KnownFindings;
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};
use crate::harness::engine::status::GuestRun;
use crate::harness::files::chain::Chain;
pub use crate::programs::{BitmapChange, NewImage};

pub use failure::{EngineEnd, EngineError, ErrorKind};
pub use request::Request;

/// The statement of an implementation about itself. The harness asks for it once, before the first image.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The name of the implementation, for reports.
    pub name: Cow<'static, str>,
    /// The version of the implementation, for reports; empty if it is not known.
    pub version: Cow<'static, str>,
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
    /// The unit of the engine's reads and writes in bytes, if it reads and writes no parts of sectors: the harness
    /// rounds the ranges. By default, the engine reads and writes any bytes.
    pub sector_bytes: Option<u32>,
    /// The engine wants to know the questions about an image before it opens the image ([`Engine::prepare`]): by
    /// default, it does not.
    pub is_prepared: bool,
}

/// The part of an engine's accesses to its files that is feedback: the parts of the images that it reads and writes.
/// Feedback must depend on the input alone, so the engine keeps nothing from run to run, or forgets it in
/// [`Engine::begin_run`]. A later one is more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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
            version: Cow::default(),
            claims: Claims::QCOW2,
            write_claims: None,
            answers: QuestionKinds::ALL,
            policy: EnginePolicy::default(),
            known: KnownFindings::default(),
            reads: AccessFeedback::default(),
            writes: None,
            sector_bytes: None,
            is_prepared: false,
        }
    }

    /// Returns the name and, if it is known, the version.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.version).trim_end().to_string()
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

    /// From now on, writes what it does with an image that it opens for writing into the empty folder `folder`, so that
    /// `bundle` can show a finding without this project: `session.sh`, lines for `sh` which work on the files of the
    /// chain in the current folder, and set `image` to the options by which qemu-img opens the image; these files in
    /// `before`, with others that the lines need; and in `after` those that the session has written. The last session
    /// counts. By default, the engine writes nothing.
    fn record_script(&mut self, folder: &Path) {
        let _ = folder;
    }
}

/// An image that an engine has opened. An engine implements [`OpenDisk::read`] or [`OpenDisk::status`] at least: the
/// harness judges the answers that it gets, and reports the oracles that are idle for want of answers.
pub trait OpenDisk {
    /// Returns the size of the disk that a guest sees.
    fn virtual_size_bytes(&mut self) -> u64;

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

    /// Carries out requests that are in flight together. [`Flights::run`] polls their futures in one thread, and lets
    /// their operations on files happen in the order that the program wants. By default, the engine carries out one
    /// request after the other.
    ///
    /// # Errors
    /// The requests cannot be carried out together. Errors of single requests are answers of their futures.
    fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        let _ = flights;
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

/// The report of an engine about an image. An oracle judges the fields that the engine states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageInfo {
    /// The names of the files below the image, as the images name them: the backing file, its backing file, and so on.
    pub chain: Option<Vec<Vec<u8>>>,
    /// The name of the external data file; empty if there is none.
    pub data_file: Option<Vec<u8>>,
    /// The number of snapshots.
    pub snapshots: Option<usize>,
    /// The number of persistent bitmaps.
    pub bitmaps: Option<usize>,
}

/// The result of an engine's own check of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// The number of errors: bytes that contradict each other.
    pub errors: u64,
    /// The number of clusters that are allocated and not used.
    pub leaks: u64,
}

impl CheckCounts {
    /// Returns the result in a word.
    pub(crate) fn result(self) -> &'static str {
        match (self.errors, self.leaks) {
            (0, 0) => "nothing",
            (0, _) => "leaks",
            _ => "errors",
        }
    }
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

impl EngineQuestion {
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
