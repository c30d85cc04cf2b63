//! What a set of inputs covers, by counter; and which of them are enough.

use std::collections::BTreeMap;

use super::layout::COUNTERS;
use super::{Counter, Recorder};

/// What inputs reach, one after the other. Of two inputs the shorter one is remembered; of two of the same
/// length, the one that came first.
#[derive(Debug, Default)]
pub struct Coverage {
    counters: BTreeMap<Counter, Covered>,
    inputs: usize,
}

/// Who reaches a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// How many inputs.
    pub inputs: usize,
    /// The shortest of them: its number, and its length in bytes.
    pub shortest: (usize, usize),
}

impl Coverage {
    /// Adds what an input of `length_bytes` reached in the run that `recorder` has observed; returns the
    /// input's number, counted from 0.
    pub fn add(&mut self, length_bytes: usize, recorder: &Recorder) -> usize {
        let input = self.inputs;
        self.inputs += 1;
        recorder.each(|index, _| {
            let Some(counter) = Counter::at(index) else { return };
            let new = Covered { inputs: 0, shortest: (input, length_bytes) };
            let covered = self.counters.entry(counter).or_insert(new);
            covered.inputs += 1;
            if length_bytes < covered.shortest.1 {
                covered.shortest = (input, length_bytes);
            }
        });
        input
    }

    /// How many inputs there were.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// What is reached, in the order of the counters.
    pub fn counters(&self) -> impl Iterator<Item = (Counter, Covered)> {
        self.counters.iter().map(|(counter, covered)| (*counter, *covered))
    }

    /// Whether a counter is reached.
    pub fn reaches(&self, counter: Counter) -> bool {
        self.counters.contains_key(&counter)
    }
}

/// How many features there are: each counter in eight classes.
pub const FEATURES: usize = COUNTERS * CLASSES;
const CLASSES: usize = 8;

/// A counter, and how often, in libFuzzer's eight classes (1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127, 128
/// and more). The more often is another feature, as it is for libFuzzer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Feature(u32);

impl Feature {
    /// Its place among all features, less than [`FEATURES`].
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Its counter's place among all counters, less than [`COUNTERS`].
    #[inline]
    pub fn counter(self) -> usize {
        self.index() / CLASSES
    }
}

/// What one input reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features(
    /// Each is there once, in order.
    Vec<Feature>,
);

impl Features {
    /// Those of the run that `recorder` has observed.
    pub fn of(recorder: &Recorder) -> Self {
        let mut features = Self::default();
        features.refill(recorder);
        features
    }

    /// Puts those of the run that `recorder` has observed in the place of what is there.
    pub fn refill(&mut self, recorder: &Recorder) {
        self.0.clear();
        recorder.each(|index, count| {
            self.0.push(Feature((index * CLASSES) as u32 + class(count)));
        });
    }

    /// One after the other, in order.
    pub fn iter(&self) -> impl Iterator<Item = Feature> {
        self.0.iter().copied()
    }
}

/// libFuzzer's class of a count (`FuzzerTracePC.h`, `CounterToFeature`).
fn class(count: u8) -> u32 {
    match count {
        0..=3 => u32::from(count.saturating_sub(1)),
        4..=7 => 3,
        8..=15 => 4,
        16..=31 => 5,
        32..=127 => 6,
        128.. => 7,
    }
}

/// Which of `inputs`, each with its length in bytes, reach all that they reach together: their places, in
/// order. No input is kept of which shorter ones reach everything, and none that could be left out.
pub fn prune(inputs: &[(usize, Features)]) -> Vec<usize> {
    prune_around(inputs, |_| false)
}

/// The same, where inputs are kept whatever they reach: those at places of which `pinned` is true.
pub fn prune_around(inputs: &[(usize, Features)], pinned: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..inputs.len()).collect();
    order.sort_by_key(|at| (!pinned(*at), inputs[*at].0));
    let mut reached: BTreeMap<Feature, usize> = BTreeMap::new();
    let mut kept = Vec::new();
    for at in order {
        let features = &inputs[at].1.0;
        if pinned(at) || features.iter().any(|feature| !reached.contains_key(feature)) {
            features.iter().for_each(|feature| *reached.entry(*feature).or_insert(0) += 1);
            kept.push(at);
        }
    }
    // The longest first: what shorter ones reach, perhaps later ones do too.
    for place in (0..kept.len()).rev() {
        let features = &inputs[kept[place]].1.0;
        let spare = |feature| reached.get(feature).is_some_and(|count| *count > 1);
        if !pinned(kept[place]) && features.iter().all(spare) {
            for feature in features {
                if let Some(count) = reached.get_mut(feature) {
                    *count -= 1;
                }
            }
            kept.remove(place);
        }
    }
    kept.sort_unstable();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::{Event, Observer, State};
    use crate::images::entropy::Entropy;

    #[test]
    fn the_shortest_input_is_remembered() {
        let recorder = Recorder::new();
        recorder.begin(State::Emit);
        recorder.event(State::Emit, Event::Normal);
        let mut coverage = Coverage::default();
        for length in [30, 20, 20, 40] {
            coverage.add(length, &recorder);
        }
        let (state, previous, event) = (State::Emit, Event::Start, Event::Normal);
        let edge = Counter::Edge { state, previous, event };
        assert!(coverage.counters().eq([(edge, Covered { inputs: 4, shortest: (1, 20) })]));
        assert!(coverage.reaches(edge) && coverage.inputs() == 4);
    }

    #[test]
    fn what_is_kept_reaches_everything_and_none_of_it_is_spare() {
        let mut entropy = Entropy::new(8);
        for round in 0..200 {
            let mut input = || {
                let count = entropy.below(12);
                let mut features: Vec<_> =
                    (0..count).map(|_| Feature(entropy.below(30) as u32)).collect();
                features.sort_unstable();
                features.dedup();
                (entropy.below(50) as usize, Features(features))
            };
            let inputs: Vec<_> = (0..20).map(|_| input()).collect();
            let pinned = |at: usize| round % 2 == 1 && at.is_multiple_of(5);
            let kept = prune_around(&inputs, pinned);
            assert!((0..20).all(|at| !pinned(at) || kept.contains(&at)));
            let reached = |without: Option<usize>| {
                let some = kept.iter().filter(|at| Some(**at) != without);
                let mut all: Vec<Feature> = some.flat_map(|at| inputs[*at].1.0.clone()).collect();
                all.sort_unstable();
                all.dedup();
                all
            };
            let mut all: Vec<Feature> = inputs.iter().flat_map(|input| input.1.0.clone()).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!(reached(None), all);
            assert!(kept.iter().all(|at| pinned(*at) || reached(Some(*at)).len() < all.len()));
        }
    }

    #[test]
    fn classes_are_libfuzzers() {
        let of = [1, 2, 3, 4, 7, 8, 16, 32, 127, 128, 255].map(class);
        assert_eq!(of, [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 7]);
    }
}
