//! Reads a piece of a cluster.

use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::entry::ClusterKind;
use crate::formats::qcow2::layout::Layout;

use super::inflate::Inflater;
use super::lookup::{check_bitmap, checked_kind, l2_entry, mapping_of, subcluster_mapping};
use super::open::Qcow2;

impl<S: Storage + ?Sized> Qcow2<'_, S> {
    /// Returns the number of guest bytes in a cell. A piece that [`Self::read_piece`] reads ends with its cell.
    #[inline]
    pub(in crate::walkers) fn cell_bytes(&self) -> u64 {
        self.geometry().cell_bytes()
    }

    /// Reads a piece of one cell. Returns false and leaves `into` unchanged if the layer has no data there.
    pub(in crate::walkers) fn read_piece(
        &self,
        guest: GuestOffset,
        into: &mut [u8],
        inflater: &mut Inflater,
    ) -> Result<bool, MapError> {
        let Some((entry, bitmap)) = l2_entry(self, guest)? else { return Ok(false) };
        let geometry = self.geometry();
        let inside = geometry.cluster_size.inside(guest);
        let mapping = match checked_kind(entry, geometry, guest)? {
            ClusterKind::Compressed(run) => {
                let first = geometry.cluster_size.cluster_start(guest);
                let end = inside as usize + into.len();
                let content = inflater
                    .inflate(self.image, geometry, run, end)
                    .map_err(|error| error.at(first))?;
                into.copy_from_slice(&content[inside as usize..]);
                return Ok(true);
            }
            ClusterKind::UnallocatedSubclusters => {
                check_bitmap(bitmap, None, guest)?;
                subcluster_mapping(bitmap, None, (inside >> geometry.cell_bits()) as u32, inside)
            }
            ClusterKind::Subclusters(host) => {
                check_bitmap(bitmap, Some(host), guest)?;
                subcluster_mapping(
                    bitmap,
                    Some(host),
                    (inside >> geometry.cell_bits()) as u32,
                    inside,
                )
            }
            kind => {
                let mapping = mapping_of(kind);
                mapping.advanced(inside).unwrap_or(mapping)
            }
        };
        match mapping.offset.filter(|_| mapping.data) {
            Some(host) => {
                self.data.ok_or(MapError::Missing("external data file"))?.read_at(host, into)?;
            }
            None if mapping.present => into.fill(0),
            None => {}
        }
        Ok(mapping.present)
    }
}
