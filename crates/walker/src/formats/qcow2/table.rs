//! The tables of an image: where each of them lies, and its entries. Code that looks at a whole image reads its tables
//! with this module: the anatomy, the check of qcow2 images and the recount. They differ in the order of the tables, in
//! how often they look at a shared table and in what they make of an entry, so each follows the references by itself.
//!
//! The walks of the walker do not use this module. They are the code under test, so the recount must not share their
//! way through the tables. The walker's check of qcow2 images uses it: the oracle `info` judges its result by the
//! program, and not by the recount.
//!
//! # Arithmetic
//! An entry of a damaged table may name any offset. A table that passes 2^64 ends there, because no file has bytes
//! behind that. A storage returns data from the range that it is asked for, so that none lie before their table.

use std::ops::{ControlFlow, Range};

use super::bitmap::BitmapEntry;
use super::entry::Layout;
use super::geometry::Geometry;
use super::header::Header;
use super::snapshot::SnapshotEntry;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{GRAIN_BYTES, Storage, each_data};
use crate::formats::error::Flow;

/// A table, or a refcount block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostTable {
    /// The host offset of the first entry.
    pub start: HostOffset,
    /// The length in bytes.
    pub length_bytes: u64,
    /// The length of one entry: 8 bytes, or 16 in an extended L2 table.
    pub entry_bytes: u64,
}

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// The host offset of the directory.
    pub at: HostOffset,
    /// The index in the table.
    pub index: u64,
    /// The first eight bytes.
    pub word: u64,
    /// The eight bytes behind them; `None` if entries have eight bytes.
    pub second: Option<u64>,
}

impl HostTable {
    fn of_words(start: HostOffset, entries: u32) -> Self {
        Self { start, length_bytes: u64::from(entries) * 8, entry_bytes: 8 }
    }

    /// Returns the L1 table of the active disk.
    pub fn active_l1(header: &Header) -> Self {
        Self::of_words(header.l1_offset, header.l1_entries)
    }

    /// Returns the L1 table of a snapshot.
    pub fn snapshot_l1(entry: &SnapshotEntry) -> Self {
        Self::of_words(entry.l1_offset, entry.l1_entries)
    }

    /// Returns the table of a bitmap.
    pub fn bitmap(entry: &BitmapEntry) -> Self {
        Self::of_words(entry.table_offset, entry.table_entries)
    }

    /// Returns the L2 table at `start`.
    pub fn l2(geometry: &Geometry, start: HostOffset) -> Self {
        let (length_bytes, entry_bytes) =
            (geometry.cluster_size.bytes(), geometry.l2_entry_bytes());
        Self { start, length_bytes, entry_bytes }
    }

    /// The refcount table.
    pub fn refcounts(header: &Header) -> Self {
        let clusters = u64::from(header.refcount_table_clusters);
        let length_bytes = header.geometry.cluster_size.saturating_bytes(clusters);
        Self { start: header.refcount_table_offset, length_bytes, entry_bytes: 8 }
    }

    /// Returns the refcount block at `start`. Its entries, the counts, may be shorter than a byte;
    /// [`HostTable::each_piece`] reads them.
    pub fn refcount_block(geometry: &Geometry, start: HostOffset) -> Self {
        Self { start, length_bytes: geometry.cluster_size.bytes(), entry_bytes: 8 }
    }

    /// Returns the host offsets of its bytes.
    pub fn range(&self) -> Range<HostOffset> {
        self.start..self.start + self.length_bytes
    }

    /// Calls `take` with each piece of the table that is not a hole, and the number of bytes before it. If the length
    /// is no multiple of [`GRAIN_BYTES`], the last piece includes bytes behind the table.
    ///
    /// # Errors
    /// A read fails, or `take` breaks with an error.
    #[inline]
    pub fn each_piece<S: Storage + ?Sized>(
        &self,
        storage: &S,
        scratch: &mut [u8],
        mut take: impl FnMut(u64, &[u8]) -> Flow,
    ) -> Flow {
        let length_bytes = self.length_bytes.next_multiple_of(GRAIN_BYTES);
        let range = self.start..self.start + length_bytes;
        each_data(storage, range, scratch, |data| {
            take(data.offset.distance_from(self.start).unwrap_or(0), data.bytes)
        })
    }

    /// Calls `take` with each entry that has a bit set.
    ///
    /// # Errors
    /// A read fails, or `take` breaks with an error.
    pub fn each_entry<S: Storage + ?Sized>(
        &self,
        storage: &S,
        scratch: &mut [u8],
        mut take: impl FnMut(TableEntry) -> Flow,
    ) -> Flow {
        let entries = self.length_bytes / self.entry_bytes;
        self.each_piece(storage, scratch, |skipped, bytes| {
            let pieces = bytes.chunks_exact(self.entry_bytes as usize);
            for (index, bytes) in (skipped / self.entry_bytes..entries).zip(pieces) {
                let mut words = bytes.as_chunks::<8>().0.iter().map(|it| u64::from_be_bytes(*it));
                let Some(word) = words.next() else { break };
                let second = words.next();
                if word != 0 || second.is_some_and(|word| word != 0) {
                    let at = self.start + index * self.entry_bytes;
                    if take(TableEntry { at, index, word, second })?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(bytes: &[u8], table: HostTable) -> Vec<(u64, u64, Option<u64>)> {
        let mut found = Vec::new();
        let flow = table.each_entry(bytes, &mut [0; 32], |entry| {
            assert_eq!(entry.at, table.start + entry.index * table.entry_bytes);
            found.push((entry.index, entry.word, entry.second));
            Ok(ControlFlow::Continue(()))
        });
        assert_eq!(flow, Ok(ControlFlow::Continue(())));
        found
    }

    #[test]
    fn entries_are_those_of_the_table_and_not_zero() {
        let bytes: Vec<u8> =
            [0u64, 0, 7, 0, 0, 9, 11, 13].iter().flat_map(|it| it.to_be_bytes()).collect();
        let start = HostOffset::new(16);
        let short = HostTable { start, length_bytes: 40, entry_bytes: 8 };
        // The word behind the table is read with it, and is no entry.
        assert_eq!(entries(&bytes, short), [(0, 7, None), (3, 9, None), (4, 11, None)]);
        let wide = HostTable { start, length_bytes: 48, entry_bytes: 16 };
        let found = [(0, 7, Some(0)), (1, 0, Some(9)), (2, 11, Some(13))];
        assert_eq!(entries(&bytes, wide), found);
        assert_eq!(wide.range(), start..HostOffset::new(64));
    }

    #[test]
    fn a_table_past_2_to_the_64_ends_there() {
        let start = HostOffset::new(u64::MAX - 7);
        let table = HostTable { start, length_bytes: 1 << 20, entry_bytes: 8 };
        assert_eq!(table.range().end, HostOffset::new(u64::MAX));
        assert_eq!(entries(&[1; 64], table), []);
    }
}
