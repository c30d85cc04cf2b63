//! The engine under test, as the oracles see it. All questions pass here on their way to the implementation: this
//! module notes the kinds of questions without an answer and the end of a process, and excuses the size of a disk as
//! far as the policy of the engine allows.
//!
//! # Arithmetic
//! A byte past the end of a disk is 0 bytes before it. A size that passes 2^64 when it is rounded up is near no disk.

use std::cell::{Cell, RefCell};

use smallvec::SmallVec;

use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;
use crate::harness::engine::claims::SizePolicy;
use crate::harness::engine::flights::Flights;
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};
use crate::harness::engine::status::GuestRun;
use crate::harness::engine::{
    Answer, CheckCounts, Engine, EngineEnd, EngineError, EngineQuestion, Facts, ImageInfo,
    ImageReport, OpenDisk, Opened, ReportKind, Request,
};
use crate::harness::files::chain::Chain;
use crate::harness::model::Model;
use crate::programs::NewImage;

/// The unit of QEMU's sizes: a sector that is not whole does not count.
const SECTOR_BYTES: u64 = 512;

/// An engine under test.
pub struct TestedEngine {
    engine: Box<dyn Engine>,
    facts: Facts,
    sizes: DiskSizes,
    notes: Notes,
}

/// The sizes of the disks of an image in bytes, as the image stores them.
#[derive(Debug, Default)]
struct DiskSizes {
    active: Option<u64>,
    snapshots: SmallVec<[u64; 8]>,
}

/// Notes about the answers of a run.
#[derive(Debug)]
struct Notes {
    /// The kinds of questions that reach the engine.
    asked: QuestionKinds,
    unanswered: Cell<QuestionKinds>,
    end: RefCell<Option<Box<EngineEnd>>>,
    /// The unit of the engine's reads and writes.
    sector_bytes: u64,
}

impl TestedEngine {
    /// Creates an engine under test, of which `facts` hold. The caller may have changed them.
    pub fn new(engine: Box<dyn Engine>, facts: Facts) -> Self {
        let asked = facts.answers;
        let sector_bytes = facts.sector_bytes.map_or(1, |bytes| u64::from(bytes.max(1)));
        let (unanswered, end) = Default::default();
        let notes = Notes { asked, unanswered, end, sector_bytes };
        Self { engine, facts, sizes: DiskSizes::default(), notes }
    }

    /// Reports whether questions of this kind reach the engine.
    pub(crate) fn may_answer(&self, kind: QuestionKind) -> bool {
        self.notes.asked.has(kind)
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(crate) fn begin_run(&mut self) {
        self.engine.begin_run();
        self.notes.unanswered.take();
        self.notes.end.take();
        self.sizes = DiskSizes::default();
    }

    /// Returns the kinds of questions that the engine did not answer in this run.
    pub(crate) fn unanswered(&self) -> QuestionKinds {
        self.notes.unanswered.get()
    }

    /// Takes the end of the process that should have answered, if the image has ended it.
    pub(crate) fn take_end(&mut self) -> Option<EngineEnd> {
        self.notes.end.take().map(|end| *end)
    }

    /// Takes the sizes of the disks of the next images: the policy may allow sizes near them.
    pub(crate) fn note_sizes(&mut self, model: &Model) {
        if self.facts.policy.size == SizePolicy::Near {
            self.sizes.active = Some(model.stored_size_bytes());
            self.sizes.snapshots.clear();
            self.sizes.snapshots.extend(model.stored_snapshot_sizes_bytes());
        }
    }

    /// Announces questions about `chain`, if the engine wants to know them. `plan` adds them.
    pub(crate) fn prepare(&mut self, chain: &Chain, plan: impl FnOnce(&mut Vec<EngineQuestion>)) {
        if self.facts.is_prepared {
            let mut questions = Vec::new();
            plan(&mut questions);
            questions.retain(|question| self.notes.asked.has(question.kind()));
            self.engine.prepare(chain, &questions);
        }
    }

    /// Opens the image at the top of `chain`: [`Engine::open`].
    pub(crate) fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<TestedDisk<'s>> {
        let Self { engine, facts, notes, sizes } = self;
        let opened = facts.rounded(engine.open(chain));
        TestedDisk::new(opened, notes, QuestionKind::Open, sizes.active)
    }

    pub(crate) fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Answer<TestedDisk<'s>> {
        let Self { engine, facts, notes, sizes } = self;
        notes.pass(QuestionKind::Snapshots)?;
        let stored = sizes.snapshots.get(index as usize).copied();
        let opened = facts.rounded(engine.open_snapshot(chain, index));
        TestedDisk::new(opened, notes, QuestionKind::Snapshots, stored)
    }

    /// Opens an image for writing: [`Engine::open_to_write`].
    pub(crate) fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Answer<TestedDisk<'s>> {
        let Self { engine, facts, notes, .. } = self;
        let opened = facts.rounded(engine.open_to_write(chain));
        TestedDisk::new(opened, notes, QuestionKind::Writing, None)
    }

    pub(crate) fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        self.notes.note_request(QuestionKind::Create, self.engine.create(chain, image))
    }
}

impl Notes {
    /// Lets a question pass, if questions of its kind reach the engine.
    #[inline]
    fn pass(&self, kind: QuestionKind) -> Answer {
        match self.asked.has(kind) {
            true => Ok(()),
            false => self.note(kind, Err(EngineError::NoAnswer)),
        }
    }

    /// Adds an answer to the notes, and returns it.
    #[inline]
    fn note<T>(&self, kind: QuestionKind, answer: Answer<T>) -> Answer<T> {
        if let Err(error) = &answer {
            self.note_error(kind, error);
        }
        answer
    }

    /// Does the same with the answer to a request. An image may not allow a request: version 2 has no zero clusters,
    /// say.
    fn note_request(&self, kind: QuestionKind, done: Answer) -> Answer {
        if let Err(EngineError::Unsupported(_)) = done {
            self.note_error(kind, &EngineError::NoAnswer);
        }
        self.note(kind, done)
    }

    #[cold]
    fn note_error(&self, kind: QuestionKind, error: &EngineError) {
        match error {
            EngineError::NoAnswer => self.unanswered.set(self.unanswered.get().with(kind)),
            EngineError::Ended(end) => drop(self.end.borrow_mut().get_or_insert(end.clone())),
            _ => {}
        }
    }
}

/// A disk that the engine under test has opened.
pub struct TestedDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    /// The size of the disk that the oracles see.
    size_bytes: u64,
    /// The size that the engine states. Only requests change it.
    own_bytes: u64,
    notes: &'s Notes,
}

impl<'s> TestedDisk<'s> {
    /// Takes the disk that an engine has opened. If it has the size that the image stores, or that size rounded up, it
    /// is cut to whole sectors.
    fn new(
        opened: Opened<'s>,
        notes: &'s Notes,
        kind: QuestionKind,
        stored: Option<u64>,
    ) -> Answer<Self> {
        let mut disk = notes.note(kind, opened)?;
        let own_bytes = disk.virtual_size_bytes();
        let rounded_up = |stored: u64| stored.checked_next_multiple_of(SECTOR_BYTES);
        let is_near = |stored: &u64| own_bytes == *stored || Some(own_bytes) == rounded_up(*stored);
        let stored = stored.filter(is_near);
        let size_bytes = stored.map_or(own_bytes, |stored| stored / SECTOR_BYTES * SECTOR_BYTES);
        Ok(Self { disk, size_bytes, own_bytes, notes })
    }

    /// Returns the size of the disk. Requests may change it.
    pub(crate) fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Reports whether the engine may have answers to questions of this kind: it has not yet left one unanswered.
    pub(crate) fn answers(&self, kind: QuestionKind) -> bool {
        !self.notes.unanswered.get().has(kind)
    }

    /// Fills `into` with the guest's bytes: [`OpenDisk::read`].
    pub(crate) fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.notes.pass(QuestionKind::Read)?;
        let read = self.disk.read(guest, into);
        self.notes.note(QuestionKind::Read, read)?;
        let own = self.own_bytes;
        if self.size_bytes < own {
            // The policy excuses the bytes between the two ends. Those past the engine's own end stay as they are.
            let at = |size: u64| {
                let from_guest = size.saturating_sub(guest.get());
                usize::try_from(from_guest).unwrap_or(usize::MAX).min(into.len())
            };
            let excused = at(self.size_bytes)..at(own);
            into.get_mut(excused).into_iter().for_each(|excused| excused.fill(0));
        }
        Ok(())
    }

    /// Returns the status of the bytes from `guest` on: [`OpenDisk::status`].
    pub(crate) fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        self.notes.pass(QuestionKind::Status)?;
        match self.size_bytes < self.own_bytes {
            false => self.notes.note(QuestionKind::Status, self.disk.status(guest)),
            true => self.status_of_cut_disk(guest),
        }
    }

    /// Does the same if the policy excuses bytes at the end of the engine's own disk.
    #[cold]
    fn status_of_cut_disk(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let (size, own) = (self.size_bytes, self.own_bytes);
        if guest.get() >= size {
            return Err(EngineError::PastEnd { guest, virtual_size: size });
        }
        let run = self.notes.note(QuestionKind::Status, self.disk.status(guest))?;
        // A run that passes the engine's own end is a bug, and the oracle sees it.
        let is_excused = run.length_bytes <= own.saturating_sub(guest.get());
        let most = if is_excused { size.saturating_sub(guest.get()) } else { u64::MAX };
        Ok(GuestRun { length_bytes: run.length_bytes.min(most), ..run })
    }

    /// Calls `visitor` with the extents of `window`: [`OpenDisk::map`].
    pub(crate) fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        self.notes.pass(QuestionKind::Map)?;
        let window = match self.size_bytes < self.own_bytes {
            false => window,
            true => {
                let range = window.clipped(self.size_bytes);
                let length_bytes = range.end.get().saturating_sub(range.start.get());
                Window { start: range.start, length_bytes }
            }
        };
        let mapped = self.disk.map(window, visitor);
        self.notes.note(QuestionKind::Map, mapped)
    }

    /// Returns the engine's report about the image.
    pub(crate) fn info(&mut self) -> Answer<ImageInfo> {
        match self.report(QuestionKind::Info, ReportKind::Info)? {
            ImageReport::Info(info) => Ok(info),
            ImageReport::Check(_) => Err(EngineError::untyped("the result of a check")),
        }
    }

    /// Has the engine check the image.
    pub(crate) fn check(&mut self) -> Answer<CheckCounts> {
        match self.report(QuestionKind::Check, ReportKind::Check)? {
            ImageReport::Check(counts) => Ok(counts),
            ImageReport::Info(_) => Err(EngineError::untyped("no result of a check")),
        }
    }

    fn report(&mut self, kind: QuestionKind, about: ReportKind) -> Answer<ImageReport> {
        self.notes.pass(kind)?;
        self.notes.note(kind, self.disk.report(about))
    }

    /// Has the engine carry out a request: [`OpenDisk::request`].
    pub(crate) fn request(&mut self, request: &Request) -> Answer {
        let kind = request.kind();
        self.notes.pass(kind)?;
        let done = self.disk.request(request);
        self.own_bytes = self.disk.virtual_size_bytes();
        self.size_bytes = self.own_bytes;
        self.notes.note_request(kind, done)
    }

    /// Returns the unit of the engine's reads and writes in bytes.
    pub(crate) fn sector_bytes(&self) -> u64 {
        self.notes.sector_bytes
    }

    /// Has the engine carry out requests that are in flight together: [`OpenDisk::in_flight`].
    pub(crate) fn in_flight(&mut self, flights: Flights<'_>) -> Answer {
        self.notes.pass(QuestionKind::InFlight)?;
        let done = self.disk.in_flight(flights);
        self.own_bytes = self.disk.virtual_size_bytes();
        self.size_bytes = self.own_bytes;
        self.notes.note(QuestionKind::InFlight, done)
    }

    /// Notes the answer to a request that was in flight.
    pub(crate) fn note_flown(&self, kind: QuestionKind, done: Answer) -> Answer {
        self.notes.note_request(kind, done)
    }

    /// Closes the image: [`OpenDisk::close`].
    pub(crate) fn close(self) -> Answer {
        self.notes.note(QuestionKind::Open, self.disk.close())
    }
}
