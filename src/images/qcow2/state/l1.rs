//! L1 tables: which L2 table maps which part of the disk, and where the L1 table itself lies.

use crate::images::qcow2::tables::TableId;

use super::place::Place;

/// An L1 table, of the active disk or of a snapshot.
#[derive(Debug, Default)]
pub struct L1 {
    /// Where it lies; nowhere for a disk of size 0.
    pub place: Place,
    /// How many entries it has.
    pub entries: u64,
    /// The entries that are not empty, sorted by index.
    pub tables: Vec<(u64, TableId)>,
}

impl L1 {
    /// Forgets everything but the buffer.
    pub fn clear(&mut self) {
        (self.place, self.entries) = ((0, 0), 0);
        self.tables.clear();
    }

    /// The L2 table at `index`.
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

    /// The entries that are not empty, in order.
    pub fn tables(&self) -> &[(u64, TableId)] {
        &self.tables
    }

    /// Becomes an L1 table, as long as `original` and nowhere yet, with the first `kept` entries of
    /// those that are not empty.
    pub fn copy_entries(&mut self, original: &Self, kept: usize) {
        (self.place, self.entries) = ((0, 0), original.entries);
        self.tables.clear();
        self.tables.extend_from_slice(&original.tables[..kept]);
    }

    /// Has the entries of `other` from now on, where it lies.
    pub fn become_entries(&mut self, other: &Self) {
        self.tables.clone_from(&other.tables);
    }
}
