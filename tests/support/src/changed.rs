//! An engine that passes questions to another engine and changes some of the answers.

use crate::prelude::*;
use qcowfuzz::harness::engine::NewImage;

/// The purpose for which an engine uses an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Reads the active disk.
    Read,
    /// Reads and writes the active disk.
    Write,
    /// Reads a snapshot.
    Snapshot,
    /// Creates an image.
    Create,
}

/// The disk of the other engine.
pub type Inner<'s> = dyn OpenDisk + 's;

/// A change of the answers. By default, each answer is that of the other engine.
pub trait Change: Clone {
    /// Changes the facts of the engine: those of an engine without claims of its own, which writes if the other does.
    fn facts(&self, facts: Facts) -> Facts {
        facts
    }

    /// Is called before the other engine uses the image. An error is the answer of the engine.
    fn begin(&mut self, _opening: Opening, _chain: &Chain) -> Answer {
        Ok(())
    }

    /// Returns the change of the answers about a disk that the other engine has opened.
    fn opened(&self, _opening: Opening, _chain: &Chain, _disk: &mut Inner) -> Answer<Self> {
        Ok(self.clone())
    }

    fn size(&self, disk: &mut Inner) -> u64 {
        disk.virtual_size_bytes()
    }

    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answer {
        disk.read(guest, into)
    }

    fn status(&mut self, disk: &mut Inner, guest: GuestOffset) -> Answer<GuestRun> {
        disk.status(guest)
    }

    fn map(&mut self, disk: &mut Inner, window: Window, visitor: &mut dyn Visitor) -> Answer {
        disk.map(window, visitor)
    }

    fn report(&mut self, disk: &mut Inner, about: ReportKind) -> Answer<ImageReport> {
        disk.report(about)
    }

    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        disk.request(request)
    }
}

/// The engine `E`, some of whose answers `C` changes.
#[derive(Clone, Default)]
pub struct Changed<C, E = Walker> {
    pub change: C,
    pub engine: E,
}

impl<C> Changed<C> {
    /// Returns our walker with a change.
    pub fn walker(change: C) -> Self {
        Self { change, engine: Walker::default() }
    }
}

impl<C> Changed<C, WritingWalker> {
    /// Returns our walker that also writes, with a change.
    pub fn writer(change: C) -> Self {
        Self { change, engine: WritingWalker::default() }
    }
}

impl<C: Change, E: Engine> Engine for Changed<C, E> {
    fn facts(&self) -> Facts {
        let write_claims = self.engine.facts().write_claims;
        self.change.facts(Facts { write_claims, ..Facts::new("changed") })
    }

    fn begin_run(&mut self) {
        self.engine.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.change.begin(Opening::Read, chain)?;
        changed(&self.change, Opening::Read, chain, self.engine.open(chain)?)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        self.change.begin(Opening::Write, chain)?;
        changed(&self.change, Opening::Write, chain, self.engine.open_to_write(chain)?)
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        self.change.begin(Opening::Snapshot, chain)?;
        changed(&self.change, Opening::Snapshot, chain, self.engine.open_snapshot(chain, index)?)
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        self.change.begin(Opening::Create, chain)?;
        self.engine.create(chain, image)
    }
}

fn changed<'s, C: Change + 's>(
    change: &C,
    opening: Opening,
    chain: &Chain,
    mut disk: Box<Inner<'s>>,
) -> Opened<'s> {
    let change = change.opened(opening, chain, &mut *disk)?;
    Ok(Box::new(ChangedDisk { disk, change }))
}

struct ChangedDisk<'s, C> {
    disk: Box<Inner<'s>>,
    change: C,
}

impl<C: Change> OpenDisk for ChangedDisk<'_, C> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.change.size(&mut *self.disk)
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.change.read(&mut *self.disk, guest, into)
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        self.change.status(&mut *self.disk, guest)
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        self.change.map(&mut *self.disk, window, visitor)
    }

    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        self.change.report(&mut *self.disk, about)
    }

    fn request(&mut self, request: &Request) -> Answer {
        self.change.request(&mut *self.disk, request)
    }

    fn close(self: Box<Self>) -> Answer {
        self.disk.close()
    }
}
