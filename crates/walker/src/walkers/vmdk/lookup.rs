//! Looks up a byte of the disk.

use crate::disk::extent::Mapping;
use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;

use super::extent::{ExtentData, OpenExtent};
use super::open::Vmdk;

impl<'s, S: Storage + ?Sized> Vmdk<'s, S> {
    /// Returns the mapping of a guest byte.
    pub(in crate::walkers) fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        let Some(extent) = self.extent_at(guest) else { return Ok(Mapping::HOLE) };
        let piece = extent.piece_at(guest)?;
        let mapping = extent.mapping_of(piece.grain);
        let inside = guest.saturating_distance_from(piece.start);
        Ok(mapping.advanced(inside).unwrap_or(mapping))
    }

    /// Returns the number of the extent that holds a guest byte, counted from 0.
    pub(in crate::walkers) fn index_at(&self, guest: GuestOffset) -> Option<usize> {
        let index = self.extents.partition_point(|extent| extent.end <= guest);
        (index < self.extents.len()).then_some(index)
    }

    /// Returns the file that holds a guest byte at the host offset of its mapping, if it lies in a flat extent.
    pub(in crate::walkers) fn flat_file_at(&self, guest: GuestOffset) -> Option<&'s S> {
        let extent = self.extent_at(guest)?;
        matches!(extent.data, ExtentData::Flat(_)).then_some(extent.file)
    }

    pub(super) fn extent_at(&self, guest: GuestOffset) -> Option<&OpenExtent<'s, S>> {
        self.extents.get(self.index_at(guest)?)
    }
}
