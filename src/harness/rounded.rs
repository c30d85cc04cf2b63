//! An engine that rounds the size of a disk otherwise than QEMU, as its policy allows: the oracles see the disk in the
//! size that QEMU reports.

use smallvec::SmallVec;

use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;

use super::chain::Chain;
use super::engine::{Engine, EngineError, OpenDisk, pass_on_to_engine};
use super::info::{CheckCounts, ImageInfo};
use super::status::GuestRun;

/// The unit of QEMU's sizes: a sector that is not whole does not count.
const SECTOR_BYTES: u64 = 512;

/// The sizes of the disks of an image in bytes, as the image stores them.
pub(super) struct DiskSizes {
    pub(super) active: u64,
    /// The size of each snapshot's disk.
    pub(super) snapshots: SmallVec<[u64; 8]>,
}

/// An engine whose disks have the sizes that QEMU reports, if they are near them.
pub(super) struct Rounded<'e, E> {
    pub(super) engine: &'e mut E,
    pub(super) sizes: DiskSizes,
}

impl<E: Engine> Engine for Rounded<'_, E> {
    type Disk<'s>
        = RoundedDisk<E::Disk<'s>>
    where
        Self: 's;

    pass_on_to_engine!();

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Result<Self::Disk<'s>, EngineError> {
        Ok(RoundedDisk::new(self.engine.open(chain)?, Some(self.sizes.active)))
    }

    fn open_snapshot<'s>(
        &'s mut self,
        chain: &'s Chain,
        index: u32,
    ) -> Result<Self::Disk<'s>, EngineError> {
        let size = self.sizes.snapshots.get(index as usize).copied();
        Ok(RoundedDisk::new(self.engine.open_snapshot(chain, index)?, size))
    }
}

/// A disk whose size may be cut.
pub(super) struct RoundedDisk<D> {
    disk: D,
    size_bytes: u64,
}

impl<D: OpenDisk> RoundedDisk<D> {
    /// Cuts a disk to whole sectors if it has the size that the image stores, or that size rounded up.
    fn new(disk: D, stored: Option<u64>) -> Self {
        let actual = disk.virtual_size_bytes();
        let rounded_up = |stored: u64| stored.checked_next_multiple_of(SECTOR_BYTES);
        let is_near = |stored: &u64| actual == *stored || Some(actual) == rounded_up(*stored);
        let stored = stored.filter(is_near);
        let size_bytes = stored.map_or(actual, |stored| stored / SECTOR_BYTES * SECTOR_BYTES);
        Self { disk, size_bytes }
    }
}

impl<D: OpenDisk> OpenDisk for RoundedDisk<D> {
    fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        self.disk.read(guest, into)?;
        // The policy excuses the bytes between the two ends. Those past the engine's own end stay as they are.
        let at = |size: u64| {
            let from_guest = size.saturating_sub(guest.get());
            usize::try_from(from_guest).unwrap_or(usize::MAX).min(into.len())
        };
        let excused = at(self.size_bytes)..at(self.disk.virtual_size_bytes());
        if let Some(excused) = into.get_mut(excused) {
            excused.fill(0);
        }
        Ok(())
    }

    fn info(&mut self) -> Result<ImageInfo, EngineError> {
        self.disk.info()
    }

    fn check(&mut self) -> Result<CheckCounts, EngineError> {
        self.disk.check()
    }

    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        if guest.get() >= self.size_bytes {
            return Err(EngineError::PastEnd { guest, virtual_size: self.size_bytes });
        }
        let run = self.disk.status(guest)?;
        // A run that passes the engine's own end is a bug, and the oracle sees it. This disk is no longer than the
        // engine's, so that the byte lies on both.
        let own = self.disk.virtual_size_bytes().saturating_sub(guest.get());
        let cut = if run.length_bytes <= own { self.size_bytes - guest.get() } else { u64::MAX };
        Ok(GuestRun { length_bytes: run.length_bytes.min(cut), ..run })
    }

    fn map(&mut self, window: Window, visitor: &mut impl Visitor) -> Result<(), EngineError> {
        let range = window.clipped(self.size_bytes);
        let length_bytes = range.end.get() - range.start.get();
        self.disk.map(Window { start: range.start, length_bytes }, visitor)
    }
}
