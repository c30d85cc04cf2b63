//! The counts on disk.

use std::ops::ControlFlow;

use crate::qcow2::error::MapError;
use crate::qcow2::header::{Geometry, Header};
use crate::qcow2::refcount;
use crate::qcow2::units::HostOffset;
use crate::storage::{Storage, each_data};

use super::{Counted, Recount, Role};

impl Recount {
    /// Reads the counts on disk, block by block.
    pub(super) fn counts<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        header: &Header,
    ) -> Result<(), MapError> {
        let geometry = &header.geometry;
        let table = header.refcount_table_offset;
        let clusters = u64::from(header.refcount_table_clusters);
        let length = geometry.cluster_size.saturating_bytes(clusters);
        self.reference(geometry, table, length, Role::RefcountTable);
        let range = table..table.saturating_add(length);
        let mut piece = std::mem::take(&mut self.tables[0]);
        let all = each_data(storage, range, &mut piece, |data| {
            let skipped = data.offset.distance_from(table).unwrap_or(0) / 8;
            for (index, bytes) in (skipped..).zip(data.bytes.as_chunks::<8>().0) {
                if let Some(block) = refcount::block_offset(u64::from_be_bytes(*bytes)) {
                    let cluster = geometry.cluster_size.bytes();
                    // One that is not on a cluster boundary takes part of two clusters.
                    self.reference(geometry, block, cluster, Role::RefcountBlock);
                    self.block(storage, geometry, block, index)?;
                    self.check_bound()?;
                }
            }
            Ok(ControlFlow::Continue(()))
        });
        self.tables[0] = piece;
        all.map(|_| ())
    }

    fn block<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        geometry: &Geometry,
        block: HostOffset,
        index: u64,
    ) -> Result<(), MapError> {
        let order = geometry.refcount_order;
        let first = index.saturating_mul(geometry.refcounts_per_block());
        let range = block..block.saturating_add(geometry.cluster_size.bytes());
        let mut piece = std::mem::take(&mut self.tables[1]);
        let all = each_data(storage, range, &mut piece, |data| {
            let skipped = data.offset.distance_from(block).unwrap_or(0);
            let skipped = first.saturating_add((skipped * 8) >> order);
            refcount::for_each_run(data.bytes, order, |entry, entries, count| {
                self.count(skipped.saturating_add(entry), entries, count);
            });
            Ok(ControlFlow::Continue(()))
        });
        self.tables[1] = piece;
        all.map(|_| ())
    }

    /// Between two tables: one alone, a refcount block of 2^24 counts, has a quarter of the bound.
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
        let end = first.saturating_add(clusters);
        if let Some(last) = self.on_disk.last_mut()
            && last.end == first
            && last.count == count
        {
            last.end = end;
            return;
        }
        let role = Role::Header;
        self.on_disk.push(Counted { first, end, count, role });
    }
}
