//! The snapshots of an image that an engine writes.

use super::state::{BuiltDisks, DiskState};

/// A snapshot.
#[derive(Clone, Debug)]
struct SavedDisk {
    /// Its number in requests.
    number: u32,
    state: DiskState,
}

/// The snapshots of an image, as the requests have left them.
#[derive(Clone, Debug, Default)]
pub(super) struct SavedDisks {
    /// All snapshots that there were, those of the program first.
    saved: Vec<SavedDisk>,
    /// The number of snapshots of the program.
    built: usize,
    /// The snapshot tables since the last flush, oldest first; the first one is the table at the flush. Entries are
    /// indexes of `saved`.
    tables: Vec<Vec<usize>>,
}

impl SavedDisks {
    /// Begins with the snapshots of the program.
    pub(super) fn begin(&mut self, built: &BuiltDisks) {
        self.saved.clear();
        let states = (1..).zip(built.snapshots()).map(|(index, disk)| DiskState::new(index, disk));
        self.saved.extend((0..).zip(states).map(|(number, state)| SavedDisk { number, state }));
        self.built = self.saved.len();
        self.tables.clear();
        self.tables.push((0..self.saved.len()).collect());
    }

    /// Notes that all snapshots must survive a cut, with all their bytes.
    pub(super) fn settle(&mut self) {
        let last = self.tables.len().saturating_sub(1);
        self.tables.drain(..last);
        for saved in &mut self.saved {
            saved.state.settle();
        }
    }

    /// Returns the states of all snapshots, in the order of their table.
    pub(super) fn states(&self) -> impl Iterator<Item = &DiskState> {
        self.states_of(self.table())
    }

    /// Returns the snapshot tables that a cut may leave, the latest first: the states of their snapshots.
    pub(super) fn after_cut(&self) -> impl Iterator<Item = impl Iterator<Item = &DiskState>> {
        self.tables.iter().rev().map(|table| self.states_of(table))
    }

    /// Returns the snapshots of the program that are still there: the index of each in the table now, and before.
    pub(super) fn kept(&self) -> impl Iterator<Item = (usize, usize)> {
        self.table().iter().copied().enumerate().filter(|(_, before)| *before < self.built)
    }

    /// Reports whether no request has changed the table since the last flush.
    pub(super) fn is_settled(&self) -> bool {
        self.tables.len() == 1
    }

    /// Returns the index of a snapshot in the table.
    pub(super) fn index_of(&self, number: u32) -> Option<u32> {
        let is_it = |index: &usize| self.saved[*index].number == number;
        let index = self.table().iter().position(is_it)?;
        u32::try_from(index).ok()
    }

    /// Returns the disk of a snapshot.
    pub(super) fn state(&self, number: u32) -> Option<&DiskState> {
        let saved = self.saved.iter().find(|saved| saved.number == number)?;
        Some(&saved.state)
    }

    /// Adds a snapshot.
    pub(super) fn add(&mut self, number: u32, state: DiskState) {
        let mut table = self.table().to_vec();
        table.push(self.saved.len());
        self.saved.push(SavedDisk { number, state });
        self.tables.push(table);
    }

    /// Deletes a snapshot. Its disk may come back in a cut.
    pub(super) fn delete(&mut self, number: u32) {
        let mut table = self.table().to_vec();
        table.retain(|index| self.saved[*index].number != number);
        self.tables.push(table);
    }

    fn table(&self) -> &[usize] {
        self.tables.last().map_or(&[], Vec::as_slice)
    }

    fn states_of<'s>(&'s self, table: &'s [usize]) -> impl Iterator<Item = &'s DiskState> {
        table.iter().map(|index| &self.saved[*index].state)
    }
}
