//! Our own walker, the first engine under test.

use smallvec::SmallVec;

use crate::disk::extent::{Visitor, Window};
use crate::disk::limits::MAX_LAYERS;
use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Layer;
use crate::walkers;
use crate::walkers::{MapError, WalkScratch};

use super::chain::{Chain, ChainFile, ChainLayer};
use super::claims::Claims;
use super::engine::{Engine, EngineError, OpenDisk};
use super::status::GuestRun;

/// Our walker as an engine; it reports events to its observer.
#[derive(Debug)]
pub struct Walker<O: Observer = ()> {
    scratch: WalkScratch,
    observer: O,
}

impl Default for Walker {
    /// Creates a walker without an observer.
    fn default() -> Self {
        Self::observed(())
    }
}

impl<O: Observer> Walker<O> {
    /// Creates a walker that reports events to `observer`.
    pub fn observed(observer: O) -> Self {
        Self { scratch: WalkScratch::default(), observer }
    }
}

impl<O: Observer> Engine for Walker<O> {
    type Disk<'s>
        = WalkerDisk<'s, O>
    where
        O: 's;

    fn name(&self) -> &str {
        "map_extents"
    }

    fn claims(&self) -> Claims {
        Claims::ALL
    }

    fn begin_run(&mut self) {
        self.scratch.forget();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<WalkerDisk<'s, O>, EngineError> {
        let disk = walkers::Disk::open_observed(chain.format(), &layers(chain), &self.observer)?;
        Ok(WalkerDisk { disk, scratch: &mut self.scratch })
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<WalkerDisk<'s, O>, EngineError> {
        let disk = walkers::Disk::open_observed(chain.format(), &layers(chain), &self.observer)?;
        let disk = disk.into_snapshot(index)?;
        Ok(WalkerDisk { disk, scratch: &mut self.scratch })
    }
}

/// Returns the layers of `chain` in the form in which our walker takes them.
fn layers(chain: &Chain) -> SmallVec<[Layer<'_, ChainFile>; MAX_LAYERS]> {
    chain.layers().iter().map(ChainLayer::borrowed).collect()
}

/// An image that our walker has opened.
pub struct WalkerDisk<'s, O: Observer = ()> {
    disk: walkers::Disk<'s, ChainFile, &'s O>,
    scratch: &'s mut WalkScratch,
}

impl<O: Observer> OpenDisk for WalkerDisk<'_, O> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn map(&mut self, window: Window, visitor: &mut impl Visitor) -> Result<(), EngineError> {
        Ok(walkers::map_extents(&self.disk, window, self.scratch, visitor)?)
    }

    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        let status = walkers::lookup(&self.disk, guest)?.into();
        Ok(GuestRun { length_bytes: 1, status })
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        Ok(walkers::read(&self.disk, guest, into, self.scratch)?)
    }
}

impl From<MapError> for EngineError {
    fn from(error: MapError) -> Self {
        // Valid images cause only the first two, in many runs: neither is boxed.
        match error {
            MapError::Storage { error, .. } => Self::Storage(error),
            MapError::PastEnd { guest, virtual_size } => Self::PastEnd { guest, virtual_size },
            error => Self::Failed(Box::new(error)),
        }
    }
}
