//! The attribution of edges to walks. Reports use it. The counters do not contain it, because a fuzzer could not
//! clear that many counters in a microsecond.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::disk::observer::{Event, Observer, Rare, SecondAnswer, State, Vital, WindowClass};

use super::{Counter, Recorder};

/// A recorder that also records, for each edge of the walker, the first walk that made it.
#[derive(Debug, Default)]
pub struct Attributed {
    recorder: Recorder,
    /// The latest walk of this image.
    walk: Cell<Option<WalkId>>,
    walks: RefCell<BTreeMap<Counter, BTreeSet<WalkId>>>,
}

/// A walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WalkId {
    /// The number of earlier walks of the same image.
    pub ordinal: u32,
    /// The part of the disk that the walk covers.
    pub window: WindowClass,
}

impl Attributed {
    /// Returns the first walk of an image in which an edge was made; of several images, the earliest such walk.
    /// Returns `None` for an edge that no walk makes.
    pub fn first_walk(&self, edge: Counter) -> Option<WalkId> {
        self.walks.borrow().get(&edge)?.first().copied()
    }
}

impl Observer for Attributed {
    fn begin(&self, state: State) {
        self.recorder.begin(state);
    }

    fn event(&self, state: State, event: Event) {
        let edge = self.recorder.count_event(state, event).and_then(Counter::at);
        if let (true, Some(edge), Some(walk)) = (state.is_walk(), edge, self.walk.get()) {
            self.walks.borrow_mut().entry(edge).or_default().insert(walk);
        }
    }

    fn rare(&self, rare: Rare) {
        self.recorder.rare(rare);
    }

    fn vital(&self, vital: Vital, value: u64) {
        self.recorder.vital(vital, value);
    }

    fn handled_bytes(&self, bytes: u64) {
        self.recorder.handled_bytes(bytes);
    }

    fn second(&self, answer: SecondAnswer) {
        self.recorder.second(answer);
    }

    fn reason(&self, text: &str) {
        self.recorder.reason(text);
    }

    fn measured(&self) {
        self.recorder.measured();
        self.walk.set(None);
    }

    fn walk(&self, window: WindowClass) {
        let ordinal = self.walk.get().map_or(0, |walk| walk.ordinal.saturating_add(1));
        self.walk.set(Some(WalkId { ordinal, window }));
    }
}

impl fmt::Display for WalkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "walk {}, {}", self.ordinal.saturating_add(1), self.window.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_belongs_to_the_first_walk_that_makes_it() {
        let attributed = Attributed::default();
        let edge = |previous, event| Counter::Edge { state: State::WalkL1, previous, event };
        let walked = |window, events: &[Event]| {
            attributed.walk(window);
            attributed.begin(State::WalkL1);
            events.iter().for_each(|event| attributed.event(State::WalkL1, *event));
        };
        attributed.event(State::WalkL1, Event::Piece);
        walked(WindowClass::Whole, &[Event::Piece]);
        walked(WindowClass::Middle, &[Event::Piece, Event::Table]);
        let label = |edge| attributed.first_walk(edge).map(|walk| walk.to_string());
        let first = edge(Event::Start, Event::Piece);
        let second = edge(Event::Piece, Event::Table);
        assert_eq!(label(first).as_deref(), Some("walk 1, the whole disk"));
        assert_eq!(label(second).as_deref(), Some("walk 2, the middle"));
        // In the next image, the count of walks begins again.
        attributed.measured();
        walked(WindowClass::End, &[Event::Piece, Event::Table]);
        assert_eq!(label(second).as_deref(), Some("walk 1, the end"));
    }
}
