//! The coverage of a set of inputs, by counter, and the choice of inputs that are enough for it.

use std::collections::BTreeMap;

use super::layout::COUNTERS;
use super::{Counter, Recorder};

/// The coverage of inputs that are added one by one. For each counter it keeps the shortest input; of equally short
/// ones, the first.
#[derive(Debug, Default)]
pub struct Coverage {
    counters: BTreeMap<Counter, Covered>,
    inputs: usize,
}

/// The inputs that reach a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Covered {
    /// The number of inputs.
    pub inputs: usize,
    /// The shortest input: its number, and its length in bytes.
    pub shortest: (usize, usize),
}

impl Coverage {
    /// Adds the counters that an input of `length_bytes` reached in the run that `recorder` observed. Returns the
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

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the reached counters, in their order.
    pub fn counters(&self) -> impl Iterator<Item = (Counter, Covered)> {
        self.counters.iter().map(|(counter, covered)| (*counter, *covered))
    }

    /// Reports whether an input reaches a counter.
    pub fn reaches(&self, counter: Counter) -> bool {
        self.counters.contains_key(&counter)
    }
}

/// The number of features: eight classes for each counter.
pub const FEATURES: usize = COUNTERS * CLASSES;
const CLASSES: usize = 8;

/// A counter and a class of its count. libFuzzer has eight classes: 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, 32 to 127,
/// and 128 or more. As in libFuzzer, a higher class is another feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoverageFeature(u32);

impl CoverageFeature {
    /// Returns the index among all features, less than [`FEATURES`].
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the index of the counter, less than [`COUNTERS`].
    #[inline]
    pub fn counter(self) -> usize {
        self.index() / CLASSES
    }
}

/// The features that one input reaches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoverageFeatures(
    /// Sorted, without duplicates.
    Vec<CoverageFeature>,
);

impl CoverageFeatures {
    /// Returns the features of the run that `recorder` observed.
    pub fn of(recorder: &Recorder) -> Self {
        let mut features = Self::default();
        features.refill(recorder);
        features
    }

    /// Replaces the features by those of the run that `recorder` observed.
    pub fn refill(&mut self, recorder: &Recorder) {
        self.0.clear();
        recorder.each(|index, count| {
            self.0.push(CoverageFeature((index * CLASSES) as u32 + class(count)));
        });
    }

    /// Returns the features, in order.
    pub fn iter(&self) -> impl Iterator<Item = CoverageFeature> {
        self.0.iter().copied()
    }
}

/// Returns libFuzzer's class of a count (`FuzzerTracePC.h`, `CounterToFeature`).
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

/// Returns the indices of a subset of `inputs`, in order, that reaches the same features as all of them. Each input
/// has a length in bytes, and short ones are preferred. Every input in the subset is needed.
pub fn prune(inputs: &[(usize, CoverageFeatures)]) -> Vec<usize> {
    prune_around(inputs, |_| false)
}

/// Returns such a subset that also contains each input whose index `pinned` accepts.
pub fn prune_around(
    inputs: &[(usize, CoverageFeatures)],
    pinned: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..inputs.len()).collect();
    order.sort_by_key(|at| (!pinned(*at), inputs[*at].0));
    let mut reached: BTreeMap<CoverageFeature, usize> = BTreeMap::new();
    let mut kept = Vec::new();
    for at in order {
        let features = &inputs[at].1.0;
        if pinned(at) || features.iter().any(|feature| !reached.contains_key(feature)) {
            features.iter().for_each(|feature| *reached.entry(*feature).or_insert(0) += 1);
            kept.push(at);
        }
    }
    // Drop the longest input first. Shorter ones may reach its features.
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
    use crate::images::content::entropy::Entropy;

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
                    (0..count).map(|_| CoverageFeature(entropy.below(30) as u32)).collect();
                features.sort_unstable();
                features.dedup();
                (entropy.below(50) as usize, CoverageFeatures(features))
            };
            let inputs: Vec<_> = (0..20).map(|_| input()).collect();
            let pinned = |at: usize| round % 2 == 1 && at.is_multiple_of(5);
            let kept = prune_around(&inputs, pinned);
            assert!((0..20).all(|at| !pinned(at) || kept.contains(&at)));
            let reached = |without: Option<usize>| {
                let some = kept.iter().filter(|at| Some(**at) != without);
                let mut all: Vec<CoverageFeature> =
                    some.flat_map(|at| inputs[*at].1.0.clone()).collect();
                all.sort_unstable();
                all.dedup();
                all
            };
            let mut all: Vec<CoverageFeature> =
                inputs.iter().flat_map(|input| input.1.0.clone()).collect();
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
