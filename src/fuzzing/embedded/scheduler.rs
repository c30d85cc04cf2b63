//! The scheduler: the testcases that are kept, the score that a new one needs, and the choice of the next parent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fuzzing::corpus;
use crate::fuzzing::feedback::Counter;
use crate::fuzzing::feedback::coverage::{CoverageFeatures, FEATURES};
use crate::fuzzing::feedback::layout::COUNTERS;
use crate::images::content::entropy::Entropy;

use super::subject::Measures;

/// The lowest score with which an input is kept.
const INTERESTING: u32 = 10;
/// The score of an edge, a rare event, or a magnitude of a vital that no kept input has.
const NEW_COUNTER: u32 = 10;
/// The score of a known counter with a hit count that no kept input has.
const NEW_CLASS: u32 = 5;

/// An input that is kept, as it is saved. A run of the input restores the fields that are not saved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Testcase {
    /// The bytes of the input.
    #[serde(with = "hex::serde")]
    pub input: Vec<u8>,
    /// The run of the input found nothing. Only such inputs become parents.
    #[serde(skip)]
    pub sound: bool,
    /// The place in the scheduler of the testcase of which it is a mutation.
    pub parent: Option<usize>,
    /// The number of its ancestors.
    pub depth: u32,
    /// The number of its children.
    pub picks: u32,
    /// The number of children that were kept (its fertility).
    pub kept: u32,
    /// The number of children since the last one that was kept (its sterility).
    pub barren: u32,
    /// The weight with which it is chosen as the next parent.
    pub weight: u64,
    /// The features that it covers.
    #[serde(skip)]
    pub features: CoverageFeatures,
    /// The name of these features.
    pub coverage: String,
    /// The work and the complexity of its run.
    #[serde(flatten)]
    pub measures: Measures,
}

impl Testcase {
    /// Returns an input with these features that has no children. `parent` is the testcase of which it is a mutation,
    /// and the place of that in the scheduler.
    pub fn new(
        input: Vec<u8>,
        parent: Option<(usize, &Self)>,
        (features, measures): (CoverageFeatures, Measures),
    ) -> Self {
        Self {
            input,
            sound: true,
            parent: parent.map(|(place, _)| place),
            depth: parent.map_or(0, |(_, entry)| entry.depth.saturating_add(1)),
            picks: 0,
            kept: 0,
            barren: 0,
            weight: 0,
            coverage: coverage_name(&features),
            features,
            measures,
        }
    }
}

/// Returns a name of fixed length for a set of features: equal sets have equal names.
pub fn coverage_name(features: &CoverageFeatures) -> String {
    let bytes: Vec<u8> = features.iter().flat_map(|it| (it.index() as u32).to_le_bytes()).collect();
    corpus::name(&bytes)
}

/// All testcases that are kept, and their coverage.
#[derive(Debug)]
pub struct Scheduler {
    entries: Vec<Testcase>,
    /// The place of each input that was kept, including inputs that a shorter one has replaced since.
    places: BTreeMap<Vec<u8>, usize>,
    /// The features that some kept input has.
    features: Vec<bool>,
    /// The number of kept inputs that have each counter.
    counters: Vec<u32>,
}

impl Default for Scheduler {
    fn default() -> Self {
        let (entries, places) = Default::default();
        Self { entries, places, features: vec![false; FEATURES], counters: vec![0; COUNTERS] }
    }
}

impl Scheduler {
    /// Returns all entries, in the order in which they were added.
    pub fn entries(&self) -> &[Testcase] {
        &self.entries
    }

    /// Returns the place of an input that was kept.
    pub fn place_of(&self, input: &[u8]) -> Option<usize> {
        self.places.get(input).copied()
    }

    /// Returns the counters that at least one input has.
    pub fn counters(&self) -> impl Iterator<Item = Counter> {
        let reached = self.counters.iter().enumerate().filter(|(_, inputs)| **inputs > 0);
        reached.filter_map(|(index, _)| Counter::at(index))
    }

    /// Reports whether an input with these features is worth keeping.
    pub fn is_interesting(&self, features: &CoverageFeatures) -> bool {
        let scores = features.iter().map(|feature| match self.features[feature.index()] {
            true => 0,
            false if self.counters[feature.counter()] > 0 => NEW_CLASS,
            false => NEW_COUNTER,
        });
        scores.sum::<u32>() >= INTERESTING
    }

    /// Chooses the next parent and returns its place.
    pub fn choose(&self, entropy: &mut Entropy) -> usize {
        let weight = |entry: &Testcase| if entry.sound { entry.weight } else { 0 };
        entropy.weighted(self.entries.iter().map(weight)).unwrap_or(0)
    }

    /// Adds an input.
    pub fn add(&mut self, entry: Testcase) {
        let place = self.entries.len();
        self.restore(entry);
        self.weigh(place);
    }

    /// Adds an entry that was saved, with the weight that it had then.
    pub fn restore(&mut self, entry: Testcase) {
        for feature in entry.features.iter() {
            self.features[feature.index()] = true;
            self.counters[feature.counter()] += 1;
        }
        self.places.insert(entry.input.clone(), self.entries.len());
        self.entries.push(entry);
    }

    /// Counts a child of the entry at `place`, and whether it was kept.
    pub fn record_child(&mut self, place: usize, kept: bool) {
        let entry = &mut self.entries[place];
        entry.picks = entry.picks.saturating_add(1);
        if kept {
            entry.kept = entry.kept.saturating_add(1);
            entry.barren = 0;
        } else {
            entry.barren = entry.barren.saturating_add(1);
        }
        self.weigh(place);
    }

    /// Replaces the input at `place` by a simpler one with the same coverage.
    pub fn simplify(&mut self, place: usize, input: Vec<u8>, measures: Measures) {
        self.places.insert(input.clone(), place);
        let entry = &mut self.entries[place];
        (entry.input, entry.measures) = (input, measures);
    }

    /// Sets the weight of the entry at `place`. Rare counters, kept children, many ancestors and a complex image raise
    /// it. Children that were not kept, the length of the input, and the work of its run lower it.
    fn weigh(&mut self, place: usize) {
        let entry = &self.entries[place];
        let shares = entry.features.iter().map(|it| self.counters[it.counter()].max(1));
        let rarity: u64 = shares.map(|inputs| RARITY / u64::from(inputs)).sum();
        let fertility = 4 + u64::from(entry.kept.min(12));
        let depth = 16 + u64::from(entry.depth.min(16));
        let sterility = 64 + u64::from(entry.barren);
        let size = 256 + entry.input.len() as u64;
        let complexity = 16 + u64::from(entry.measures.complexity.min(16));
        let effort = EASY + entry.measures.work.min(MAX_EFFORT);
        // At most 2^12 * 2^14 * 2^4 * 2^5 * 2^5, times 2^10: far from 64 bits.
        let worth = rarity * fertility * depth * complexity;
        self.entries[place].weight = 1 + worth * 64 * (EASY / 16) / (sterility * size * effort);
    }
}

/// If a run does this much work, the weight of its input is halved. Most programs with one layer do less.
const EASY: u64 = 256;
/// The most work that counts. It divides the weight by 17, so that every input can still be chosen.
const MAX_EFFORT: u64 = 16 * EASY;

const RARITY: u64 = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::{Event, Observer, Rare, State};
    use crate::fuzzing::feedback::Recorder;

    fn entry(rare: &[Rare]) -> Testcase {
        let recorder = Recorder::new();
        rare.iter().for_each(|rare| recorder.rare(*rare));
        let features = CoverageFeatures::of(&recorder);
        Testcase::new(vec![0; 100], None, (features, Measures::default()))
    }

    fn scheduler() -> Scheduler {
        let mut scheduler = Scheduler::default();
        for rare in [&[Rare::NoHole][..], &[Rare::NoHole], &[Rare::NoHole, Rare::LongTable]] {
            scheduler.add(entry(rare));
        }
        (0..3).for_each(|place| scheduler.record_child(place, false));
        scheduler
    }

    #[test]
    fn new_coverage_is_interesting_and_known_coverage_is_not() {
        let features = |events: &[Event]| {
            let recorder = Recorder::new();
            recorder.begin(State::Build);
            events.iter().for_each(|event| recorder.event(State::Build, *event));
            CoverageFeatures::of(&recorder)
        };
        let mut scheduler = Scheduler::default();
        let (normal, compressed) = (Event::Normal, Event::Compressed);
        for events in [&[normal][..], &[normal, compressed], &[normal, normal, normal, normal]] {
            assert!(scheduler.is_interesting(&features(events)), "{events:?}");
            scheduler.add(Testcase::new(Vec::new(), None, (features(events), Measures::default())));
            assert!(!scheduler.is_interesting(&features(events)), "{events:?}");
        }
        // One known edge with a higher count is not enough, and two are.
        let mut often = vec![normal; 9];
        assert!(!scheduler.is_interesting(&features(&often)));
        often.extend([compressed, normal, compressed]);
        scheduler.add(Testcase::new(
            Vec::new(),
            None,
            (features(&[compressed, normal]), Measures::default()),
        ));
        assert!(scheduler.is_interesting(&features(&often)));
        assert_eq!(scheduler.counters().count(), 5);
    }

    #[test]
    fn rare_fertile_deep_complex_short_and_easy_inputs_weigh_more() {
        let mut scheduler = scheduler();
        assert_eq!(scheduler.entries[0].weight, scheduler.entries[1].weight);
        assert!(scheduler.entries[2].weight > scheduler.entries[0].weight);
        let mut weigh = |change: fn(&mut Testcase)| {
            scheduler.entries[0] = entry(&[Rare::NoHole]);
            change(&mut scheduler.entries[0]);
            scheduler.weigh(0);
            scheduler.entries[0].weight
        };
        let unchanged = weigh(|_| ());
        assert!(weigh(|entry| entry.kept = 1) > unchanged);
        assert!(weigh(|entry| entry.depth = 1) > unchanged);
        assert!(weigh(|entry| entry.barren = 100) < unchanged);
        assert!(weigh(|entry| entry.input = vec![0; 500]) < unchanged);
        assert!(weigh(|entry| entry.measures.complexity = 3) > unchanged);
        assert!(weigh(|entry| entry.measures.work = EASY) <= unchanged.div_ceil(2) + 1);
        assert!(weigh(|entry| entry.measures.work = u64::MAX) > unchanged / 20);
        weigh(|_| ());
        (0..1000).for_each(|_| scheduler.record_child(0, false));
        assert!(scheduler.entries[0].weight < unchanged / 8);
        scheduler.record_child(0, true);
        assert!(scheduler.entries[0].weight > unchanged);
    }

    #[test]
    fn parents_are_chosen_by_weight() {
        let scheduler = scheduler();
        let mut entropy = Entropy::new(1);
        let mut chosen = [0u64; 3];
        (0..30_000).for_each(|_| chosen[scheduler.choose(&mut entropy)] += 1);
        let total: u64 = scheduler.entries.iter().map(|entry| entry.weight).sum();
        for (entry, chosen) in scheduler.entries.iter().zip(chosen) {
            let expected = 30_000 * entry.weight / total;
            assert!(chosen.abs_diff(expected) < expected / 10 + 50, "{chosen} {expected}");
        }
    }
}
