//! What an input is worth: what is new in it, for all inputs and for those that it descends from.

use crate::disk::observer::Vital;
use crate::fuzzing::feedback::Counter;
use crate::fuzzing::feedback::coverage::{FEATURES, Feature, Features};
use crate::fuzzing::feedback::layout::COUNTERS;

/// From this score on, an input is kept.
pub const INTERESTING: u32 = 10;

/// An edge, a rare event, or a magnitude of a vital that no input had.
const NEW_COUNTER: u32 = 10;
/// A counter that no input had so often.
const NEW_CLASS: u32 = 5;
/// A counter that no ancestor had, and few other inputs: [`FEW`] or less.
const NEW_TO_LINEAGE: u32 = 1;
const FEW: u32 = 4;
/// A vital above its watermark in the lineage.
const ABOVE_WATERMARK: u32 = 1;
/// What is new to the lineage alone is not enough: a crossover makes such children by the thousand.
const MOST_RELATIVE: u32 = 5;

/// The magnitude of each vital that a child has to exceed.
pub type Watermarks = [u8; Vital::COUNT];

/// How much higher than its parent's a watermark can be: one run out of bounds must not make all that descends
/// from it look dull.
const CLAMP: u8 = 2;

/// What all inputs that are kept cover: how many have each feature.
#[derive(Debug)]
pub struct Known {
    features: Vec<u32>,
    counters: Vec<u32>,
}

impl Default for Known {
    fn default() -> Self {
        Self { features: vec![0; FEATURES], counters: vec![0; COUNTERS] }
    }
}

impl Known {
    /// Adds what an input covers.
    pub fn commit(&mut self, features: &Features) {
        for feature in features.iter() {
            self.features[feature.index()] += 1;
            self.counters[feature.counter()] += 1;
        }
    }

    /// How many inputs have a counter.
    pub fn inputs(&self, counter: usize) -> u32 {
        self.counters[counter]
    }

    /// The counters that some input has.
    pub fn counters(&self) -> impl Iterator<Item = Counter> {
        let reached = self.counters.iter().enumerate().filter(|(_, inputs)| **inputs > 0);
        reached.filter_map(|(index, _)| Counter::at(index))
    }

    /// The score of an input that covers `features`. Nothing is changed by it.
    pub fn score(&self, features: &Features, lineage: Option<(&Lineage, &Watermarks)>) -> u32 {
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
    fn novelty(&self, feature: Feature) -> u32 {
        if self.features[feature.index()] > 0 {
            0
        } else if self.counters[feature.counter()] > 0 {
            NEW_CLASS
        } else {
            NEW_COUNTER
        }
    }
}

/// What an input and its ancestors cover together: counters, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage(Vec<u16>);

const _: () = assert!(COUNTERS <= 1 << u16::BITS);

impl Lineage {
    /// That of a child of `parent` which covers `features`.
    pub fn of(parent: Option<&Self>, features: &Features) -> Self {
        let mut counters = parent.cloned().unwrap_or_default().0;
        counters.extend(features.iter().map(|feature| feature.counter() as u16));
        counters.sort_unstable();
        counters.dedup();
        Self(counters)
    }

    /// The counters of `features` that are not in it.
    fn missing(&self, features: &Features) -> impl Iterator<Item = usize> {
        let mut rest = self.0.iter().copied().map(usize::from).peekable();
        features.iter().map(Feature::counter).filter(move |counter| {
            while rest.next_if(|known| known < counter).is_some() {}
            rest.peek() != Some(counter)
        })
    }
}

/// The highest magnitude of each vital.
fn magnitudes(features: &Features) -> Watermarks {
    let mut highest = Watermarks::default();
    let first = Counter::Vital { vital: Vital::ALL[0], magnitude: 0 }.index();
    for feature in features.iter().filter(|feature| feature.counter() >= first) {
        if let Some(Counter::Vital { vital, magnitude }) = Counter::at(feature.counter()) {
            let mark = &mut highest[vital.index()];
            *mark = (*mark).max(magnitude);
        }
    }
    highest
}

/// The watermarks of an input that covers `features`, below those of `parent` and a little more.
pub fn watermarks(features: &Features, parent: Option<&Watermarks>) -> Watermarks {
    let mut marks = magnitudes(features);
    for (mark, parent) in marks.iter_mut().zip(parent.into_iter().flatten()) {
        *mark = (*mark).min(parent.saturating_add(CLAMP));
    }
    marks
}

/// Lowers watermarks by one magnitude: what was passed once is worth something again after a while.
pub fn decay(marks: &mut Watermarks) {
    marks.iter_mut().for_each(|mark| *mark = mark.saturating_sub(1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::{Event, Observer, State};
    use crate::fuzzing::feedback::Recorder;

    fn features(events: &[Event], extents: u64) -> Features {
        let recorder = Recorder::new();
        recorder.begin(State::Emit);
        events.iter().for_each(|event| recorder.event(State::Emit, *event));
        recorder.vital(Vital::Extents, extents);
        recorder.measured();
        Features::of(&recorder)
    }

    #[test]
    fn what_is_new_scores_and_what_is_known_does_not() {
        let mut known = Known::default();
        let first = features(&[Event::Normal], 1);
        assert!(known.score(&first, None) >= NEW_COUNTER * 2);
        known.commit(&first);
        assert_eq!(known.score(&first, None), 0);
        // An edge more; the same edge more often.
        let edge = features(&[Event::Normal, Event::Compressed], 1);
        assert_eq!(known.score(&edge, None), NEW_COUNTER);
        known.commit(&features(&[Event::Normal, Event::Normal], 1));
        let often = features(&[Event::Normal, Event::Normal, Event::Normal], 1);
        assert_eq!(known.score(&often, None), NEW_CLASS);
    }

    #[test]
    fn what_ancestors_lack_counts_while_few_have_it() {
        let mut known = Known::default();
        let (parent, child) =
            (features(&[Event::Normal], 1), features(&[Event::Normal, Event::Compressed], 1));
        let (lineage, marks) = (Lineage::of(None, &parent), watermarks(&parent, None));
        known.commit(&parent);
        for inputs in 1..=FEW + 1 {
            known.commit(&child);
            let expected = if inputs <= FEW { NEW_TO_LINEAGE } else { 0 };
            assert_eq!(known.score(&child, Some((&lineage, &marks))), expected);
        }
        // Much that is new to the lineage is still not enough.
        let events = [Event::Backing, Event::Piece, Event::Table, Event::Walk, Event::Moved];
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
        let mut known = Known::default();
        known.commit(&parent);
        known.commit(&wild);
        let lineage = Lineage::of(Some(&Lineage::of(None, &parent)), &wild);
        let score = |marks| known.score(&wild, Some((&lineage, marks)));
        assert_eq!((score(&marks), score(&watermarks(&wild, None))), (ABOVE_WATERMARK, 0));
        decay(&mut marks);
        assert_eq!(marks[extents], CLAMP);
    }
}
