//! Layers of guest data alone: every byte lies at its guest offset.

use std::ops::ControlFlow;

use crate::disk::extent::Mapping;
use crate::disk::observer::{Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::error::{Flow, MapError};

use super::cover::{Cover, go_on, in_place};

/// A layer that holds only guest data.
#[derive(Debug)]
pub(super) struct Raw<'s, S: Storage + ?Sized> {
    pub(super) image: &'s S,
}

impl<S: Storage + ?Sized> Raw<'_, S> {
    /// Returns the size in bytes. QEMU counts whole sectors (`block.c`, `bdrv_getlength`) and fills the last one with
    /// zeros.
    pub(super) fn size_bytes(&self) -> u64 {
        whole_sectors(self.image.length_bytes())
    }

    /// Walks the window: data, and holes of the file.
    pub(super) fn walk(&self, cover: &mut impl Cover) -> Flow {
        while cover.position() < cover.end() {
            go_on!(cover.step());
            let position = cover.position();
            let from = in_place(position);
            let stored = self.image.stored(from, in_place(cover.end()))?;
            // The walk must end, so each step covers at least one byte, for any answer of the storage. The position
            // lies before the end of the window, so that one byte more fits into 64 bits.
            let end = GuestOffset::new(stored.end.get());
            let end = end.clamp(position + 1, cover.end());
            let mapping = mapping(from, stored.stored);
            cover.observer().event(State::WalkL1, mapping.event());
            go_on!(cover.put(end, mapping));
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the mapping of a guest byte.
    pub(super) fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        let from = in_place(guest);
        Ok(mapping(from, self.image.stored(from, from + 1)?.stored))
    }

    /// Fills `into` with the guest's bytes from `guest` on.
    pub(super) fn read(&self, guest: GuestOffset, into: &mut [u8]) -> Result<(), MapError> {
        Ok(self.image.read_at(in_place(guest), into)?)
    }
}

/// Returns the mapping of a byte: data, or a hole of the file.
fn mapping(host: HostOffset, stored: bool) -> Mapping {
    let there = Mapping { present: true, zero: !stored, data: stored, ..Mapping::HOLE };
    Mapping { offset: Some(host), ..there }
}

/// Returns the length of a file as QEMU sees it: whole sectors.
pub(super) fn whole_sectors(length_bytes: u64) -> u64 {
    length_bytes.checked_next_multiple_of(512).unwrap_or(!511)
}
