//! The counts on disk.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::layout::Layout;
use crate::formats::qcow2::refcount;
use crate::formats::qcow2::table::HostTable;

use super::{CountedRun, Recount, Role};

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
                if let Some(block) = refcount::block_offset(u64::from_be_bytes(*bytes)) {
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
            refcount::for_each_run(piece, order, |entry, entries, count| {
                recount.count(skipped + entry, entries, count);
            });
            Ok(())
        })
    }

    /// Checks the bound. Callers check it between two tables, because the largest table, a refcount block of 2^24
    /// counts, has only a quarter of the bound.
    pub(super) fn check_bound(&self) -> Result<(), MapError> {
        if self.references.len() > self.bound {
            return Err(MapError::TooLarge("too many references to clusters"));
        }
        if self.bitmap_entries > self.bound {
            return Err(MapError::TooLarge("too many entries of bitmap tables"));
        }
        if self.on_disk.len() > self.bound {
            return Err(MapError::TooLarge("too many runs of refcounts"));
        }
        if self.computed.len() + self.reports.len() > self.bound {
            return Err(MapError::TooLarge("too many clusters that overlap"));
        }
        Ok(())
    }

    #[inline]
    fn count(&mut self, first: u64, clusters: u64, count: u64) {
        let end = first + clusters;
        if let Some(last) = self.on_disk.last_mut()
            && last.end == first
            && last.count == count
        {
            last.end = end;
            return;
        }
        let role = Role::Header;
        self.on_disk.push(CountedRun { first, end, count, role });
    }
}
