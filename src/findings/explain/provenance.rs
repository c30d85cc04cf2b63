//! Provenance: which operation of a program mapped the guest bytes of a layer, and which operation wrote the bytes of
//! its file. It follows the journal. An applied snapshot restores the mappings from the time when the program took it,
//! with the operations that made them.

use std::ops::Range;

use crate::base::file_parts::FilePart;
use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::programs::journal::{Journal, Mark};
use crate::programs::{JournalRecord, Placed};

/// The mappings that the operations of a program made in one layer, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Provenance {
    traces: Vec<Trace>,
    /// For each snapshot, whether each trace was in effect when the program took the snapshot. Later traces were not.
    snapshots: Vec<Vec<bool>>,
}

/// A mapping that an operation made.
#[derive(Clone, Debug)]
struct Trace {
    operation: usize,
    guest: Range<u64>,
    host: Option<Range<u64>>,
    /// False if the program applied a snapshot that does not contain the mapping. A later mapping of the same guest
    /// bytes leaves this true: the last mapping in effect counts.
    in_effect: bool,
}

impl Provenance {
    /// Adds the mappings that `operation` appended to the layer's journal after `before`.
    pub(crate) fn follow(&mut self, journal: &Journal, before: Mark, operation: usize) {
        for record in journal.since(before) {
            self.add(&record, journal.cluster_size, operation);
        }
    }

    fn add(&mut self, record: &JournalRecord, cluster_size: ClusterSize, operation: usize) {
        if let Some(Placed { guest, host }) = Placed::of(record, cluster_size) {
            self.traces.push(Trace { operation, guest, host, in_effect: true });
            return;
        }
        match *record {
            JournalRecord::SnapshotTaken => {
                self.snapshots.push(self.traces.iter().map(|trace| trace.in_effect).collect());
            }
            JournalRecord::SnapshotDeleted { index } if index < self.snapshots.len() => {
                self.snapshots.remove(index);
            }
            JournalRecord::SnapshotApplied { index } => {
                let Some(before) = self.snapshots.get(index) else { return };
                let then = before.iter().copied().chain(std::iter::repeat(false));
                for (trace, in_effect) in self.traces.iter_mut().zip(then) {
                    trace.in_effect = in_effect;
                }
            }
            _ => {}
        }
    }

    /// Returns the last operation that mapped some of `guest`. Returns `None` for a range without end: it is the whole
    /// disk, which depends on no single operation.
    pub(crate) fn last_touching(&self, guest: &Range<u64>) -> Option<usize> {
        if guest.end == u64::MAX {
            return None;
        }
        let touching = self.traces.iter().rev().find(|trace| trace.touches(guest));
        touching.map(|trace| trace.operation)
    }

    /// Returns the operations that mapped some of `guest`, in order.
    pub(crate) fn touching(&self, guest: &Range<u64>) -> Vec<usize> {
        self.operations(|trace| trace.touches(guest))
    }

    /// Returns the operations that wrote some of these bytes of the file, in order. An applied snapshot does not change
    /// the result.
    pub(crate) fn lying_in(&self, bytes: &Range<u64>) -> Vec<usize> {
        self.operations(|trace| trace.host.as_ref().is_some_and(|host| meet(host, bytes)))
    }

    /// Returns the ranges of the file that operations wrote.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &Range<u64>> {
        self.traces.iter().filter_map(|trace| trace.host.as_ref())
    }

    /// Returns the provenance of a raw file of this length, in which each byte lies at its guest offset.
    pub(crate) fn in_place(&self, length_bytes: u64) -> Self {
        let place = |trace: &Trace| {
            let host = trace.guest.start..trace.guest.end.min(length_bytes);
            Trace { host: (!host.is_empty()).then_some(host), ..trace.clone() }
        };
        Self { traces: self.traces.iter().map(place).collect(), ..self.clone() }
    }

    /// Returns the provenance of the file that holds a part of the disk.
    pub(crate) fn of_part(&self, part: &FilePart) -> Self {
        let traces = self.traces.iter().filter_map(|trace| {
            let guest = trace.guest.start.max(part.start)..trace.guest.end.min(part.end);
            let skipped =
                guest.start.checked_sub(trace.guest.start).filter(|_| !guest.is_empty())?;
            let start = match part.flat_at {
                // The part begins at or before the bytes.
                Some(first) => Some(first + (guest.start - part.start)),
                None => trace.host.as_ref().map(|host| HostOffset::new(host.start) + skipped),
            };
            let length = guest.end - guest.start;
            let host = start.map(|start| start.get()..(start + length).get());
            Some(Trace { guest, host, ..trace.clone() })
        });
        Self { traces: traces.collect(), snapshots: Vec::new() }
    }

    fn operations(&self, wrote: impl Fn(&Trace) -> bool) -> Vec<usize> {
        let traces = self.traces.iter().filter(|trace| wrote(trace));
        let mut operations: Vec<_> = traces.map(|trace| trace.operation).collect();
        operations.dedup();
        operations
    }
}

impl Trace {
    /// Reports whether the mapping is in effect and maps some of `guest`.
    fn touches(&self, guest: &Range<u64>) -> bool {
        self.in_effect && meet(&self.guest, guest)
    }
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
