//! The score of an input: the coverage that is new to all kept inputs, and the coverage that is new to its ancestors.

use crate::disk::observer::Vital;
use crate::fuzzing::feedback::Counter;
use crate::fuzzing::feedback::coverage::{CoverageFeature, CoverageFeatures, FEATURES};
use crate::fuzzing::feedback::layout::{COUNTERS, vital_index};

use super::subject::{Measures, PARENT_CHANGES};

/// The lowest score with which an input is kept.
pub const INTERESTING: u32 = 10;

/// The score of an edge, a rare event, or a magnitude of a vital that no kept input has.
const NEW_COUNTER: u32 = 10;
/// The score of a known counter with a hit count that no kept input has.
const NEW_CLASS: u32 = 5;
/// The score of a counter that no ancestor has and at most [`FEW`] other inputs have.
const NEW_TO_LINEAGE: u32 = 1;
const FEW: u32 = 4;
/// The score of a vital above its watermark in the lineage, with a magnitude that at most [`FEW`] other inputs have.
const FEW_ABOVE_WATERMARK: u32 = 4;
/// The score of a vital above its watermark, with any magnitude.
const ABOVE_WATERMARK: u32 = 1;
/// The score of a change of a vital against the parent that no kept input has.
const NEW_CHANGE: u32 = 2;
/// The score of a complexity above the parent's.
const MORE_COMPLEX: u32 = 1;
/// The highest score for properties that any number of inputs may have: vitals above watermarks, and complexity. They
/// cannot keep a child, because such children would flood the pool. All other properties score for few inputs only.
const MOST_UNLIMITED: u32 = 5;
/// A run that does more than this many times the work of its parent scores nothing for what is new to its lineage only.
const TOO_MUCH_WORK: u64 = 8;
/// The work that every run may do.
const LITTLE_WORK: u64 = 256;

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
    /// The number of kept inputs that have each change against their parent.
    changes: Vec<u32>,
}

/// The parent of an input, as its score takes it into account.
#[derive(Clone, Copy, Debug)]
pub struct ScoredParent<'p> {
    /// The counters of the parent and of its ancestors.
    pub lineage: &'p Lineage,
    /// The magnitudes that the child's vitals have to exceed.
    pub watermarks: &'p Watermarks,
    /// The vitals, the work and the complexity of the parent.
    pub measures: &'p Measures,
}

impl Default for SeenFeatures {
    fn default() -> Self {
        Self {
            features: vec![0; FEATURES],
            counters: vec![0; COUNTERS],
            changes: vec![0; PARENT_CHANGES],
        }
    }
}

impl SeenFeatures {
    /// Adds the coverage of an input, and the indices of its changes against its parent.
    pub fn commit(&mut self, features: &CoverageFeatures, changes: &[u16]) {
        for feature in features.iter() {
            self.features[feature.index()] += 1;
            self.counters[feature.counter()] += 1;
        }
        for change in changes {
            // A saved state may hold any number.
            if let Some(inputs) = self.changes.get_mut(usize::from(*change)) {
                *inputs += 1;
            }
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

    /// Returns the score of an input that covers `features` and has `measures`, and changes nothing.
    pub fn score(
        &self,
        features: &CoverageFeatures,
        measures: &Measures,
        parent: Option<ScoredParent>,
    ) -> u32 {
        let mut score = 0;
        for feature in features.iter() {
            score += self.novelty(feature);
        }
        let Some(parent) = parent else { return score };
        let ScoredParent { lineage, watermarks, measures: before } = parent;
        if measures.work / TOO_MUCH_WORK > before.work.max(LITTLE_WORK) {
            return score;
        }
        let few = |counter: &usize| (1..=FEW).contains(&self.counters[*counter]);
        let missing = lineage.missing(features).filter(few).count();
        let changes = measures.changes(before).filter(|it| self.changes[it.index()] == 0).count();
        let (mut above, mut few_above) = (0, 0);
        let magnitudes = magnitudes(features);
        for ((vital, magnitude), mark) in Vital::ALL.iter().zip(magnitudes).zip(watermarks) {
            if magnitude > *mark {
                above += 1;
                few_above += u32::from(few(&vital_index(*vital, magnitude)));
            }
        }
        let complex = u32::from(measures.complexity() > before.complexity());
        let unlimited = ABOVE_WATERMARK * above + MORE_COMPLEX * complex;
        score
            + NEW_TO_LINEAGE * missing as u32
            + FEW_ABOVE_WATERMARK * few_above
            + NEW_CHANGE * changes as u32
            + unlimited.min(MOST_UNLIMITED)
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

const _: () = assert!(COUNTERS <= 1 << u16::BITS && PARENT_CHANGES <= 1 << u16::BITS);

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

    /// Returns the measures of a run that does not matter to a test.
    fn same() -> Measures {
        Measures::default()
    }

    fn parent_of<'p>(
        lineage: &'p Lineage,
        watermarks: &'p Watermarks,
        measures: &'p Measures,
    ) -> ScoredParent<'p> {
        ScoredParent { lineage, watermarks, measures }
    }

    /// A child with known coverage scores for what is new against its parent only.
    #[test]
    fn changes_against_the_parent_complexity_and_work_score() {
        let mut known = SeenFeatures::default();
        let known_coverage = features(&[Event::Normal], 1);
        known.commit(&known_coverage, &[]);
        let (lineage, marks) =
            (Lineage::of(None, &known_coverage), watermarks(&known_coverage, None));
        let measures = |extents: u64, work: u64| {
            let mut measures = Measures { work, ..Measures::default() };
            measures.vitals[Vital::Extents.index()] = extents;
            measures
        };
        let before = measures(4, 300);
        let score = |known: &SeenFeatures, after: &Measures| {
            known.score(&known_coverage, after, Some(parent_of(&lineage, &marks, &before)))
        };
        assert_eq!(score(&known, &before), 0);
        assert_eq!(score(&known, &measures(3, 300)), NEW_CHANGE);
        assert_eq!(score(&known, &measures(9, 300)), NEW_CHANGE + MORE_COMPLEX);
        assert_eq!(score(&known, &measures(9, 300 * TOO_MUCH_WORK)), NEW_CHANGE + MORE_COMPLEX);
        assert_eq!(score(&known, &measures(9, 301 * TOO_MUCH_WORK)), 0);
        // A kept input has the change now. The opposite one is another.
        let changes: Vec<u16> =
            measures(9, 300).changes(&before).map(|it| it.index() as u16).collect();
        known.commit(&known_coverage, &changes);
        assert_eq!(score(&known, &measures(9, 300)), MORE_COMPLEX);
        assert_eq!(score(&known, &measures(3, 300)), NEW_CHANGE);
        // Many vitals that change as in no kept input are enough.
        let mut changed = before.clone();
        changed.vitals[..5].iter_mut().for_each(|vital| *vital += 100);
        assert!(score(&known, &changed) >= INTERESTING);
        // New coverage scores at any cost.
        let new = features(&[Event::Bitmap], 1);
        let parent = Some(parent_of(&lineage, &marks, &before));
        assert!(known.score(&new, &measures(9, u64::MAX), parent) >= INTERESTING);
    }

    #[test]
    fn new_coverage_scores_and_known_coverage_does_not() {
        let mut known = SeenFeatures::default();
        let first = features(&[Event::Normal], 1);
        assert!(known.score(&first, &same(), None) >= NEW_COUNTER * 2);
        known.commit(&first, &[]);
        assert_eq!(known.score(&first, &same(), None), 0);
        // First a new edge, then a known edge with a higher hit count.
        let edge = features(&[Event::Normal, Event::Compressed], 1);
        assert_eq!(known.score(&edge, &same(), None), NEW_COUNTER);
        known.commit(&features(&[Event::Normal, Event::Normal], 1), &[]);
        let often = features(&[Event::Normal, Event::Normal, Event::Normal], 1);
        assert_eq!(known.score(&often, &same(), None), NEW_CLASS);
    }

    #[test]
    fn counters_that_ancestors_lack_score_while_few_inputs_have_them() {
        let mut known = SeenFeatures::default();
        let (parent, child) =
            (features(&[Event::Normal], 1), features(&[Event::Normal, Event::Compressed], 1));
        let (lineage, marks) = (Lineage::of(None, &parent), watermarks(&parent, None));
        known.commit(&parent, &[]);
        for inputs in 1..=FEW + 1 {
            known.commit(&child, &[]);
            let expected = if inputs <= FEW { NEW_TO_LINEAGE } else { 0 };
            assert_eq!(
                known.score(&child, &same(), Some(parent_of(&lineage, &marks, &same()))),
                expected
            );
        }
        // Many counters that are new to the lineage are enough, until some inputs have them.
        let events = [Event::Bitmap, Event::Resized, Event::Table, Event::Walk, Event::InPlace];
        let more = [Event::Read, Event::Lookup, Event::Snapshot, Event::Overlay, Event::Filled];
        let wild = features(&[events, more].concat(), 1);
        for inputs in 1..=FEW + 1 {
            known.commit(&wild, &[]);
            let score = known.score(&wild, &same(), Some(parent_of(&lineage, &marks, &same())));
            assert_eq!(score >= INTERESTING, inputs <= FEW, "{score}");
        }
        let lineage = Lineage::of(Some(&lineage), &child);
        assert_eq!(lineage.missing(&child).count(), 0);
        assert_eq!(lineage.missing(&parent).count(), 0);
    }

    /// A child with vitals above those of its lineage is interesting by itself, until some inputs have their
    /// magnitudes.
    #[test]
    fn vitals_alone_make_a_child_interesting() {
        let vitals = [Vital::Extents, Vital::Reads, Vital::Snapshots];
        let measured = |value: u64| {
            let recorder = Recorder::new();
            vitals.iter().for_each(|vital| recorder.vital(*vital, value));
            recorder.measured();
            CoverageFeatures::of(&recorder)
        };
        let (parent, child) = (measured(1), measured(9));
        let (lineage, marks) = (Lineage::of(None, &parent), watermarks(&parent, None));
        // Ancestors of the parent have these magnitudes, too, so that no counter is new to the lineage.
        let lineage = Lineage::of(Some(&lineage), &child);
        let mut known = SeenFeatures::default();
        known.commit(&parent, &[]);
        for inputs in 1..=FEW + 1 {
            known.commit(&child, &[]);
            let score = known.score(&child, &same(), Some(parent_of(&lineage, &marks, &same())));
            assert_eq!(score >= INTERESTING, inputs <= FEW, "{score}");
        }
    }

    #[test]
    fn watermarks_are_clamped_and_decay() {
        let (parent, wild) = (features(&[], 1), features(&[], 1000));
        let low = watermarks(&parent, None);
        let mut marks = watermarks(&wild, Some(&low));
        let extents = Vital::Extents.index();
        assert_eq!((low[extents], marks[extents]), (1, 1 + CLAMP));
        let mut known = SeenFeatures::default();
        known.commit(&parent, &[]);
        known.commit(&wild, &[]);
        let lineage = Lineage::of(Some(&Lineage::of(None, &parent)), &wild);
        let score = |known: &SeenFeatures, marks: &Watermarks| {
            known.score(&wild, &same(), Some(parent_of(&lineage, marks, &same())))
        };
        assert_eq!(score(&known, &marks), FEW_ABOVE_WATERMARK + ABOVE_WATERMARK);
        assert_eq!(score(&known, &watermarks(&wild, None)), 0);
        (0..FEW).for_each(|_| known.commit(&wild, &[]));
        assert_eq!(score(&known, &marks), ABOVE_WATERMARK);
        decay(&mut marks);
        assert_eq!(marks[extents], CLAMP);
    }
}
