//! States of a disk: each is a disk that the program has built, with changes.

use std::ops::Range;

use crate::base::ranges::RangeMap;
use crate::harness::model::Model;
use crate::images::unstamped::UnstampedData;
use crate::programs::Journal;

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
    /// A request for this range has failed with a known error. The range may have any bytes, but must be readable.
    Unknown,
}

/// The state of a disk at some moment: a disk that the program has built, with changes.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskState {
    /// The size of the disk in bytes.
    pub(super) size_bytes: u64,
    /// The disk below the changes, by its number in [`BuiltDisks`].
    pub(super) built: usize,
    pub(super) changes: RangeMap<GuestChange>,
    /// The ranges that have changed since the last flush.
    pub(super) unsettled: RangeMap<()>,
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

    /// Notes that the bytes of a range have been written again. Those that nothing has changed are still those of the
    /// built disk, but a writer may have moved them.
    pub(super) fn keep(&mut self, range: Range<u64>) {
        let mut at = range.start;
        while at < range.end {
            let (change, end) = self.changes.at(at);
            let (is_changed, end) = (change.is_some(), end.min(range.end));
            if !is_changed {
                self.changes.insert(at..end, GuestChange::Former);
            }
            at = end;
        }
        self.unsettled.insert(range, ());
    }

    /// Notes a change.
    pub(super) fn change(&mut self, range: Range<u64>, change: GuestChange) {
        self.changes.insert(range.clone(), change);
        self.unsettled.insert(range, ());
    }
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

    /// Returns the disk itself.
    pub(super) fn active(&self) -> &Model {
        &self.models[0]
    }

    /// Returns the disks of all snapshots.
    pub(super) fn snapshots(&self) -> &[Model] {
        &self.models[1..self.live]
    }

    /// Returns the disk below the changes of a state.
    pub(super) fn below(&self, state: &DiskState) -> &Model {
        &self.models[state.built]
    }
}
