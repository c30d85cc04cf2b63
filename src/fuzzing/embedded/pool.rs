//! The inputs that are kept, and the choice of the next parent among them.

use crate::fuzzing::feedback::coverage::CoverageFeatures;
use crate::images::content::entropy::Entropy;

use super::scoring::{self, Lineage, SeenFeatures, Watermarks};
use super::subject::Measures;

/// An input that is kept.
#[derive(Debug)]
pub struct PoolEntry {
    /// The bytes of the input.
    pub input: Vec<u8>,
    /// The run of the input found nothing. Only such inputs become parents.
    pub sound: bool,
    /// The place in the pool of the input that it was bred from.
    pub parent: Option<usize>,
    /// The number of its ancestors.
    pub depth: u32,
    /// The number of children that were bred from it.
    pub picks: u32,
    /// The number of children that were kept (its fertility).
    pub kept: u32,
    /// The number of children since the last one that was kept (its sterility).
    pub barren: u32,
    /// The magnitudes that a child's vitals have to exceed.
    pub watermarks: Watermarks,
    /// The weight with which it is chosen as the next parent.
    pub weight: u64,
    /// The features that it covers.
    pub features: CoverageFeatures,
    /// The counters that it and its ancestors cover.
    pub lineage: Lineage,
    /// The vitals, the work and the complexity of its run.
    pub measures: Measures,
    /// The changes of its vitals against its parent when it was kept: the index of each.
    pub changes: Vec<u16>,
}

/// The number of children in a row that were not kept, after which the parent's watermarks decay.
const DECAY: u32 = 256;

/// All inputs that are kept.
#[derive(Debug, Default)]
pub struct Pool {
    entries: Vec<PoolEntry>,
}

impl Pool {
    /// Returns all entries, in the order in which they were added.
    pub fn entries(&self) -> &[PoolEntry] {
        &self.entries
    }

    /// Chooses the next parent and returns its place.
    pub fn choose(&self, entropy: &mut Entropy) -> usize {
        let weight = |entry: &PoolEntry| if entry.sound { entry.weight } else { 0 };
        entropy.weighted(self.entries.iter().map(weight)).unwrap_or(0)
    }

    /// Adds an input, whose coverage `known` includes already, and returns its place.
    pub fn add(&mut self, mut entry: PoolEntry, known: &SeenFeatures) -> usize {
        entry.weight = weight(&entry, known);
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// Adds an entry that was saved, with the weight that it had then.
    pub fn restore(&mut self, entry: PoolEntry) {
        self.entries.push(entry);
    }

    /// Counts a child of the entry at `place`, and whether it was kept.
    pub fn bred(&mut self, place: usize, kept: bool, known: &SeenFeatures) {
        let entry = &mut self.entries[place];
        entry.picks = entry.picks.saturating_add(1);
        if kept {
            entry.kept = entry.kept.saturating_add(1);
            entry.barren = 0;
        } else {
            entry.barren = entry.barren.saturating_add(1);
            if entry.barren.is_multiple_of(DECAY) {
                scoring::decay(&mut entry.watermarks);
            }
        }
        entry.weight = weight(entry, known);
    }

    /// Replaces the input at `place` by a simpler one with the same coverage.
    pub fn simplify(&mut self, place: usize, input: Vec<u8>, measures: Measures) {
        let entry = &mut self.entries[place];
        (entry.input, entry.measures) = (input, measures);
    }
}

/// Returns the weight of an entry. Rare counters, kept children, many ancestors and a complex image raise it. Children
/// that were not kept, the length of the input, and the work of its run lower it.
fn weight(entry: &PoolEntry, known: &SeenFeatures) -> u64 {
    let shares = entry.features.iter().map(|it| known.inputs(it.counter()).max(1));
    let rarity: u64 = shares.map(|inputs| RARITY / u64::from(inputs)).sum();
    let fertility = 4 + u64::from(entry.kept.min(12));
    let depth = 16 + u64::from(entry.depth.min(16));
    let sterility = 64 + u64::from(entry.barren);
    let size = 256 + entry.input.len() as u64;
    let complexity = 16 + u64::from(entry.measures.complexity().min(16));
    let effort = EASY + entry.measures.work.min(MAX_EFFORT);
    // At most 2^12 * 2^14 * 2^4 * 2^5 * 2^5, times 2^10: far from 64 bits.
    let worth = rarity * fertility * depth * complexity;
    1 + worth * 64 * (EASY / 16) / (sterility * size * effort)
}

/// The work of a run that halves the weight of its input. Most programs of one layer do less.
const EASY: u64 = 256;
/// The highest work that counts. It divides the weight by 17, so that no input is never chosen.
const MAX_EFFORT: u64 = 16 * EASY;

const RARITY: u64 = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::{Observer, Rare, Vital};
    use crate::fuzzing::feedback::Recorder;

    fn entry(rare: &[Rare]) -> PoolEntry {
        let recorder = Recorder::new();
        rare.iter().for_each(|rare| recorder.rare(*rare));
        let features = CoverageFeatures::of(&recorder);
        PoolEntry {
            input: vec![0; 100],
            sound: true,
            parent: None,
            depth: 0,
            picks: 0,
            kept: 0,
            barren: 0,
            watermarks: Watermarks::default(),
            weight: 0,
            lineage: Lineage::of(None, &features),
            measures: Measures::default(),
            changes: Vec::new(),
            features,
        }
    }

    fn pool() -> (Pool, SeenFeatures) {
        let (mut pool, mut known) = (Pool::default(), SeenFeatures::default());
        for rare in [&[Rare::NoHole][..], &[Rare::NoHole], &[Rare::NoHole, Rare::LongTable]] {
            let entry = entry(rare);
            known.commit(&entry.features, &entry.changes);
            pool.add(entry, &known);
        }
        (0..3).for_each(|place| pool.bred(place, false, &known));
        (pool, known)
    }

    #[test]
    fn rare_fertile_deep_complex_short_and_easy_inputs_weigh_more() {
        let (mut pool, known) = pool();
        assert_eq!(pool.entries[0].weight, pool.entries[1].weight);
        assert!(pool.entries[2].weight > pool.entries[0].weight);
        let weigh = |change: fn(&mut PoolEntry)| {
            let mut changed = entry(&[Rare::NoHole]);
            change(&mut changed);
            weight(&changed, &known)
        };
        let unchanged = weigh(|_| ());
        assert!(weigh(|entry| entry.kept = 1) > unchanged);
        assert!(weigh(|entry| entry.depth = 1) > unchanged);
        assert!(weigh(|entry| entry.barren = 100) < unchanged);
        assert!(weigh(|entry| entry.input = vec![0; 500]) < unchanged);
        assert!(weigh(|entry| entry.measures.operations = 10) > unchanged);
        assert!(weigh(|entry| entry.measures.vitals[Vital::Layers.index()] = 3) > unchanged);
        assert!(weigh(|entry| entry.measures.vitals[Vital::Extents.index()] = 9) > unchanged);
        assert!(weigh(|entry| entry.measures.work = EASY) <= unchanged.div_ceil(2) + 1);
        assert!(weigh(|entry| entry.measures.work = u64::MAX) > unchanged / 20);
        let before = pool.entries[0].weight;
        (0..1000).for_each(|_| pool.bred(0, false, &known));
        assert!(pool.entries[0].weight < before / 8);
        pool.bred(0, true, &known);
        assert!(pool.entries[0].weight > before);
    }

    #[test]
    fn parents_are_chosen_by_weight() {
        let (pool, _) = pool();
        let mut entropy = Entropy::new(1);
        let mut chosen = [0u64; 3];
        (0..30_000).for_each(|_| chosen[pool.choose(&mut entropy)] += 1);
        let total: u64 = pool.entries.iter().map(|entry| entry.weight).sum();
        for (entry, chosen) in pool.entries.iter().zip(chosen) {
            let expected = 30_000 * entry.weight / total;
            assert!(chosen.abs_diff(expected) < expected / 10 + 50, "{chosen} {expected}");
        }
    }
}
