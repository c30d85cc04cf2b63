//! An observer that counts events.

use std::cell::Cell;

use crate::disk::observer::{Event, Observer, Rare, SecondAnswer, State, Vital};

use super::layout::{
    COUNTERS, Counter, delta_index, magnitude, rare_index, reason, second_index, vital_index,
};
use super::states::{edge, place_of};

/// A marker in place of an event's place: the chain is broken, and events make no edge until a chain begins.
const BROKEN: u8 = u8::MAX;

/// The counters of one run. [`Recorder::begin_run`] clears them for the next.
#[derive(Debug)]
pub struct Recorder {
    counters: Box<[Cell<u8>; COUNTERS]>,
    /// The place of the previous event in the list of each state.
    previous: [Cell<u8>; State::COUNT],
    /// The vitals of this image so far, and those of the image before it.
    vitals: [Cell<u64>; Vital::COUNT],
    before: [Cell<u64>; Vital::COUNT],
    images: Cell<u32>,
    /// The sum of [`WORK`] over all images, and one for each 64 bytes that were handled.
    work: Cell<u64>,
    unlisted: Cell<Option<(State, Event)>>,
}

/// The vitals that count the work of a run. A byte counts less than the others: see [`WORK_BYTES`].
const WORK: [Vital; 4] = [Vital::Reads, Vital::Extents, Vital::FileReads, Vital::FileWrites];
/// The number of bytes that are as much work as a read.
const WORK_BYTES: u64 = 64;

impl Recorder {
    /// Creates a recorder whose counters are all 0.
    pub fn new() -> Self {
        Self {
            counters: Box::new([const { Cell::new(0) }; COUNTERS]),
            previous: [const { Cell::new(BROKEN) }; State::COUNT],
            vitals: Default::default(),
            before: Default::default(),
            images: Cell::new(0),
            work: Cell::new(0),
            unlisted: Cell::new(None),
        }
    }

    /// Clears everything for the next run.
    pub fn begin_run(&self) {
        self.counters.iter().for_each(|counter| counter.set(0));
        self.previous.iter().for_each(|previous| previous.set(BROKEN));
        self.vitals.iter().chain(&self.before).for_each(|vital| vital.set(0));
        self.images.set(0);
        self.work.set(0);
        self.unlisted.set(None);
    }

    /// Returns a vital of the last image of the run.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn last_vital(&self, vital: Vital) -> u64 {
        self.before[vital.index()].get()
    }

    /// Returns the work of the run: 1 for each read, each extent, each access to a file by an engine that reports no
    /// events, and each 64 bytes read or otherwise handled, in all images. The work depends on the input alone, and on
    /// no clock.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn work(&self) -> u64 {
        self.work.get()
    }

    /// Returns a counter's value, at most 255.
    pub fn count(&self, counter: Counter) -> u8 {
        counter.index().map_or(0, |index| self.counters[index].get())
    }

    /// Calls `take` with the index and the value of each counter that is not 0, in order.
    pub fn each(&self, mut take: impl FnMut(usize, u8)) {
        for (first, piece) in self.pieces() {
            for (index, count) in (first..).zip(piece.iter().map(Cell::get)) {
                if count != 0 {
                    take(index, count);
                }
            }
        }
    }

    /// Returns the pieces of the counters that are not all 0, with the index of the first counter. In most pieces,
    /// all are 0.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, &[Cell<u8>; 64])> {
        let pieces = self.counters.as_chunks::<64>().0.iter().enumerate();
        pieces
            .filter(|(_, piece)| piece.iter().fold(0, |any, counter| any | counter.get()) != 0)
            .map(|(at, piece)| (at * 64, piece))
    }

    /// Returns the last event of the run that its state does not list. There should be none: such an event makes no
    /// edge, and breaks the chain of its state.
    pub fn unlisted(&self) -> Option<(State, Event)> {
        self.unlisted.get()
    }

    #[inline(always)]
    fn bump(&self, index: usize) {
        let counter = &self.counters[index];
        counter.set(counter.get().saturating_add(1));
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer for Recorder {
    #[inline(always)]
    fn begin(&self, state: State) {
        // The first event of each list is the start.
        self.previous[state.index()].set(0);
    }

    #[inline(always)]
    fn event(&self, state: State, event: Event) {
        let previous = &self.previous[state.index()];
        if previous.get() == BROKEN {
            return;
        }
        let Some(place) = place_of(state, event) else {
            previous.set(BROKEN);
            self.unlisted.set(Some((state, event)));
            return;
        };
        self.bump(edge(state, previous.get(), place));
        previous.set(if event == Event::Failed { BROKEN } else { place });
    }

    #[inline]
    fn rare(&self, rare: Rare) {
        self.bump(rare_index(rare));
    }

    fn handled_bytes(&self, bytes: u64) {
        // A sum that saturates exceeds every limit.
        self.work.set(self.work.get().saturating_add(bytes / WORK_BYTES));
    }

    #[inline]
    fn second(&self, answer: SecondAnswer) {
        self.bump(second_index(answer));
    }

    fn reason(&self, text: &str) {
        if let Some(index) = reason(text).index() {
            self.bump(index);
        }
    }

    #[inline]
    fn vital(&self, vital: Vital, value: u64) {
        let so_far = &self.vitals[vital.index()];
        so_far.set(so_far.get().max(value));
    }

    fn measured(&self) {
        let of = |vital: Vital| self.vitals[vital.index()].get();
        let bytes = of(Vital::ReadBytes) / WORK_BYTES;
        // Work that is held is more than any limit on it.
        let work = WORK.into_iter().map(of).fold(bytes, u64::saturating_add);
        self.work.set(self.work.get().saturating_add(work));
        let later = self.images.replace(self.images.get().saturating_add(1)) > 0;
        for ((vital, value), before) in Vital::ALL.iter().zip(&self.vitals).zip(&self.before) {
            let (vital, value) = (*vital, value.replace(0));
            self.counters[vital_index(vital, magnitude(value))].set(1);
            if later {
                let change = magnitude(value.abs_diff(before.get()));
                self.counters[delta_index(vital, value < before.get(), change)].set(1);
            }
            before.set(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge_count(recorder: &Recorder, previous: Event, event: Event) -> u8 {
        recorder.count(Counter::Edge { state: State::WalkL2, previous, event })
    }

    #[test]
    fn chains_are_of_one_state_and_end_with_an_error() {
        let recorder = Recorder::new();
        recorder.event(State::WalkL2, Event::Piece);
        recorder.begin(State::WalkL2);
        recorder.event(State::WalkL2, Event::Piece);
        recorder.event(State::Emit, Event::Normal);
        recorder.event(State::WalkL2, Event::Normal);
        recorder.event(State::WalkL2, Event::Failed);
        recorder.event(State::WalkL2, Event::Normal);
        let mut seen = Vec::new();
        recorder.each(|index, count| seen.push((Counter::at(index).unwrap().to_string(), count)));
        let expected = ["start → piece", "normal → failed", "piece → normal"];
        let expected = expected.map(|edge| (format!("walk L2: {edge}"), 1));
        assert_eq!(seen, expected);
        recorder.begin_run();
        recorder.each(|index, _| panic!("{index}"));
    }

    #[test]
    fn an_event_that_its_state_does_not_list_breaks_the_chain() {
        let recorder = Recorder::new();
        recorder.begin(State::WalkL2);
        let unlisted = (State::WalkL2, Event::Checkpoint);
        for event in [Event::Piece, unlisted.1, Event::Normal, Event::Normal] {
            recorder.event(State::WalkL2, event);
        }
        let seen = || {
            let mut seen = Vec::new();
            recorder.each(|index, count| seen.push((Counter::at(index), count)));
            seen
        };
        let edge = |previous, event| Counter::Edge { state: State::WalkL2, previous, event };
        let before = (Some(edge(Event::Start, Event::Piece)), 1);
        assert_eq!((seen(), recorder.unlisted()), (vec![before], Some(unlisted)));
        // The next chain has edges again.
        recorder.begin(State::WalkL2);
        recorder.event(State::WalkL2, Event::Normal);
        let after = (Some(edge(Event::Start, Event::Normal)), 1);
        assert_eq!(seen(), vec![after, before]);
        recorder.begin_run();
        assert_eq!(recorder.unlisted(), None);
    }

    #[test]
    fn counts_stop_at_255() {
        let recorder = Recorder::new();
        recorder.begin(State::WalkL2);
        for _ in 0..1000 {
            recorder.event(State::WalkL2, Event::Normal);
        }
        assert_eq!(edge_count(&recorder, Event::Normal, Event::Normal), 255);
        assert_eq!(edge_count(&recorder, Event::Start, Event::Normal), 1);
    }

    #[test]
    fn vitals_are_the_largest_of_an_image_and_change_between_two() {
        let recorder = Recorder::new();
        let vital = Vital::Extents;
        let seen = |magnitude| recorder.count(Counter::Vital { vital, magnitude });
        let changed = |falls, magnitude| recorder.count(Counter::Delta { vital, falls, magnitude });
        recorder.vital(vital, 5);
        recorder.vital(vital, 2);
        recorder.measured();
        assert_eq!((seen(3), seen(2)), (1, 0));
        assert!((0..4).all(|magnitude| changed(true, magnitude) + changed(false, magnitude) == 0));
        recorder.vital(vital, 2);
        recorder.measured();
        assert_eq!((seen(2), changed(true, 2), changed(false, 2)), (1, 1, 0));
        recorder.vital(vital, 5);
        recorder.measured();
        assert_eq!((changed(false, 2), changed(false, 0)), (1, 0));
        recorder.vital(vital, 5);
        recorder.measured();
        assert_eq!((changed(false, 0), changed(true, 0)), (1, 0));
    }
}
