//! Reads guest data.

use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::vmdk::grain::Grain;
use crate::formats::vmdk::tables::{GrainKind, Tables};

use super::extent::ExtentData;
use super::inflate::{StoredGrain, ZlibInflater};
use super::open::Vmdk;

impl<S: Storage + ?Sized> Vmdk<'_, S> {
    /// Returns the number of bytes from `guest` on that [`Self::read_piece`] can read at once; at least 1.
    pub(in crate::walkers) fn piece_bytes(&self, guest: GuestOffset) -> u64 {
        let end = self.extent_at(guest).map(|extent| extent.end_of_piece(guest));
        end.map_or(u64::MAX, |end| end.saturating_distance_from(guest)).max(1)
    }

    /// Reads a part of one piece. Returns false and leaves `into` unchanged if the layer has no data there.
    pub(in crate::walkers) fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        inflater: &mut ZlibInflater,
    ) -> Result<bool, MapError> {
        let Some(extent) = self.extent_at(guest) else { return Ok(false) };
        let piece = extent.piece_at(guest)?;
        let inside = guest.saturating_distance_from(piece.start);
        let host = match piece.grain {
            Grain::Unallocated => return Ok(false),
            Grain::Zero => {
                into.fill(0);
                return Ok(true);
            }
            Grain::At(host) => host,
        };
        match extent.data {
            ExtentData::Sparse(Tables { kind: GrainKind::Compressed { has_marker }, .. }) => {
                let bytes = piece.end.saturating_distance_from(piece.start);
                let stored = StoredGrain { offset: host, has_marker, bytes };
                let inflated = inflater.inflate(extent.file, stored, inside, into);
                inflated.map_err(|error| error.at(piece.start))?;
            }
            _ => extent.file.read_at(host + inside, into)?,
        }
        Ok(true)
    }
}
