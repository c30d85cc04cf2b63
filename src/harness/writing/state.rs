//! States of a disk: each is a disk that the program has built, with changes. The active disk has one, and so has each
//! snapshot, as the requests have left it.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::base::ranges::RangeMap;
use crate::harness::files::device::Device;
use crate::harness::model::Model;
use crate::images::content::unstamped::UnstampedData;
use crate::programs::{Journal, WriteRequest};

/// The unit of QEMU's sizes, and of a device.
pub(super) const SECTOR_BYTES: u64 = 512;

/// A change of guest bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuestChange {
    /// The request with this number, from 1, has written it.
    Written(u32),
    /// The range reads as zeros.
    Zeroed,
    /// The range has the bytes of the built disk again, or still.
    Former,
    /// A request has written data without stamps.
    Unstamped {
        /// The data.
        data: UnstampedData,
        /// The guest offset of their first byte.
        first: u64,
    },
    /// The range may have any bytes, but must be readable: a request for it has failed with a known error, or no
    /// specification defines its bytes.
    Unknown,
    /// Each part has the bytes of one of several requests, or those from before: requests that were in flight
    /// together, or one that has failed because a file operation did. The number is that of the [`Choice`].
    OneOf(u32),
}

/// The state of a disk at some moment: a disk that the program has built, with changes.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskState {
    pub(super) size_bytes: u64,
    /// The disk below the changes, by its number in [`BuiltDisks`].
    pub(super) built: usize,
    pub(super) changes: RangeMap<GuestChange>,
    /// The ranges that have changed since the last flush.
    pub(super) unsettled: RangeMap<()>,
    /// The bytes behind the end of the disk that a shrinking disk has left in its last cluster.
    cut_off: Range<u64>,
    choices: Vec<Arc<Choice>>,
}

/// The changes of which a range has one in each unit.
#[derive(Debug)]
pub(super) struct Choice {
    /// The disk before, if units may have its bytes.
    pub(super) before: Option<Arc<DiskState>>,
    /// The changes: at least one.
    pub(super) changes: SmallVec<[GuestChange; 2]>,
    /// The unit in bytes: a sector, or a byte if the requests have no whole sectors. A device writes whole sectors, and
    /// nothing promises that a writer keeps the parts of one together.
    pub(super) unit_bytes: u64,
}

impl DiskState {
    /// Returns the state of the built disk with this number, without changes.
    pub(super) fn new(built: usize, disk: &Model) -> Self {
        Self { size_bytes: disk.virtual_size_bytes(), built, ..Self::default() }
    }

    /// Notes that all changes must survive a cut.
    pub(super) fn settle(&mut self) {
        self.unsettled.clear();
    }

    /// Notes that a request has written the bytes of a range again, or has failed to do so. Those that nothing has
    /// changed are still those of the built disk, but a writer may have moved them.
    pub(super) fn keep(&mut self, range: Range<u64>) {
        self.replace(range.clone(), |_, change| change.is_none().then_some(GuestChange::Former));
        self.unsettled.insert(range, ());
    }

    /// Notes that a request has written the expected bytes of choices in a range again.
    pub(super) fn confirm(&mut self, range: Range<u64>) {
        self.replace(range, |state, change| match change {
            Some(GuestChange::OneOf(nth)) => state.choice(nth)?.changes.first().copied(),
            _ => None,
        });
    }

    /// Gives each part of a range the change that `change_of` returns for its present one, if it returns one.
    fn replace(
        &mut self,
        range: Range<u64>,
        change_of: impl Fn(&Self, Option<GuestChange>) -> Option<GuestChange>,
    ) {
        let mut at = range.start;
        while at < range.end {
            let (change, end) = self.changes.at(at);
            let (change, end) = (change.copied(), end.min(range.end));
            if let Some(new) = change_of(self, change) {
                self.changes.insert(at..end, new);
            }
            at = end;
        }
    }

    /// Gives the disk another size. Bytes that come back later are zeros, except for those of the last cluster: the
    /// writer need not clear them when the disk shrinks, and QEMU does not (`block/qcow2.c`, `qcow2_co_truncate`,
    /// discards whole clusters). No specification says what a guest reads there when the disk grows again.
    pub(super) fn resize(&mut self, size_bytes: u64, cluster_bytes: u64) {
        let before = self.size_bytes;
        self.size_bytes = size_bytes;
        self.change(size_bytes.min(before)..size_bytes.max(before), GuestChange::Zeroed);
        if size_bytes < before {
            // A disk ends before 2^63.
            let of_cluster = size_bytes.next_multiple_of(cluster_bytes);
            let end = before.max(self.cut_off.end).min(of_cluster);
            self.cut_off = size_bytes..end;
        } else {
            let shown = self.cut_off.start..self.cut_off.end.min(size_bytes);
            if !shown.is_empty() {
                self.change(shown, GuestChange::Unknown);
            }
            self.cut_off.start = size_bytes;
        }
    }

    /// Adds a choice, and returns the change that stands for it.
    pub(super) fn choose(&mut self, choice: Choice) -> GuestChange {
        // A program has few requests.
        let nth = self.choices.len() as u32;
        self.choices.push(Arc::new(choice));
        GuestChange::OneOf(nth)
    }

    /// Returns a choice.
    pub(super) fn choice(&self, nth: u32) -> Option<&Choice> {
        self.choices.get(nth as usize).map(|choice| &**choice)
    }

    /// Notes that no one knows which of the bytes that have changed since the last flush are there.
    pub(super) fn lose_unsettled(&mut self) {
        let ranges: Vec<_> = self.unsettled.iter().map(|(range, ())| range).collect();
        ranges.into_iter().for_each(|range| self.changes.insert(range, GuestChange::Unknown));
    }

    /// Notes a change.
    pub(super) fn change(&mut self, range: Range<u64>, change: GuestChange) {
        self.changes.insert(range.clone(), change);
        self.unsettled.insert(range, ());
    }
}

/// The operations that have failed so far, the crashes, and what follows from them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MetFaults {
    /// The number of operations that had failed when the image was opened.
    pub(super) before: u32,
    /// An operation has failed since then.
    pub(super) in_session: bool,
    /// An operation has failed since the beginning, or the engine has crashed: clusters may be leaked.
    pub(super) may_leak: bool,
    /// The engine goes on with a file that a cut has left.
    pub(super) has_crashed: bool,
    /// Nothing is known about the disk any more.
    pub(super) is_lost: bool,
}

/// The disks that the program has built: the disk itself, and those of its snapshots in the order of their table.
#[derive(Debug, Default)]
pub(super) struct BuiltDisks {
    /// Spare ones follow the last one in use.
    models: Vec<Model>,
    live: usize,
    cluster_bytes: u64,
}

impl BuiltDisks {
    /// Replays the journals of all layers, from the top down.
    pub(super) fn replay<'j>(&mut self, journals: impl Iterator<Item = &'j Journal> + Clone) {
        self.live = 1;
        self.cluster_bytes = journals.clone().next().map_or(1, |top| top.cluster_size.bytes());
        self.replay_at(0, journals.clone());
        self.live = self.active().snapshot_count() + 1;
        for index in 1..self.live {
            self.replay_at(index, journals.clone());
            self.models[index].become_snapshot(index - 1);
        }
    }

    fn replay_at<'j>(&mut self, index: usize, journals: impl Iterator<Item = &'j Journal>) {
        if index == self.models.len() {
            self.models.push(Model::new());
        }
        self.models[index].replay(journals);
    }

    /// Returns the cluster size of the image.
    pub(super) fn cluster_bytes(&self) -> u64 {
        self.cluster_bytes
    }

    /// Returns the device on which these requests lay the image, if they do.
    pub(super) fn device(&self, requests: &[WriteRequest]) -> Option<Device> {
        let WriteRequest::Device { spare_clusters, old } = *requests.first()? else {
            return None;
        };
        Some(Device { spare_clusters, old, cluster_bytes: self.cluster_bytes })
    }

    /// Returns the disk itself.
    pub(super) fn active(&self) -> &Model {
        &self.models[0]
    }

    pub(super) fn snapshots(&self) -> &[Model] {
        &self.models[1..self.live]
    }

    /// Returns the disk below the changes of a state.
    pub(super) fn below(&self, state: &DiskState) -> &Model {
        &self.models[state.built]
    }
}

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

/// Returns the whole clusters that a range touches.
pub(super) fn whole_clusters(range: &Range<u64>, cluster_bytes: u64) -> Range<u64> {
    let end = range.end.div_ceil(cluster_bytes).saturating_mul(cluster_bytes);
    range.start / cluster_bytes * cluster_bytes..end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ranges that may be anything after the disk had these sizes, and those that must be zeros, as texts.
    fn unknown(sizes: &[u64]) -> (String, String) {
        const CLUSTER_BYTES: u64 = 4096;
        let mut state = DiskState { size_bytes: sizes[0], ..DiskState::default() };
        sizes[1..].iter().for_each(|size| state.resize(*size, CLUSTER_BYTES));
        let of = |wanted| {
            let there = state
                .changes
                .iter()
                .filter(|(range, change)| *change == &wanted && range.start < state.size_bytes);
            let texts = there
                .map(|(range, _)| format!("{}..{}", range.start, range.end.min(state.size_bytes)));
            texts.collect::<Vec<_>>().join(" ")
        };
        (of(GuestChange::Unknown), of(GuestChange::Zeroed))
    }

    #[test]
    fn a_disk_that_grows_again_may_show_the_end_of_its_last_cluster() {
        let expect = |sizes: &[u64], any: &str, zeros: &str| {
            assert_eq!(unknown(sizes), (any.to_string(), zeros.to_string()), "{sizes:?}");
        };
        expect(&[8192, 1024, 8192], "1024..4096", "4096..8192");
        expect(&[8192, 1024, 2048, 8192], "1024..2048 2048..4096", "4096..8192");
        expect(&[8192, 2048, 1024, 8192], "1024..4096", "4096..8192");
        // The old end lies in the same cluster.
        expect(&[3072, 1024, 8192], "1024..3072", "3072..8192");
        // Nothing is cut off.
        expect(&[8192, 4096, 8192], "", "4096..8192");
        expect(&[1024, 8192], "", "1024..8192");
    }
}
