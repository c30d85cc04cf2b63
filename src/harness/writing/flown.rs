//! The disk during and after requests that were in flight together. A byte is a register that they read and write:
//! while nothing orders two requests, each of them may have come first. A request that has ended comes before one that
//! begins later. So a read sees the bytes of a write that has begun before the read ends, unless another write has
//! begun after the end of that one, and has itself ended before the read begins. The disk at the end is such a read.
//!
//! The oracle knows the bytes of each write, so it judges each read alone. It divides the disk at the edges of the
//! requests, and looks at all requests for each part.
//!
//! Nothing promises that a request is one step: two writes in flight may leave sectors of both, and a read may see some
//! sectors of a write only. If all requests cover whole sectors, each sector has the bytes of one of them; otherwise,
//! each byte does.
//!
//! Source of the order of flushes: Linux, `Documentation/block/writeback_cache_control.rst`: a flush covers the writes
//! that have ended before it begins.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::programs::WriteRequest;

use super::state::{Choice, DiskState, GuestChange, SECTOR_BYTES};

/// A request that was in flight.
#[derive(Clone, Debug)]
pub(super) struct Flown {
    pub(super) request: WriteRequest,
    /// The change that it asks for, if it changes bytes.
    pub(super) change: Option<GuestChange>,
    /// The moment at which the engine got it.
    pub(super) begin: usize,
    /// The moment at which it ended.
    pub(super) end: usize,
    pub(super) result: RequestResult,
}

/// The result of a request, in flight or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestResult {
    /// It has succeeded.
    Done,
    /// It has failed because a file operation did: its range has its change in some sectors.
    Torn,
    /// It has failed with a known finding: its range may have any bytes.
    Unknown,
    /// It has changed nothing.
    Nothing,
}

impl Flown {
    /// Reports whether the request has succeeded.
    pub(super) fn is_done(&self) -> bool {
        self.result == RequestResult::Done
    }

    /// Returns the change that the request may have made.
    fn change(&self) -> Option<GuestChange> {
        match self.result {
            RequestResult::Done | RequestResult::Torn => self.change,
            RequestResult::Unknown => Some(GuestChange::Unknown),
            RequestResult::Nothing => None,
        }
    }

    /// Returns the range that the request may have changed.
    pub(super) fn changed(&self) -> Option<Range<u64>> {
        self.request.changed().filter(|range| !range.is_empty() && self.change().is_some())
    }

    /// Reports whether the request may have changed all bytes of a range.
    fn covers(&self, part: &Range<u64>) -> bool {
        self.changed().is_some_and(|range| range.start <= part.start && part.end <= range.end)
    }
}

/// The moments of a read: its begin and its end.
pub(super) type Moments = (usize, usize);
/// A read after all requests.
pub(super) const AFTER_ALL: Moments = (usize::MAX, usize::MAX);

/// Changes `state` to the disk of a read that begins and ends at `moments`. `is_settled` reports whether the change of
/// a request must survive a cut.
pub(super) fn apply(
    state: &mut DiskState,
    flown: &[Flown],
    moments: Moments,
    is_settled: impl Fn(&Flown) -> bool,
) {
    let mut edges: Vec<_> =
        flown.iter().filter_map(Flown::changed).flat_map(|it| [it.start, it.end]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut before = None;
    for part in edges.windows(2).map(|edges| edges[0]..edges[1]) {
        let seen = Seen::of(flown, &part, moments);
        let change = match (&seen.changes[..], seen.has_before) {
            ([], _) => continue,
            ([change], false) => *change,
            (changes, _) if changes.contains(&GuestChange::Unknown) => GuestChange::Unknown,
            _ => {
                let before = seen
                    .has_before
                    .then(|| Arc::clone(before.get_or_insert_with(|| Arc::new(state.clone()))));
                state.choose(Choice { before, changes: seen.changes, unit_bytes: seen.unit_bytes })
            }
        };
        let all_settled = flown.iter().filter(|it| it.covers(&part)).all(&is_settled);
        match all_settled {
            true => state.changes.insert(part, change),
            false => state.change(part, change),
        }
    }
}

/// The changes that a read may see in a part of the disk.
struct Seen {
    changes: SmallVec<[GuestChange; 2]>,
    /// It may see the bytes from before.
    has_before: bool,
    unit_bytes: u64,
}

impl Seen {
    fn of(flown: &[Flown], part: &Range<u64>, (begin, end): Moments) -> Self {
        let covering = || flown.iter().filter(|it| it.covers(part));
        // The writes that have ended before the read begins.
        let earlier = || covering().filter(|it| it.is_done() && it.end < begin);
        let visible = covering()
            .filter(|one| one.begin < end && !earlier().any(|other| other.begin > one.end));
        let visible: SmallVec<[&Flown; 4]> = visible.collect();
        let is_whole = |it: &&Flown| {
            it.changed().is_some_and(|range| {
                range.start.is_multiple_of(SECTOR_BYTES) && range.end.is_multiple_of(SECTOR_BYTES)
            })
        };
        let unit_bytes = if visible.iter().all(is_whole) { SECTOR_BYTES } else { 1 };
        let changes = visible.iter().filter_map(|it| it.change()).collect();
        Self { changes, has_before: earlier().next().is_none(), unit_bytes }
    }
}
