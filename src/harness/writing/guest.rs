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
use crate::harness::oracles::POISON;
use crate::harness::oracles::data::GuestRead;
use crate::programs::request::RequestContent;
use crate::programs::{CutKind, WriteRequest};

use super::bitmaps::TrackedBitmaps;
use super::changed_disk::ChangedDisk;
use super::flown::{self, AFTER_ALL, Flown, RequestResult};
use super::pattern::written_bytes;
use super::state::{BuiltDisks, DiskState, GuestChange, SavedDisks};

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

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u32 {
        self.requests
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
            WriteRequest::Write { guest, length_bytes, .. }
            | WriteRequest::Read { guest, length_bytes } => {
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
            | WriteRequest::InFlight(_)
            | WriteRequest::Reopen => true,
        }
    }

    /// Fills `bytes` with those that the `nth` of the next requests writes, counted from 1; with others if it reads.
    pub(super) fn fill(
        &self,
        built: &BuiltDisks,
        (nth, request): (u32, &WriteRequest),
        bytes: &mut Vec<u8>,
    ) {
        let (guest, content) = match *request {
            WriteRequest::Write { guest, length_bytes, content } => {
                bytes.resize(length_bytes as usize, 0);
                (guest, content)
            }
            WriteRequest::Read { length_bytes, .. } => {
                bytes.clear();
                bytes.resize(length_bytes as usize, POISON);
                return;
            }
            _ => return,
        };
        match content {
            RequestContent::Fresh => {
                written_bytes(self.requests.saturating_add(nth), guest.get(), bytes);
            }
            RequestContent::Zeros => bytes.fill(0),
            RequestContent::Same => self.over(built).expect_bytes(guest, None, bytes),
            RequestContent::Former => self.over(built).expect_unchanged(guest, None, bytes),
            RequestContent::Unstamped(data) => data.fill(0, bytes),
        }
    }

    /// Returns the change that the `nth` of the next requests makes, counted from 1; `None` if it changes no bytes, or
    /// writes those that are there.
    pub(super) fn change_of(&self, (nth, request): (u32, &WriteRequest)) -> Option<GuestChange> {
        match *request {
            WriteRequest::Write { guest, content, .. } => match content {
                RequestContent::Fresh => {
                    Some(GuestChange::Written(self.requests.saturating_add(nth)))
                }
                RequestContent::Zeros => Some(GuestChange::Zeroed),
                RequestContent::Same => None,
                RequestContent::Former => Some(GuestChange::Former),
                RequestContent::Unstamped(data) => {
                    Some(GuestChange::Unstamped { data, first: guest.get() })
                }
            },
            WriteRequest::WriteZeroes { .. } | WriteRequest::Discard { .. } => {
                Some(GuestChange::Zeroed)
            }
            _ => None,
        }
    }

    /// Notes a request that the engine has carried out.
    pub(super) fn note(&mut self, request: &WriteRequest) {
        let change = self.change_of((1, request));
        self.requests = self.requests.saturating_add(1);
        let before_bytes = self.now.size_bytes;
        match *request {
            WriteRequest::Write { .. }
            | WriteRequest::WriteZeroes { .. }
            | WriteRequest::Discard { .. } => {
                let Some(range) = request.changed() else { return };
                match change {
                    Some(change) => self.now.change(range, change),
                    None => {
                        self.now.confirm(range.clone());
                        self.now.keep(range);
                    }
                }
            }
            WriteRequest::Resize { size_bytes } => self.resize(size_bytes),
            WriteRequest::TakeSnapshot { number } => self.snapshots.add(number, self.now.clone()),
            WriteRequest::ApplySnapshot { number } => self.apply(number),
            WriteRequest::DeleteSnapshot { number } => self.snapshots.delete(number),
            WriteRequest::Flush => self.settle(),
            WriteRequest::Read { .. }
            | WriteRequest::ChangeBitmap { .. }
            | WriteRequest::Cut { .. }
            | WriteRequest::Crash { .. }
            | WriteRequest::FailFile(_)
            | WriteRequest::Device { .. }
            | WriteRequest::InFlight(_)
            | WriteRequest::Reopen => {}
        }
        self.bitmaps.note(request, before_bytes);
    }

    /// Notes a request that has failed: because a file operation did ([`RequestResult::Torn`]), or with a known
    /// finding.
    pub(super) fn note_failed(&mut self, request: &WriteRequest, result: RequestResult) {
        let change = self.change_of((1, request));
        match (request.changed(), change) {
            // It has written the bytes that were there.
            (Some(range), None) if result == RequestResult::Torn => {
                self.requests = self.requests.saturating_add(1);
                self.now.keep(range);
            }
            _ => {
                let request = *request;
                self.note_in_flight(&[Flown { request, change, begin: 0, end: 1, result }]);
            }
        }
    }

    /// Notes that a range may have any bytes.
    pub(super) fn note_unknown(&mut self, range: Range<u64>) {
        let end = range.end.min(self.now.size_bytes);
        self.now.change(range.start.min(end)..end, GuestChange::Unknown);
    }

    /// Notes requests that were in flight together. A flush covers all that has ended before it begins.
    pub(super) fn note_in_flight(&mut self, flown: &[Flown]) {
        let flushes = flown.iter().filter(|it| it.request == WriteRequest::Flush && it.is_done());
        let flushed = flushes.map(|it| it.begin).max();
        if flushed.is_some() {
            self.settle();
        }
        let is_settled = |it: &Flown| flushed.is_some_and(|begin| it.end < begin);
        flown::apply(&mut self.now, flown, AFTER_ALL, is_settled);
        // A program has few requests.
        self.requests = self.requests.saturating_add(flown.len() as u32);
        let size_bytes = self.now.size_bytes;
        let done = flown.iter().filter(|it| it.is_done());
        done.for_each(|it| self.bitmaps.note(&it.request, size_bytes));
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
        self.over(built).after_cut_of(size_bytes, &self.replaced)
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
