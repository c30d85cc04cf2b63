//! L1 tables: the L2 tables with their part of the disk, and the location of the L1 table itself.

use crate::images::qcow2::tables::TableId;

use super::place::TablePlace;

/// An L1 table, of the active disk or of a snapshot.
#[derive(Debug, Default)]
pub struct L1 {
    /// The location; empty for a disk of size 0.
    pub place: TablePlace,
    /// The number of entries.
    pub entries: u64,
    /// The entries that are not empty, sorted by index.
    pub tables: Vec<(u64, TableId)>,
}

impl L1 {
    /// Removes everything, and keeps the buffer.
    pub fn clear(&mut self) {
        (self.place, self.entries) = ((0, 0), 0);
        self.tables.clear();
    }

    /// Returns the L2 table at `index`.
    #[inline]
    pub fn get(&self, index: u64) -> Option<TableId> {
        let at = self.tables.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        Some(self.tables[at].1)
    }

    /// Sets the L2 table at `index`.
    pub fn set(&mut self, index: u64, table: TableId) {
        match self.tables.binary_search_by_key(&index, |(index, _)| *index) {
            Ok(at) => self.tables[at].1 = table,
            Err(at) => self.tables.insert(at, (index, table)),
        }
    }

    /// Returns the entries that are not empty, in order.
    pub fn tables(&self) -> &[(u64, TableId)] {
        &self.tables
    }

    /// Becomes a table as long as `original`, without a place. It has the first `kept` of the entries that are not
    /// empty.
    pub fn copy_entries(&mut self, original: &Self, kept: usize) {
        (self.place, self.entries) = ((0, 0), original.entries);
        self.tables.clear();
        self.tables.extend_from_slice(&original.tables[..kept]);
    }

    /// Takes over the entries of `other`, and keeps its own place.
    pub fn become_entries(&mut self, other: &Self) {
        self.tables.clone_from(&other.tables);
    }
}
