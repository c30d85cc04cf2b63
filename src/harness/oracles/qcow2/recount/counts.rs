//! The counts on disk.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::entry;
use crate::formats::qcow2::entry::Layout;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::table::HostTable;

use super::{Recount, Role};

impl Recount {
    /// Reads the counts on disk, block by block.
    pub(super) fn counts<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let table = HostTable::refcounts(header);
        self.reference(geometry, table.start, table.length_bytes, Role::RefcountTable);
        self.each_piece(storage, table, 0, |recount, skipped, piece| {
            for (index, bytes) in (skipped / 8..).zip(piece.as_chunks::<8>().0) {
                if let Some(block) = entry::refcount_block_offset(u64::from_be_bytes(*bytes)) {
                    let cluster = geometry.cluster_size.bytes();
                    // A block that is not on a cluster boundary takes part of two clusters.
                    recount.reference(geometry, block, cluster, Role::RefcountBlock);
                    recount.block(storage, geometry, block, index)?;
                    recount.check_bound()?;
                }
            }
            Ok(())
        })
    }

    fn block<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        block: HostOffset,
        index: u64,
    ) -> Result<(), MapError> {
        let order = geometry.refcount_order;
        // The refcount table has 2^20 entries at most, and a block 2^24.
        let first = index * geometry.refcounts_per_block();
        let block = HostTable::refcount_block(geometry, block);
        self.each_piece(storage, block, 1, |recount, skipped, piece| {
            let skipped = first + ((skipped * 8) >> order);
            entry::each_refcount_run(piece, order, |entry, entries, count| {
                recount.clusters.count(skipped + entry, entries, count);
            });
            Ok(())
        })
    }

    /// Checks the bound of the references, counts and entries of bitmap tables.
    pub(super) fn check_bound(&self) -> Result<(), MapError> {
        if self.bitmap_entries > self.clusters.bound() {
            return Err(MapError::TooLarge("too many entries of bitmap tables"));
        }
        self.clusters.check_bound()
    }
}
