//! Our own walker, the first engine under test.

use crate::extent::{Mapping, Visitor, Window};
use crate::map::{self, Scratch};
use crate::qcow2::units::GuestOffset;
use crate::storage::{Layer, Storage};

use super::{Capabilities, Engine, EngineError, OpenDisk};

/// The engine of [`crate::map`].
#[derive(Debug, Default)]
pub struct Walker {
    scratch: Scratch,
}

impl Engine for Walker {
    type Disk<'s> = WalkerDisk<'s>;

    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn open<'s>(&'s mut self, chain: &[Layer<'s>]) -> Result<WalkerDisk<'s>, EngineError> {
        Ok(WalkerDisk { disk: map::Disk::open(chain)?, scratch: &mut self.scratch })
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &[Layer<'s>],
        index: u32,
    ) -> Result<WalkerDisk<'s>, EngineError> {
        let disk = map::Disk::open(chain)?.into_snapshot(index)?;
        Ok(WalkerDisk { disk, scratch: &mut self.scratch })
    }
}

/// An image that our walker has opened.
pub struct WalkerDisk<'s> {
    disk: map::Disk<'s, dyn Storage + 's>,
    scratch: &'s mut Scratch,
}

impl OpenDisk for WalkerDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Result<(), EngineError> {
        Ok(map::map_extents(&self.disk, window, self.scratch, visitor)?)
    }

    fn lookup(&mut self, guest: GuestOffset) -> Result<Mapping, EngineError> {
        Ok(map::lookup(&self.disk, guest)?)
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        Ok(map::read(&self.disk, guest, into, self.scratch)?)
    }
}
