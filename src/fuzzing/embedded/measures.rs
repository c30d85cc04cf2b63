//! The measures of a run: its vitals, its work and its complexity. They depend on the input alone, and on no clock.

use std::fmt;

use crate::base::limits::MAX_LAYERS;
use crate::disk::observer::Vital;
use crate::fuzzing::feedback::Recorder;
use crate::fuzzing::feedback::layout::{MAGNITUDES, magnitude, values};

/// The measures of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// The vitals of the last image.
    pub vitals: [u64; Vital::COUNT],
    /// The work of the run: [`Recorder::work`].
    pub work: u64,
    /// The number of operations of the program.
    pub operations: usize,
}

/// A change of a vital against the parent: its direction, and the magnitude of the difference, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentChange {
    /// The vital.
    pub vital: Vital,
    /// The vital is smaller than the parent's.
    pub falls: bool,
    /// The magnitude of the difference.
    pub magnitude: u8,
}

/// The number of different changes.
pub const PARENT_CHANGES: usize = 2 * Vital::COUNT * MAGNITUDES;

impl Measures {
    /// Returns the measures of the run that `recorder` observed, of a program with this many operations.
    pub fn of(recorder: &Recorder, operations: usize) -> Self {
        Self { vitals: recorder.last_vitals(), work: recorder.work(), operations }
    }

    /// Returns the complexity: the number of layers, and the magnitudes of the numbers of operations and extents.
    pub fn complexity(&self) -> u32 {
        let of = |vital: Vital| self.vitals[vital.index()];
        let magnitudes = [self.operations as u64, of(Vital::Extents)].map(magnitude);
        let layers = of(Vital::Layers).min(MAX_LAYERS as u64) as u32;
        layers + magnitudes.into_iter().map(u32::from).sum::<u32>()
    }

    /// Returns the vitals that differ from those of `parent`.
    pub fn changes(&self, parent: &Self) -> impl Iterator<Item = ParentChange> {
        let vitals = Vital::ALL.iter().zip(self.vitals).zip(parent.vitals);
        vitals.filter(|((_, value), before)| value != before).map(|((vital, value), before)| {
            let magnitude = magnitude(value.abs_diff(before));
            ParentChange { vital: *vital, falls: value < before, magnitude }
        })
    }

    /// Returns the indices of these changes.
    pub fn changes_from(&self, parent: &Self) -> Vec<u16> {
        self.changes(parent).map(|change| change.index() as u16).collect()
    }
}

impl ParentChange {
    /// Returns the change with an index, if there is one.
    pub fn at(index: u16) -> Option<Self> {
        let (row, magnitude) = (usize::from(index) / MAGNITUDES, usize::from(index) % MAGNITUDES);
        let vital = *Vital::ALL.get(row / 2)?;
        Some(Self { vital, falls: row % 2 == 1, magnitude: magnitude as u8 })
    }

    /// Returns the index of the change, less than [`PARENT_CHANGES`].
    pub fn index(self) -> usize {
        let rows = 2 * self.vital.index() + usize::from(self.falls);
        rows * MAGNITUDES + usize::from(self.magnitude)
    }
}

impl fmt::Display for ParentChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.falls { "fall" } else { "rise" };
        write!(f, "{} {direction} by {}", self.vital.name(), values(self.magnitude))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::Observer;

    fn measures(values: &[(Vital, u64)]) -> Measures {
        let recorder = Recorder::new();
        values.iter().for_each(|(vital, value)| recorder.vital(*vital, *value));
        recorder.measured();
        Measures::of(&recorder, 5)
    }

    #[test]
    fn changes_keep_their_sign() {
        let parent = measures(&[(Vital::Extents, 7), (Vital::Reads, 20), (Vital::Depth, 2)]);
        let child = measures(&[(Vital::Extents, 9), (Vital::Reads, 4), (Vital::Depth, 2)]);
        let change = |vital, falls, magnitude| ParentChange { vital, falls, magnitude };
        let expected = [change(Vital::Extents, false, 2), change(Vital::Reads, true, 5)];
        assert!(child.changes(&parent).eq(expected));
        assert_eq!(parent.changes(&parent).count(), 0);
        let again = child.changes_from(&parent).into_iter().filter_map(ParentChange::at);
        assert!(again.eq(expected));
        assert_eq!(expected[1].to_string(), "reads fall by 16 to 31");
        assert_eq!(ParentChange::at(PARENT_CHANGES as u16), None);
        let mut indices: Vec<_> = expected.iter().map(|change| change.index()).collect();
        let others = [change(Vital::Extents, true, 2), change(Vital::RequestAccesses, true, 15)];
        indices.extend(others.map(ParentChange::index));
        assert!(indices.iter().all(|index| *index < PARENT_CHANGES), "{indices:?}");
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), 4);
    }

    #[test]
    fn work_is_that_of_all_images_and_complexity_that_of_the_last() {
        let recorder = Recorder::new();
        for extents in [1000, 3] {
            recorder.vital(Vital::Extents, extents);
            recorder.vital(Vital::Layers, 2);
            recorder.vital(Vital::ReadBytes, 640);
            recorder.measured();
        }
        recorder.handled_bytes(6400);
        let measures = Measures::of(&recorder, 8);
        assert_eq!(measures.work, 1003 + 20 + 100);
        // 2 layers, 2 to 3 extents, 8 to 15 operations.
        assert_eq!(measures.complexity(), 2 + 2 + 4);
        recorder.begin_run();
        assert_eq!(Measures::of(&recorder, 0), Measures::default());
    }
}
