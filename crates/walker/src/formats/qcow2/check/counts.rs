//! The refcount table: the references to the refcount blocks, and the counts on disk.

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::constants::MAX_FILE_BYTES;
use crate::formats::qcow2::layout::Layout;
use crate::formats::qcow2::refcount;
use crate::formats::qcow2::references::Role;
use crate::formats::qcow2::table::{HostTable, TableEntry};

use super::image_check::ImageCheck;

/// Bits 0–8 of a refcount table entry.
const REFCOUNT_TABLE_RESERVED: u64 = 0x1FF;

/// A refcount block inside the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RefcountBlock {
    /// Its cluster.
    pub(super) cluster: u64,
    /// The index of the entry that names it.
    pub(super) index: u64,
    /// Its reference counts. Otherwise the block lies past the end of the file by a cluster.
    pub(super) is_counted: bool,
}

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Checks the refcount table, and reads the counts on disk. Returns the blocks inside the file.
    ///
    /// The caller has added all other references, which decide where the file ends.
    ///
    /// # Errors
    /// A read fails, or the image is too large.
    pub(super) fn refcount_table(&mut self) -> Result<Vec<RefcountBlock>, MapError> {
        let (storage, table) = (self.storage, HostTable::refcounts(self.header));
        self.reference(table.start, table.length_bytes, Role::RefcountTable);
        let (mut blocks, mut piece) = (Vec::new(), vec![0; PIECE_BYTES]);
        let _ = table.each_entry(storage, &mut vec![0; PIECE_BYTES], |entry| {
            blocks.extend(self.refcount_entry(entry));
            if let Some(block) = refcount::block_offset(entry.word) {
                self.refcount_block(block, entry.index, &mut piece)?;
            }
            self.check_bound()?;
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(blocks)
    }

    /// Checks an entry of the refcount table. Returns its block if it lies inside the file.
    fn refcount_entry(&mut self, entry: TableEntry) -> Option<RefcountBlock> {
        let TableEntry { index, word, .. } = entry;
        let mut fault = |what| {
            self.findings
                .corruption(format_args!("refcount table entry {index} ({word:#x}): {what}"));
            None
        };
        if word & REFCOUNT_TABLE_RESERVED != 0 {
            return fault("reserved bits are set");
        }
        let block = refcount::block_offset(word)?;
        let cluster_size = self.header.geometry.cluster_size;
        if !cluster_size.is_aligned(block) {
            return fault("the refcount block is not on a cluster boundary");
        }
        let cluster = cluster_size.host_cluster(block).get();
        if cluster >= self.end_cluster {
            return fault("the refcount block lies past the end of the file");
        }
        let is_counted = self.reference(block, cluster_size.bytes(), Role::RefcountBlock);
        Some(RefcountBlock { cluster, index, is_counted })
    }

    /// Reads the counts of the block that entry `index` names. QEMU reads the counts of a block even if it does not
    /// count the reference to it.
    fn refcount_block(
        &mut self,
        block: HostOffset,
        index: u64,
        piece: &mut [u8],
    ) -> Result<(), MapError> {
        let geometry = self.geometry();
        let (order, clusters) = (geometry.refcount_order, geometry.refcounts_per_block());
        // The refcount table has 2^20 entries at most, and a block 2^24.
        let first = index * clusters;
        let table = HostTable::refcount_block(geometry, block);
        if self.is_unaligned(block) || table.range().end.get() > MAX_FILE_BYTES {
            self.unreadable.push(first..first + clusters);
            return Ok(());
        }
        let storage = self.storage;
        let _ = table.each_piece(storage, piece, |skipped, bytes| {
            let skipped = first + ((skipped * 8) >> order);
            refcount::for_each_run(bytes, order, |entry, entries, count| {
                self.clusters.count(skipped + entry, entries, count);
            });
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// Returns the count on disk of a cluster, or `None` if it cannot be read.
    pub(super) fn refcount(&self, cluster: u64) -> Option<u64> {
        let next = self.unreadable.partition_point(|clusters| clusters.end <= cluster);
        let is_unreadable =
            self.unreadable.get(next).is_some_and(|clusters| clusters.contains(&cluster));
        (!is_unreadable).then(|| self.clusters.on_disk(cluster))
    }
}
