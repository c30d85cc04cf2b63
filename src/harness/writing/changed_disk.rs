//! The bytes of a disk as a guest must read them: those of the disk that the program has built, except where a request
//! has changed them.
//!
//! # Arithmetic
//! A disk ends before 2^63, so that no offset on it saturates at 2^64.

use std::ops::Range;

use crate::base::ranges::RangeMap;
use crate::disk::offsets::GuestOffset;
use crate::harness::model::Model;
use crate::harness::oracles::data::{self, InCompressed};
use crate::harness::oracles::written::{ExpectedDisk, LastChange};

use super::pattern::written_bytes;
use super::state::{BuiltDisks, Choice, DiskState, GuestChange};

/// A state of the disk, with the bytes that it must have.
#[derive(Clone, Copy)]
pub(super) struct ChangedDisk<'d> {
    built: &'d BuiltDisks,
    guest: &'d DiskState,
    size_bytes: u64,
    /// The active disk, if this one is a snapshot's.
    active: Option<&'d DiskState>,
    /// There was a cut: ranges that have changed since the last flush may have any bytes.
    is_cut: bool,
    /// The states that a snapshot has replaced since the last flush. After a cut, each byte may come from one of them.
    replaced: &'d [DiskState],
}

impl<'d> ChangedDisk<'d> {
    pub(super) fn new(guest: &'d DiskState, built: &'d BuiltDisks) -> Self {
        let size_bytes = guest.size_bytes;
        Self { built, guest, size_bytes, active: None, is_cut: false, replaced: &[] }
    }

    /// Compares the disk also where requests have changed the active disk: a writer may have changed a cluster that
    /// both share.
    pub(super) fn beside(self, active: &'d DiskState) -> Self {
        Self { active: Some(active), ..self }
    }

    /// Returns the disk as it may be after a cut.
    pub(super) fn after_cut(self) -> Self {
        Self { is_cut: true, ..self }
    }

    /// Returns the disk as it may be after a cut that has left a disk of `size_bytes`. Snapshots have `replaced` states
    /// since the last flush.
    pub(super) fn after_cut_of(self, size_bytes: u64, replaced: &'d [DiskState]) -> Self {
        Self { size_bytes, replaced, ..self.after_cut() }
    }

    /// Returns the disk below the changes.
    fn before(&self) -> &'d Model {
        self.built.below(self.guest)
    }

    /// Fills `expected` with the bytes of the built disk. Those that the guest has read, if it has, decide whether the
    /// build has stamped inner edges.
    pub(super) fn expect_unchanged(
        &self,
        start: GuestOffset,
        actual: Option<&[u8]>,
        expected: &mut [u8],
    ) {
        expected.fill(0);
        let there = self.before().virtual_size_bytes().saturating_sub(start.get());
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(expected.len());
        let old = &mut expected[..there];
        data::expect(self.before(), start, old);
        if let Some(read) = actual.map(|actual| &actual[..there])
            && old != read
        {
            data::admit_inner_stamps(self.before(), start, old, read);
        }
    }

    /// Fills `expected` with the bytes of the disk. Those that the guest has read, if it has, decide whether the build
    /// has stamped inner edges.
    pub(super) fn expect_bytes(
        &self,
        start: GuestOffset,
        actual: Option<&[u8]>,
        expected: &mut [u8],
    ) {
        for_each_part(&self.guest.changes, start, expected.len(), |change, guest, there| {
            let part = &mut expected[there.clone()];
            let actual = actual.map(|actual| &actual[there]);
            self.expect_change(change, GuestOffset::new(guest), actual, part);
        });
    }

    /// Fills `part` with the bytes of a range that has one change.
    fn expect_change(
        &self,
        change: Option<&GuestChange>,
        guest: GuestOffset,
        actual: Option<&[u8]>,
        part: &mut [u8],
    ) {
        match change {
            None | Some(GuestChange::Former) => self.expect_unchanged(guest, actual, part),
            Some(GuestChange::Unknown) if let Some(actual) = actual => {
                part.copy_from_slice(actual);
            }
            Some(GuestChange::Zeroed | GuestChange::Unknown) => part.fill(0),
            Some(GuestChange::Written(write)) => written_bytes(*write, guest.get(), part),
            Some(GuestChange::Unstamped { data, first }) => {
                data.fill(guest.get().saturating_sub(*first), part);
            }
            Some(GuestChange::OneOf(nth)) => {
                if let Some(choice) = self.guest.choice(*nth) {
                    self.expect_one_of(choice, guest, actual, part);
                }
            }
        }
    }

    /// Fills `part` with the first change of a choice, or with another one in each unit that the guest has read so.
    fn expect_one_of(
        &self,
        choice: &Choice,
        guest: GuestOffset,
        actual: Option<&[u8]>,
        part: &mut [u8],
    ) {
        let Some((first, others)) = choice.changes.split_first() else { return };
        self.expect_change(Some(first), guest, actual, part);
        let Some(actual) = actual.filter(|actual| *actual != part) else { return };
        let mut other = vec![0; part.len()];
        for change in others {
            self.expect_change(Some(change), guest, Some(actual), &mut other);
            admit_units(guest, choice.unit_bytes, (actual, &other), part);
        }
        if let Some(before) = &choice.before {
            ChangedDisk { guest: before, ..*self }.expect_bytes(guest, Some(actual), &mut other);
            admit_units(guest, choice.unit_bytes, (actual, &other), part);
        }
    }

    /// Admits bytes of the states that a snapshot has replaced.
    fn admit_replaced(&self, start: GuestOffset, actual: &[u8], expected: &mut [u8]) {
        let mut other = vec![0; expected.len()];
        for state in self.replaced {
            ChangedDisk::new(state, self.built).after_cut().expect(start, actual, &mut other);
            for ((expected, other), actual) in expected.iter_mut().zip(&other).zip(actual) {
                if other == actual {
                    *expected = *actual;
                }
            }
        }
    }
}

/// Fills each unit of `part` that is the same in `actual` and in `other` with these bytes.
fn admit_units(
    guest: GuestOffset,
    unit_bytes: u64,
    (actual, other): (&[u8], &[u8]),
    part: &mut [u8],
) {
    let mut at = 0;
    while at < part.len() {
        let inside = guest.get().saturating_add(at as u64) % unit_bytes;
        let end = (at + (unit_bytes - inside) as usize).min(part.len());
        if other[at..end] == actual[at..end] {
            part[at..end].copy_from_slice(&other[at..end]);
        }
        at = end;
    }
}

/// Calls `visit` with the value of each part of the guest range that begins at `start`, its guest offset, and its place
/// in the range.
fn for_each_part<T: Clone>(
    ranges: &RangeMap<T>,
    start: GuestOffset,
    length: usize,
    mut visit: impl FnMut(Option<&T>, u64, Range<usize>),
) {
    let mut at = 0;
    while at < length {
        let guest = start.get().saturating_add(at as u64);
        let (value, end) = ranges.at(guest);
        let there = usize::try_from(end.saturating_sub(guest)).unwrap_or(usize::MAX);
        let end = at.saturating_add(there).min(length);
        visit(value, guest, at..end);
        at = end;
    }
}

impl ExpectedDisk for ChangedDisk<'_> {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn last_change(&self, guest: u64) -> (LastChange, u64) {
        use GuestChange::{Former, OneOf, Unknown, Unstamped, Written, Zeroed};
        let (change, next) = self.guest.changes.at(guest);
        let change = match change {
            None => LastChange::None,
            Some(Written(_) | Former | Unstamped { .. } | Unknown | OneOf(_)) => {
                LastChange::Written
            }
            Some(Zeroed) => LastChange::Zeroed,
        };
        (change, next)
    }

    fn add_edges(&self, edges: &mut Vec<u64>) {
        edges.extend(self.before().visible().iter().map(|part| part.start));
        let changed = [Some(self.guest), self.active].into_iter().flatten();
        let changed = changed.flat_map(|state| state.changes.iter());
        edges.extend(changed.flat_map(|(range, _)| [range.start, range.end]));
    }

    /// A cluster that a request has changed is no longer compressed; one of a request that failed may be.
    fn in_compressed(&self, guest: u64) -> Option<InCompressed> {
        let cluster_bytes = self.built.cluster_bytes();
        let is_unchanged = || {
            let start = guest / cluster_bytes * cluster_bytes;
            let (change, end) = self.guest.changes.at(start);
            change.is_none() && end - start >= cluster_bytes
        };
        data::in_compressed(self.before(), guest).filter(|_| is_unchanged())
    }

    fn expect(&self, start: GuestOffset, actual: &[u8], expected: &mut [u8]) {
        self.expect_bytes(start, Some(actual), expected);
        if self.is_cut {
            let unsettled = &self.guest.unsettled;
            for_each_part(unsettled, start, expected.len(), |unsettled, _, there| {
                if unsettled.is_some() {
                    expected[there.clone()].copy_from_slice(&actual[there]);
                }
            });
        }
        // An applied snapshot that is not flushed is rare.
        if !self.replaced.is_empty() && expected != actual {
            self.admit_replaced(start, actual, expected);
        }
    }
}
