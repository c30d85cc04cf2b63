//! An engine that rounds the size of a disk otherwise than QEMU, as its policy allows: the oracles see the disk in the
//! size that QEMU reports.

use smallvec::SmallVec;

use crate::disk::extent::{Visitor, Window};
use crate::disk::offsets::GuestOffset;

use super::chain::Chain;
use super::engine::{Engine, EngineError, OpenDisk};
use super::status::GuestRun;

/// The number of bytes by which a size may exceed QEMU's, which counts whole sectors only: the rest of a sector.
const SECTOR_BYTES: u64 = 512;

/// The sizes of the disks of an image in bytes, as QEMU counts them.
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

    fn name(&self) -> &str {
        self.engine.name()
    }

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
    /// Cuts a disk that is up to a sector longer than `expected`.
    fn new(disk: D, expected: Option<u64>) -> Self {
        let actual = disk.virtual_size_bytes();
        let is_near = |expected: &u64| (0..=SECTOR_BYTES).contains(&actual.wrapping_sub(*expected));
        let size_bytes = expected.filter(is_near).unwrap_or(actual);
        Self { disk, size_bytes }
    }

    fn refuse_past_end(&self, guest: GuestOffset, length_bytes: u64) -> Result<(), EngineError> {
        let end = guest.checked_add(length_bytes);
        match end.is_some_and(|end| end.get() <= self.size_bytes) {
            true => Ok(()),
            false => Err(EngineError::PastEnd { guest, virtual_size: self.size_bytes }),
        }
    }
}

impl<D: OpenDisk> OpenDisk for RoundedDisk<D> {
    fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Result<(), EngineError> {
        self.refuse_past_end(guest, into.len() as u64)?;
        self.disk.read(guest, into)
    }

    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        self.refuse_past_end(guest, 1)?;
        let run = self.disk.status(guest)?;
        Ok(GuestRun { length_bytes: run.length_bytes.min(self.size_bytes - guest.get()), ..run })
    }

    fn map(&mut self, window: Window, visitor: &mut impl Visitor) -> Result<(), EngineError> {
        let range = window.clipped(self.size_bytes);
        let length_bytes = range.end.get() - range.start.get();
        self.disk.map(Window { start: range.start, length_bytes }, visitor)
    }
}
