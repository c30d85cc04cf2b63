//! Engines with one bug each: our walker, with a fault planted at the engine boundary.

pub mod broken;
pub mod broken_formats;
pub mod chains;
pub mod extents;
pub mod hostile;
pub mod points;
pub mod refusals;
pub mod snapshots;
pub mod walks;

use crate::prelude::*;

use qcowfuzz::formats::qcow2::geometry::Geometry;
use qcowfuzz::formats::qcow2::header::{Header, PARSED_BYTES};
use qcowfuzz::harness::engine;
use qcowfuzz::harness::engine::status::GuestStatus;
use qcowfuzz::harness::files::chain::ChainFile;

/// The facts about the image and the earlier walks that a fault may use.
pub struct Facts<'s> {
    pub storage: &'s ChainFile,
    pub geometry: Geometry,
    /// The virtual size that the header stores, in bytes.
    pub stored_size_bytes: u64,
    pub size_bytes: u64,
    /// The number of walks before this one.
    pub walks: u32,
    /// One of them failed.
    pub failed: bool,
}

pub type Walked = Result<(), EngineError>;
pub type Looked = Result<Mapping, EngineError>;
pub type OnWindow = fn(Window, &Facts) -> Window;
pub type OnExtents = fn(&mut Vec<Extent>, &Facts, Window);
pub type OnEmit = fn(&[Extent], &Facts, &mut dyn Visitor);
pub type OnEnd = fn(Walked, &mut Vec<Extent>, &Facts) -> Walked;
pub type OnLookup = fn(&mut dyn OpenDisk, &Facts, GuestOffset) -> Looked;
pub type OnRead = fn(&mut dyn OpenDisk, &Facts, GuestOffset, &mut [u8]) -> Walked;

/// The changed answers of an engine with a bug. If a field is `None`, the walker's answer stays.
#[derive(Clone, Copy, Default)]
pub struct Fault {
    /// Changes the window of a walk.
    pub window: Option<OnWindow>,
    /// Changes the extents that a walk of a window emits.
    pub extents: Option<OnExtents>,
    /// Emits the extents, instead of the loop that stops when the visitor breaks.
    pub emit: Option<OnEmit>,
    /// Changes the result of a walk and the extents that it emitted.
    pub end: Option<OnEnd>,
    pub lookup: Option<OnLookup>,
    pub read: Option<OnRead>,
    pub size: Option<fn(&Facts) -> u64>,
    pub snapshot: Option<OnSnapshot>,
}

/// The disk that the engine opens instead of a snapshot.
#[derive(Clone, Copy)]
pub enum OnSnapshot {
    /// The active disk.
    Active,
    /// The snapshot, with the active disk's size.
    ActiveSize,
    /// The snapshot before it, if there is one.
    Previous,
    /// The snapshot, with other bytes for reads.
    Read(OnRead),
}

/// A bug, and the fingerprints that it must have.
pub struct Case {
    pub name: &'static str,
    pub fault: Fault,
    /// The beginnings of all fingerprints that it may have. The first of them must occur.
    pub fingerprints: &'static [&'static str],
}

impl Case {
    /// Returns a bug in the extents of every walk.
    pub const fn extents(
        name: &'static str,
        change: OnExtents,
        fingerprints: &'static [&'static str],
    ) -> Self {
        Self { name, fault: Fault { extents: Some(change), ..Fault::NONE }, fingerprints }
    }
}

impl Fault {
    pub const NONE: Self = Self {
        window: None,
        extents: None,
        emit: None,
        end: None,
        lookup: None,
        read: None,
        size: None,
        snapshot: None,
    };
}

/// The walker with a fault.
pub struct Faulty {
    walker: WritingWalker,
    fault: Fault,
}

impl Faulty {
    pub fn new(fault: Fault) -> Self {
        Self { walker: WritingWalker::default(), fault }
    }
}

impl Engine for Faulty {
    fn facts(&self) -> engine::Facts {
        let write_claims = self.walker.facts().write_claims;
        engine::Facts { write_claims, ..engine::Facts::new("faulty") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let disk = self.walker.open(chain)?;
        let facts = facts_of(chain)?;
        Ok(Box::new(FaultyDisk { disk, facts, fault: self.fault }))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let disk = self.walker.open_to_write(chain)?;
        let facts = facts_of(chain)?;
        Ok(Box::new(FaultyDisk { disk, facts, fault: self.fault }))
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        let active_size = Fault { size: Some(|facts| facts.size_bytes), ..Fault::NONE };
        let facts = facts_of(chain)?;
        let (disk, fault) = match self.fault.snapshot {
            None => (self.walker.open_snapshot(chain, index)?, Fault::NONE),
            Some(OnSnapshot::Active) => (self.walker.open(chain)?, Fault::NONE),
            Some(OnSnapshot::ActiveSize) => (self.walker.open_snapshot(chain, index)?, active_size),
            Some(OnSnapshot::Previous) => {
                (self.walker.open_snapshot(chain, index.saturating_sub(1))?, Fault::NONE)
            }
            Some(OnSnapshot::Read(read)) => {
                let read = Fault { read: Some(read), ..Fault::NONE };
                (self.walker.open_snapshot(chain, index)?, read)
            }
        };
        Ok(Box::new(FaultyDisk { disk, facts, fault }))
    }
}

fn facts_of(chain: &Chain) -> Result<Facts<'_>, EngineError> {
    let storage = chain.image();
    let mut first_bytes = [0; PARSED_BYTES];
    storage.read_at(HostOffset::ZERO, &mut first_bytes)?;
    let header = Header::parse(&first_bytes)?;
    Ok(Facts {
        storage,
        geometry: header.geometry,
        stored_size_bytes: header.size_bytes,
        size_bytes: header.virtual_size_bytes(),
        walks: 0,
        failed: false,
    })
}

pub struct FaultyDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    facts: Facts<'s>,
    fault: Fault,
}

impl OpenDisk for FaultyDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        match self.fault.size {
            Some(size) => size(&self.facts),
            None => self.disk.virtual_size_bytes(),
        }
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Walked {
        let Self { disk, facts, fault } = self;
        let asked = fault.window.map_or(window, |change| change(window, facts));
        let mut extents = Vec::new();
        let collect = &mut |extent: Extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        };
        let mut walked = disk.map(asked, collect);
        let failed = walked.is_err();
        if let Some(change) = fault.extents {
            change(&mut extents, facts, window);
        }
        if let Some(change) = fault.end {
            walked = change(walked, &mut extents, facts);
        }
        facts.walks += 1;
        facts.failed |= failed;
        match fault.emit {
            Some(emit) => emit(&extents, facts, visitor),
            None => {
                let _ = extents.into_iter().try_for_each(|extent| visitor.extent(extent));
            }
        }
        walked
    }

    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        match self.fault.lookup {
            Some(lookup) => {
                let status = lookup(&mut *self.disk, &self.facts, guest)?.into();
                Ok(GuestRun { length_bytes: 1, status })
            }
            None => self.disk.status(guest),
        }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Walked {
        match self.fault.read {
            Some(read) => read(&mut *self.disk, &self.facts, guest, into),
            None => self.disk.read(guest, into),
        }
    }

    fn request(&mut self, request: &Request) -> Walked {
        match request {
            Request::Write { .. } => self.disk.request(request),
            _ => Err(EngineError::NoAnswer),
        }
    }

    fn close(self: Box<Self>) -> Walked {
        self.disk.close()
    }
}

/// The mapping of single bytes.
pub trait LookUp {
    fn lookup(&mut self, guest: GuestOffset) -> Looked;
}

impl LookUp for dyn OpenDisk + '_ {
    fn lookup(&mut self, guest: GuestOffset) -> Looked {
        match self.status(guest)?.status {
            GuestStatus::Exact(mapping) => Ok(mapping),
            coarse => panic!("the walker answers with {coarse}"),
        }
    }
}

/// Merges neighbouring extents for which `merges` is true, as an engine with the fault would.
pub fn coalesce(extents: &mut Vec<Extent>, merges: impl Fn(&Extent, &Extent) -> bool) {
    extents.dedup_by(|next, here| {
        let merged = merges(here, next);
        if merged {
            here.length_bytes += next.length_bytes;
        }
        merged
    });
}

/// Reports whether the walker would merge two extents.
pub fn continues(here: &Extent, next: &Extent) -> bool {
    here.mapping.continues_as(here.length_bytes, &next.mapping)
}

/// Cuts an extent in two, `length_bytes` after its start.
pub fn cut(extents: &mut Vec<Extent>, index: usize, length_bytes: u64) {
    let here = extents[index];
    let rest = Extent {
        start: here.start + length_bytes,
        length_bytes: here.length_bytes - length_bytes,
        mapping: here.mapping.advanced(length_bytes).unwrap(),
    };
    extents[index].length_bytes = length_bytes;
    extents.insert(index + 1, rest);
}
