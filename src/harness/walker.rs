//! Our own walker, the first engine under test.

use crate::disk::extent::{Mapping, Visitor, Window};
use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::{Layer, Storage};
use crate::walkers::qcow2;
use crate::walkers::qcow2::{MapError, WalkScratch};

use super::engine::{Capabilities, Engine, EngineError, OpenDisk};

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

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn begin_run(&mut self) {
        self.scratch.forget();
    }

    fn open<'s>(&'s mut self, chain: &[Layer<'s>]) -> Result<WalkerDisk<'s, O>, EngineError> {
        let disk = qcow2::Disk::open_observed(chain, &self.observer)?;
        Ok(WalkerDisk { disk, scratch: &mut self.scratch })
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &[Layer<'s>],
        index: u32,
    ) -> Result<WalkerDisk<'s, O>, EngineError> {
        let disk = qcow2::Disk::open_observed(chain, &self.observer)?.into_snapshot(index)?;
        Ok(WalkerDisk { disk, scratch: &mut self.scratch })
    }
}

/// An image that our walker has opened.
pub struct WalkerDisk<'s, O: Observer = ()> {
    disk: qcow2::Disk<'s, dyn Storage + 's, &'s O>,
    scratch: &'s mut WalkScratch,
}

impl<O: Observer> OpenDisk for WalkerDisk<'_, O> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        Ok(qcow2::map_extents(&self.disk, window, self.scratch, visitor)?)
    }

    fn lookup(&mut self, guest: GuestOffset) -> Result<Mapping, EngineError> {
        Ok(qcow2::lookup(&self.disk, guest)?)
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        Ok(qcow2::read(&self.disk, guest, into, self.scratch)?)
    }
}

impl From<MapError> for EngineError {
    fn from(error: MapError) -> Self {
        // Valid images cause only the first two, in many runs: neither is boxed.
        match error {
            MapError::Storage { error, .. } => Self::Storage(error),
            MapError::PastEnd { guest, virtual_size } => Self::PastEnd { guest, virtual_size },
            error => Self::Malformed(Box::new(error)),
        }
    }
}
