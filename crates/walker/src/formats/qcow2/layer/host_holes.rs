//! Decides whether the data of an image are looked for in holes of its file. QEMU asks the file system only if the file
//! takes far less space than the refcounts say, because most images have no such holes, and asking takes time.

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::whole_sectors;
use crate::formats::qcow2::entry;

use super::open::Qcow2;

impl<S: Storage + ?Sized> Qcow2<'_, S> {
    /// Decides whether data are looked for in holes of the file (QEMU `block/qcow2-refcount.c`,
    /// `qcow2_detect_metadata_preallocation`). As in QEMU, an error means no.
    pub(super) fn look_for_host_holes(&mut self) {
        let cluster_bytes = self.geometry().cluster_size.bytes();
        self.has_host_holes = self.image.allocated_bytes().is_some_and(|allocated_bytes| {
            let allocated = allocated_bytes / cluster_bytes;
            // More clusters in use than are allocated, by a ninth or by two.
            let enough = (allocated.saturating_mul(10) / 9).max(allocated.saturating_add(2));
            let clusters = whole_sectors(self.image.length_bytes()).div_ceil(cluster_bytes);
            self.uses_clusters(enough, clusters).unwrap_or(false)
        });
    }

    /// Reports whether `enough` of the first clusters of the file, `clusters` of them, have a refcount above 0.
    fn uses_clusters(&self, enough: u64, clusters: u64) -> Result<bool, MapError> {
        let cluster_size = self.geometry().cluster_size;
        let per_block = cluster_size.saturating_bytes(8) >> self.geometry().refcount_order;
        let table_bytes = cluster_size.saturating_bytes(self.header.refcount_table_clusters.into());
        let blocks = clusters.div_ceil(per_block).min(table_bytes / 8);
        let (mut scratch, mut block_scratch) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        let (image, table) = (self.image, self.header.refcount_table_offset);
        let mut used = 0;
        let flow = each_entries(image, table, 0..blocks, &mut scratch, |entries| -> Flow {
            let Entries::Read(first, entries) = entries else {
                return Ok(ControlFlow::Continue(()));
            };
            for (index, entry) in (first..).zip(entries) {
                let Some(block) = entry::refcount_block_offset(u64::from_be_bytes(*entry)) else {
                    continue;
                };
                if !cluster_size.is_aligned(block) {
                    let what = "is not on a cluster boundary";
                    return Err(MapError::RefcountBlock { index, host: block, what });
                }
                let counts = clusters.saturating_sub(index.saturating_mul(per_block));
                let counts = counts.min(per_block);
                used = self.used_in_block(block, counts, enough - used, &mut block_scratch)? + used;
                if used >= enough {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(flow.is_break())
    }

    /// Returns how many of the first `counts` of a refcount block are above 0. Stops at `enough`.
    fn used_in_block(
        &self,
        block: HostOffset,
        counts: u64,
        enough: u64,
        scratch: &mut [u8],
    ) -> Result<u64, MapError> {
        let order = self.geometry().refcount_order;
        let words = (counts << order).div_ceil(64);
        let per_word = 64 >> order;
        let mut used: u64 = 0;
        let _ = each_entries(
            self.image,
            block,
            0..words,
            scratch,
            |entries: Entries<'_, 8>| -> Flow {
                let Entries::Read(first_word, words) = entries else {
                    return Ok(ControlFlow::Continue(()));
                };
                let left = counts.saturating_sub(first_word.saturating_mul(per_word));
                entry::each_refcount_run(words.as_flattened(), order, |first, length, _| {
                    used = used.saturating_add(left.saturating_sub(first).min(length));
                });
                Ok(match used >= enough {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            },
        )?;
        Ok(used)
    }
}
