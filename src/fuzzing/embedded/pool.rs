//! The inputs that are kept, and which of them is the next parent.

use crate::fuzzing::feedback::coverage::Features;
use crate::images::entropy::Entropy;

use super::scoring::{self, Known, Lineage, Watermarks};

/// An input that is kept.
#[derive(Debug)]
pub struct Entry {
    /// Its bytes.
    pub input: Vec<u8>,
    /// Nothing was found in it: children come from those in which nothing was.
    pub sound: bool,
    /// Which input it was bred from.
    pub parent: Option<usize>,
    /// How many ancestors it has.
    pub depth: u32,
    /// How often it was a parent.
    pub picks: u32,
    /// How many children were kept (its fertility).
    pub kept: u32,
    /// How many children were not, since the last one that was (its sterility).
    pub barren: u32,
    /// What a child's vitals have to exceed.
    pub watermarks: Watermarks,
    /// How likely it is to be the next parent, relative to the others.
    pub weight: u64,
    /// What it covers.
    pub features: Features,
    /// What it and its ancestors cover.
    pub lineage: Lineage,
}

/// After so many picks in a row without a child that was kept, its watermarks decay.
const DECAY: u32 = 256;

/// All of them.
#[derive(Debug, Default)]
pub struct Pool {
    entries: Vec<Entry>,
}

impl Pool {
    /// All, in the order in which they came.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The next parent.
    pub fn choose(&self, entropy: &mut Entropy) -> usize {
        let weight = |entry: &Entry| if entry.sound { entry.weight } else { 0 };
        entropy.weighted(self.entries.iter().map(weight)).unwrap_or(0)
    }

    /// Adds an input that `known` knows; returns its place.
    pub fn add(&mut self, mut entry: Entry, known: &Known) -> usize {
        entry.weight = weight(&entry, known);
        self.entries.push(entry);
        self.entries.len() - 1
    }

    /// An input as it was saved, weight and all.
    pub fn restore(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// The entry at `place` had a child, which was kept or not.
    pub fn bred(&mut self, place: usize, kept: bool, known: &Known) {
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

    /// A shorter input takes the place of one that covers the same.
    pub fn shorten(&mut self, place: usize, input: Vec<u8>) {
        self.entries[place].input = input;
    }
}

/// Rare counters, children that were kept and a long line of ancestors make an entry likelier; children that
/// were not kept, and its own length, less likely.
fn weight(entry: &Entry, known: &Known) -> u64 {
    let shares = entry.features.iter().map(|it| known.inputs(it.counter()).max(1));
    let rarity: u64 = shares.map(|inputs| RARITY / u64::from(inputs)).sum();
    let fertility = 4 + u64::from(entry.kept.min(12));
    let depth = 16 + u64::from(entry.depth.min(16));
    let sterility = 64 + u64::from(entry.barren);
    let size = 256 + entry.input.len() as u64;
    // At most 2^12 * 2^14 * 2^4 * 2^5: far from 64 bits.
    1 + rarity * fertility * depth * 64 / (sterility * size)
}

const RARITY: u64 = 1 << 12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::{Observer, Rare};
    use crate::fuzzing::feedback::Recorder;

    fn entry(rare: &[Rare]) -> Entry {
        let recorder = Recorder::new();
        rare.iter().for_each(|rare| recorder.rare(*rare));
        let features = Features::of(&recorder);
        Entry {
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
            features,
        }
    }

    fn pool() -> (Pool, Known) {
        let (mut pool, mut known) = (Pool::default(), Known::default());
        for rare in [&[Rare::NoHole][..], &[Rare::NoHole], &[Rare::NoHole, Rare::LongTable]] {
            let entry = entry(rare);
            known.commit(&entry.features);
            pool.add(entry, &known);
        }
        (0..3).for_each(|place| pool.bred(place, false, &known));
        (pool, known)
    }

    #[test]
    fn what_is_rare_fertile_deep_and_short_is_likelier() {
        let (mut pool, known) = pool();
        assert_eq!(pool.entries[0].weight, pool.entries[1].weight);
        assert!(pool.entries[2].weight > pool.entries[0].weight);
        let weigh = |change: fn(&mut Entry)| {
            let mut changed = entry(&[Rare::NoHole]);
            change(&mut changed);
            weight(&changed, &known)
        };
        let as_it_is = weigh(|_| ());
        assert!(weigh(|entry| entry.kept = 1) > as_it_is);
        assert!(weigh(|entry| entry.depth = 1) > as_it_is);
        assert!(weigh(|entry| entry.barren = 100) < as_it_is);
        assert!(weigh(|entry| entry.input = vec![0; 500]) < as_it_is);
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
