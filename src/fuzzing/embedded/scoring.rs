//! The score of an input: the coverage that is new to all kept inputs, and the coverage that is new to its ancestors.

use crate::disk::observer::Vital;
use crate::fuzzing::feedback::Counter;
use crate::fuzzing::feedback::coverage::{CoverageFeature, CoverageFeatures, FEATURES};
use crate::fuzzing::feedback::layout::{COUNTERS, vital_index};

/// The lowest score with which an input is kept.
pub const INTERESTING: u32 = 10;

/// The score of an edge, a rare event, or a magnitude of a vital that no kept input has.
const NEW_COUNTER: u32 = 10;
/// The score of a known counter with a hit count that no kept input has.
const NEW_CLASS: u32 = 5;
/// The score of a counter that no ancestor has and at most [`FEW`] other inputs have.
const NEW_TO_LINEAGE: u32 = 1;
const FEW: u32 = 4;
/// The score of a vital above its watermark in the lineage.
const ABOVE_WATERMARK: u32 = 1;
/// The highest score for coverage that is new to the lineage only. It is below [`INTERESTING`], because a crossover
/// makes such children by the thousand.
const MOST_RELATIVE: u32 = 5;

/// The magnitude of each vital that a child has to exceed.
pub type Watermarks = [u8; Vital::COUNT];

/// The highest difference between a watermark and the parent's. Without this limit, no descendant of one extreme run
/// would exceed its watermarks.
const CLAMP: u8 = 2;

/// The number of kept inputs that have each feature and each counter.
#[derive(Debug)]
pub struct SeenFeatures {
    features: Vec<u32>,
    counters: Vec<u32>,
}

impl Default for SeenFeatures {
    fn default() -> Self {
        Self { features: vec![0; FEATURES], counters: vec![0; COUNTERS] }
    }
}

impl SeenFeatures {
    /// Adds the coverage of an input.
    pub fn commit(&mut self, features: &CoverageFeatures) {
        for feature in features.iter() {
            self.features[feature.index()] += 1;
            self.counters[feature.counter()] += 1;
        }
    }

    /// Returns the number of inputs that have a counter.
    pub fn inputs(&self, counter: usize) -> u32 {
        self.counters[counter]
    }

    /// Returns the counters that at least one input has.
    pub fn counters(&self) -> impl Iterator<Item = Counter> {
        let reached = self.counters.iter().enumerate().filter(|(_, inputs)| **inputs > 0);
        reached.filter_map(|(index, _)| Counter::at(index))
    }

    /// Returns the score of an input that covers `features`, and changes nothing.
    pub fn score(
        &self,
        features: &CoverageFeatures,
        lineage: Option<(&Lineage, &Watermarks)>,
    ) -> u32 {
        let mut score = 0;
        for feature in features.iter() {
            score += self.novelty(feature);
        }
        let Some((lineage, watermarks)) = lineage else { return score };
        let few = |counter: &usize| (1..=FEW).contains(&self.counters[*counter]);
        let missing = lineage.missing(features).filter(few).count();
        let magnitudes = magnitudes(features);
        let above = magnitudes.iter().zip(watermarks).filter(|(one, mark)| one > mark).count();
        let relative = NEW_TO_LINEAGE * missing as u32 + ABOVE_WATERMARK * above as u32;
        score + relative.min(MOST_RELATIVE)
    }

    #[inline]
    fn novelty(&self, feature: CoverageFeature) -> u32 {
        if self.features[feature.index()] > 0 {
            0
        } else if self.counters[feature.counter()] > 0 {
            NEW_CLASS
        } else {
            NEW_COUNTER
        }
    }
}

/// The counters that an input and its ancestors cover, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage(Vec<u16>);

const _: () = assert!(COUNTERS <= 1 << u16::BITS);

impl Lineage {
    /// Returns the lineage of a child of `parent` that covers `features`.
    pub fn of(parent: Option<&Self>, features: &CoverageFeatures) -> Self {
        let mut counters = parent.cloned().unwrap_or_default().0;
        counters.extend(features.iter().map(|feature| feature.counter() as u16));
        counters.sort_unstable();
        counters.dedup();
        Self(counters)
    }

    /// Returns the counters of `features` that the lineage lacks.
    fn missing(&self, features: &CoverageFeatures) -> impl Iterator<Item = usize> {
        let mut rest = self.0.iter().copied().map(usize::from).peekable();
        features.iter().map(CoverageFeature::counter).filter(move |counter| {
            while rest.next_if(|known| known < counter).is_some() {}
            rest.peek() != Some(counter)
        })
    }
}

/// Returns the highest magnitude of each vital.
fn magnitudes(features: &CoverageFeatures) -> Watermarks {
    let mut highest = Watermarks::default();
    let first = vital_index(Vital::ALL[0], 0);
    for feature in features.iter().filter(|feature| feature.counter() >= first) {
        if let Some(Counter::Vital { vital, magnitude }) = Counter::at(feature.counter()) {
            let mark = &mut highest[vital.index()];
            *mark = (*mark).max(magnitude);
        }
    }
    highest
}

/// Returns the watermarks of an input that covers `features`: at most `CLAMP` above those of `parent`.
pub fn watermarks(features: &CoverageFeatures, parent: Option<&Watermarks>) -> Watermarks {
    let mut marks = magnitudes(features);
    for (mark, parent) in marks.iter_mut().zip(parent.into_iter().flatten()) {
        *mark = (*mark).min(parent.saturating_add(CLAMP));
    }
    marks
}

/// Lowers each watermark by one magnitude, so that children can exceed it again.
pub fn decay(marks: &mut Watermarks) {
    marks.iter_mut().for_each(|mark| *mark = mark.saturating_sub(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::{Event, Observer, State};
    use crate::fuzzing::feedback::Recorder;

    fn features(events: &[Event], extents: u64) -> CoverageFeatures {
        let recorder = Recorder::new();
        recorder.begin(State::Build);
        events.iter().for_each(|event| recorder.event(State::Build, *event));
        recorder.vital(Vital::Extents, extents);
        recorder.measured();
        CoverageFeatures::of(&recorder)
    }

    #[test]
    fn new_coverage_scores_and_known_coverage_does_not() {
        let mut known = SeenFeatures::default();
        let first = features(&[Event::Normal], 1);
        assert!(known.score(&first, None) >= NEW_COUNTER * 2);
        known.commit(&first);
        assert_eq!(known.score(&first, None), 0);
        // First a new edge, then a known edge with a higher hit count.
        let edge = features(&[Event::Normal, Event::Compressed], 1);
        assert_eq!(known.score(&edge, None), NEW_COUNTER);
        known.commit(&features(&[Event::Normal, Event::Normal], 1));
        let often = features(&[Event::Normal, Event::Normal, Event::Normal], 1);
        assert_eq!(known.score(&often, None), NEW_CLASS);
    }

    #[test]
    fn counters_that_ancestors_lack_score_while_few_inputs_have_them() {
        let mut known = SeenFeatures::default();
        let (parent, child) =
            (features(&[Event::Normal], 1), features(&[Event::Normal, Event::Compressed], 1));
        let (lineage, marks) = (Lineage::of(None, &parent), watermarks(&parent, None));
        known.commit(&parent);
        for inputs in 1..=FEW + 1 {
            known.commit(&child);
            let expected = if inputs <= FEW { NEW_TO_LINEAGE } else { 0 };
            assert_eq!(known.score(&child, Some((&lineage, &marks))), expected);
        }
        // Many counters that are new to the lineage do not make an input interesting.
        let events = [Event::Bitmap, Event::Resized, Event::Table, Event::Walk, Event::InPlace];
        let wild = features(&[&events[..], &[Event::Read, Event::Lookup]].concat(), 1);
        known.commit(&wild);
        assert_eq!(known.score(&wild, Some((&lineage, &marks))), MOST_RELATIVE);
        let lineage = Lineage::of(Some(&lineage), &child);
        assert_eq!(lineage.missing(&child).count(), 0);
        assert_eq!(lineage.missing(&parent).count(), 0);
    }

    #[test]
    fn watermarks_are_clamped_and_decay() {
        let (parent, wild) = (features(&[], 1), features(&[], 1000));
        let low = watermarks(&parent, None);
        let mut marks = watermarks(&wild, Some(&low));
        let extents = Vital::Extents.index();
        assert_eq!((low[extents], marks[extents]), (1, 1 + CLAMP));
        let mut known = SeenFeatures::default();
        known.commit(&parent);
        known.commit(&wild);
        let lineage = Lineage::of(Some(&Lineage::of(None, &parent)), &wild);
        let score = |marks| known.score(&wild, Some((&lineage, marks)));
        assert_eq!((score(&marks), score(&watermarks(&wild, None))), (ABOVE_WATERMARK, 0));
        decay(&mut marks);
        assert_eq!(marks[extents], CLAMP);
    }
}
