//! The bytes that a guest must read from a disk that an engine writes: those of the image before, except where a
//! request has changed them.
//!
//! # Arithmetic
//! A disk ends before 2^63, so that no offset on it saturates at 2^64. A length that saturates at 0 is empty.

use std::ops::Range;

use smallvec::SmallVec;

use crate::base::ranges::RangeMap;
use crate::disk::offsets::GuestOffset;
use crate::harness::files::chain::Chain;
use crate::harness::model::Model;
use crate::harness::oracles::data::{self, GuestRead, InCompressed};
use crate::harness::oracles::written::{ExpectedDisk, LastChange};
use crate::programs::request::RequestContent;
use crate::programs::{CutKind, WriteRequest};

use super::bitmaps::TrackedBitmaps;
use super::pattern::written_bytes;
use super::state::{BuiltDisks, DiskState, GuestChange, SavedDisks, TornRequest};

/// The first bytes of a write that show whether a file has it. The bytes of a write occur nowhere else.
const PROOF_BYTES: usize = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct GuestDisk {
    now: DiskState,
    /// The cluster size of the image.
    cluster_bytes: u64,
    /// The sizes since the last flush, oldest first; the first one is the size at the flush.
    sizes: SmallVec<[u64; 2]>,
    /// The states since the last flush that an applied snapshot has replaced.
    replaced: Vec<DiskState>,
    /// The number of requests so far.
    requests: u32,
    /// The number of requests at the last flush.
    settled_requests: u32,
    /// No request has changed the size.
    has_first_size: bool,
    pub(super) snapshots: SavedDisks,
    pub(super) bitmaps: TrackedBitmaps,
}

impl GuestDisk {
    /// Begins with the unchanged disk. `bitmaps` is the image, if it has traces of bitmaps.
    pub(super) fn begin(&mut self, built: &BuiltDisks, bitmaps: Option<Chain>) {
        self.cluster_bytes = built.cluster_bytes();
        self.now = DiskState::new(0, built.active());
        (self.requests, self.has_first_size) = (0, true);
        self.snapshots.begin(built);
        self.bitmaps.begin(bitmaps);
        self.settle();
    }

    /// Notes that all changes must survive a cut.
    pub(super) fn settle(&mut self) {
        self.now.settle();
        self.snapshots.settle();
        self.bitmaps.settle();
        self.settled_requests = self.requests;
        self.replaced.clear();
        self.sizes.clear();
        self.sizes.push(self.now.size_bytes);
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.now.size_bytes
    }

    /// Reports whether the disk can have this size after a cut.
    pub(super) fn may_have_size(&self, size_bytes: u64) -> bool {
        self.sizes.contains(&size_bytes)
    }

    /// Reports whether no request has changed the size.
    pub(super) fn has_first_size(&self) -> bool {
        self.has_first_size
    }

    /// Reports whether the range of a request lies on the disk, and has whole clusters if it must.
    pub(super) fn fits(&self, request: &WriteRequest) -> bool {
        match *request {
            WriteRequest::Write { guest, length_bytes, .. } => {
                (guest + length_bytes.into()).get() <= self.now.size_bytes
            }
            WriteRequest::WriteZeroes { guest, length_bytes } => {
                (guest + length_bytes).get() <= self.now.size_bytes
            }
            WriteRequest::Discard { guest, length_bytes } => {
                let end = (guest + length_bytes).get();
                end == self.now.size_bytes
                    || end < self.now.size_bytes && end.is_multiple_of(self.cluster_bytes)
            }
            WriteRequest::ApplySnapshot { number } | WriteRequest::DeleteSnapshot { number } => {
                self.snapshots.index_of(number).is_some()
            }
            WriteRequest::ChangeBitmap { number, change } => {
                self.bitmaps.index_of(number, change).is_some()
            }
            WriteRequest::Resize { .. }
            | WriteRequest::TakeSnapshot { .. }
            | WriteRequest::Flush
            | WriteRequest::Cut { .. }
            | WriteRequest::Crash { .. }
            | WriteRequest::FailFile(_)
            | WriteRequest::Device { .. }
            | WriteRequest::Reopen => true,
        }
    }

    /// Fills `bytes` with those of the next write, from `guest` on.
    pub(super) fn payload(
        &self,
        built: &BuiltDisks,
        (guest, content): (GuestOffset, RequestContent),
        bytes: &mut [u8],
    ) {
        match content {
            RequestContent::Fresh => {
                written_bytes(self.requests.saturating_add(1), guest.get(), bytes);
            }
            RequestContent::Zeros => bytes.fill(0),
            RequestContent::Same => self.over(built).expect_bytes(guest, None, bytes),
            RequestContent::Former => self.over(built).expect_unchanged(guest, None, bytes),
            RequestContent::Unstamped(data) => data.fill(0, bytes),
        }
    }

    /// Notes a request that the engine has carried out.
    pub(super) fn note(&mut self, request: &WriteRequest) {
        self.requests = self.requests.saturating_add(1);
        let before_bytes = self.now.size_bytes;
        match *request {
            WriteRequest::Write { content, .. } => {
                let range = request.changed();
                range.into_iter().for_each(|range| self.note_write(range, content));
            }
            WriteRequest::WriteZeroes { .. } | WriteRequest::Discard { .. } => {
                let change = GuestChange::Zeroed;
                request.changed().into_iter().for_each(|range| self.now.change(range, change));
            }
            WriteRequest::Resize { size_bytes } => self.resize(size_bytes),
            WriteRequest::TakeSnapshot { number } => self.snapshots.add(number, self.now.clone()),
            WriteRequest::ApplySnapshot { number } => self.apply(number),
            WriteRequest::DeleteSnapshot { number } => self.snapshots.delete(number),
            WriteRequest::Flush => self.settle(),
            WriteRequest::ChangeBitmap { .. }
            | WriteRequest::Cut { .. }
            | WriteRequest::Crash { .. }
            | WriteRequest::FailFile(_)
            | WriteRequest::Device { .. }
            | WriteRequest::Reopen => {}
        }
        self.bitmaps.note(request, before_bytes);
    }

    /// Notes a request that failed, which is a known finding. The range that it was to change may have any bytes.
    pub(super) fn note_failed(&mut self, range: Range<u64>) {
        self.requests = self.requests.saturating_add(1);
        self.now.change(range, GuestChange::Unknown);
    }

    fn note_write(&mut self, range: Range<u64>, content: RequestContent) {
        match self.change_of(&range, content) {
            Some(change) => self.now.change(range, change),
            None => {
                self.now.confirm(range.clone());
                self.now.keep(range);
            }
        }
    }

    /// Returns the change of a range by the last request, a write; `None` if it writes the bytes that are there.
    fn change_of(&self, range: &Range<u64>, content: RequestContent) -> Option<GuestChange> {
        match content {
            RequestContent::Fresh => Some(GuestChange::Written(self.requests)),
            RequestContent::Zeros => Some(GuestChange::Zeroed),
            RequestContent::Same => None,
            RequestContent::Former => Some(GuestChange::Former),
            RequestContent::Unstamped(data) => {
                Some(GuestChange::Unstamped { data, first: range.start })
            }
        }
    }

    /// Notes a write, zeroes or a discard that has failed because a file operation did.
    pub(super) fn note_torn(&mut self, request: &WriteRequest) {
        self.requests = self.requests.saturating_add(1);
        let Some(range) = request.changed() else { return };
        let change = match *request {
            WriteRequest::Write { content, .. } => self.change_of(&range, content),
            _ => Some(GuestChange::Zeroed),
        };
        match change {
            Some(change) => self.now.tear(range, change),
            None => self.now.keep(range),
        }
    }

    /// Notes that the engine has closed the image while file operations failed: only the bytes at the last flush are
    /// certain. Returns false if more than bytes has changed since.
    pub(super) fn note_failed_close(&mut self) -> bool {
        self.now.lose_unsettled();
        self.sizes.len() == 1 && self.replaced.is_empty() && self.snapshots.is_settled()
    }

    /// Notes that the engine goes on with the file that a cut has left, with a disk of `size_bytes`. Bytes that have
    /// changed since the last flush may have any value. Returns false if more than bytes may have changed, or if the
    /// cut has lost a new size, which the program expects.
    pub(super) fn note_crash(&mut self, size_bytes: u64) -> bool {
        let has_bitmaps = self.bitmaps.were_there() || !self.bitmaps.are_settled();
        let has_snapshots_as_before = self.replaced.is_empty() && self.snapshots.is_settled();
        self.now.lose_unsettled();
        self.settle();
        size_bytes == self.now.size_bytes && has_snapshots_as_before && !has_bitmaps
    }

    /// Returns the ranges that have changed since the last flush.
    pub(super) fn unsettled(&self) -> &RangeMap<()> {
        &self.now.unsettled
    }

    /// Reports whether the first bytes of a guest range read back as the last request has written them. A request that
    /// has written the bytes which were there before the last flush proves nothing.
    pub(super) fn has_written(&self, range: &Range<u64>, read: &mut GuestRead) -> bool {
        let (Some(GuestChange::Written(write)), _) = self.now.changes.at(range.start) else {
            return false;
        };
        if *write <= self.settled_requests {
            return false;
        }
        let length = range.end.saturating_sub(range.start).min(PROOF_BYTES as u64) as usize;
        let (mut written, mut actual) = ([0; PROOF_BYTES], [0; PROOF_BYTES]);
        written_bytes(*write, range.start, &mut written[..length]);
        let done = read(GuestOffset::new(range.start), &mut actual[..length]);
        done.is_ok() && length == PROOF_BYTES && written == actual
    }

    /// Gives the disk another size.
    fn resize(&mut self, size_bytes: u64) {
        self.now.resize(size_bytes, self.cluster_bytes);
        self.has_first_size = false;
        self.sizes.push(size_bytes);
    }

    /// Restores the disk from a snapshot. After a cut, each byte may be that of the disk before.
    fn apply(&mut self, number: u32) {
        let Some(mut now) = self.snapshots.state(number).cloned() else { return };
        let (one, other) = (now.size_bytes, self.now.size_bytes);
        now.unsettled.insert(one.min(other)..one.max(other), ());
        self.sizes.push(now.size_bytes);
        self.has_first_size = false;
        self.replaced.push(std::mem::replace(&mut self.now, now));
    }

    pub(super) fn state(&self) -> &DiskState {
        &self.now
    }

    /// Returns the disk as it must be.
    pub(super) fn over<'d>(&'d self, built: &'d BuiltDisks) -> ChangedDisk<'d> {
        ChangedDisk::new(&self.now, built)
    }

    /// Returns the disk as it must be after a cut with `size_bytes`.
    pub(super) fn flushed_over<'d>(
        &'d self,
        built: &'d BuiltDisks,
        size_bytes: u64,
    ) -> ChangedDisk<'d> {
        ChangedDisk { size_bytes, replaced: &self.replaced, ..self.over(built).after_cut() }
    }
}

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

    /// Returns the disk below the changes.
    fn before(&self) -> &'d Model {
        self.built.below(self.guest)
    }

    /// Fills `expected` with the bytes of the built disk. Those that the guest has read, if it has, decide whether the
    /// build has stamped inner edges.
    fn expect_unchanged(&self, start: GuestOffset, actual: Option<&[u8]>, expected: &mut [u8]) {
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
    fn expect_bytes(&self, start: GuestOffset, actual: Option<&[u8]>, expected: &mut [u8]) {
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
            Some(GuestChange::Torn(nth)) => {
                if let Some(torn) = self.guest.torn(*nth) {
                    self.expect_torn(torn, guest, actual, part);
                }
            }
        }
    }

    /// Fills `part` with the new bytes of a request that has failed, or with those from before in each unit that the
    /// guest has read so.
    fn expect_torn(
        &self,
        torn: &TornRequest,
        guest: GuestOffset,
        actual: Option<&[u8]>,
        part: &mut [u8],
    ) {
        self.expect_change(Some(&torn.change), guest, actual, part);
        let Some(actual) = actual else { return };
        let mut old = vec![0; part.len()];
        let before = ChangedDisk { guest: &torn.before, ..*self };
        before.expect_bytes(guest, Some(actual), &mut old);
        let mut at = 0;
        while at < part.len() {
            let inside = guest.get().saturating_add(at as u64) % torn.unit_bytes;
            let end = (at + (torn.unit_bytes - inside) as usize).min(part.len());
            if old[at..end] == actual[at..end] {
                part[at..end].copy_from_slice(&old[at..end]);
            }
            at = end;
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
        use GuestChange::{Former, Torn, Unknown, Unstamped, Written, Zeroed};
        let (change, next) = self.guest.changes.at(guest);
        let change = match change {
            None => LastChange::None,
            Some(Written(_) | Former | Unstamped { .. } | Unknown | Torn(_)) => LastChange::Written,
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

/// The files that a cut could have left, and the disk of the guest at that moment.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) kind: CutKind,
    pub(super) files: Chain,
    pub(super) guest: GuestDisk,
}

/// The end of a session.
#[derive(Debug)]
pub(super) enum SessionEnd {
    /// The engine does not open the image for writing.
    NotOpened,
    /// The engine has closed the image.
    Closed,
    /// The engine has left these files in a crash.
    Crashed(Box<Chain>),
}
