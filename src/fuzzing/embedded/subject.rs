//! The interface between the embedded loop and the code that it runs, with the measures of a run: its vitals, its work
//! and its complexity. They depend on the input alone, and on no clock.

use std::fmt;

use crate::base::limits::MAX_LAYERS;
use crate::disk::observer::Vital;
use crate::findings::runner::Finding;
use crate::fuzzing::feedback::Recorder;
use crate::fuzzing::feedback::layout::{MAGNITUDES, magnitude, values};
use crate::harness::cases::target::Inputs;
use crate::harness::cases::tracer::AccessedRange;
use crate::harness::engine::claims::Claims;
use crate::harness::{MetFinding, Outcome};
use crate::images::limits::Limits;

/// The code that the embedded loop runs.
///
/// ```
/// use std::rc::Rc;
///
/// use qcowfuzz::fuzzing::corpus::Folder;
/// use qcowfuzz::harness::{Checks, Harness, Walker};
/// use qcowfuzz::fuzzing::feedback::Recorder;
/// use qcowfuzz::findings::runner::Finding;
/// use qcowfuzz::fuzzing::embedded::{FuzzSettings, Fuzzer, RunReply, Subject};
/// use qcowfuzz::harness::engine::claims::Claims;
/// use qcowfuzz::harness::cases::target::Inputs;
/// use qcowfuzz::images::Limits;
///
/// struct Mine {
///     harness: Harness,
///     recorder: Rc<Recorder>,
/// }
///
/// impl Subject for Mine {
///     fn run(&mut self, input: &[u8]) -> RunReply {
///         match self.harness.run(input, Checks::default()) {
///             Ok(outcome) => RunReply::Sound(outcome),
///             Err(failure) => RunReply::Found(Finding {
///                 fingerprint: failure.violation.fingerprint(),
///                 detail: failure.violation.detail,
///             }),
///         }
///     }
///
///     fn recorder(&self) -> &Recorder {
///         &self.recorder
///     }
/// }
///
/// let recorder: Rc<Recorder> = Rc::default();
/// // Replace the walker by your engine.
/// let harness = Harness::observed(Walker::observed(recorder.clone()), recorder.clone());
/// let subject = Mine { harness, recorder };
/// # let dir = tempfile::tempdir().unwrap();
/// # let dir = dir.path();
/// let folder = |name: &str| Folder::new(dir.join(name), dir.join("scratch"));
/// let build = String::new();
/// let (inputs, limits, claims) = (Inputs::Programs, Limits::WALKED, Claims::ALL);
/// let settings = FuzzSettings { rng_seed: 1, inputs, limits, claims, max_operations: 60, build };
/// let mut fuzzer = Fuzzer::begin(subject, settings, folder("corpus")?, folder("artifacts")?)?;
/// for _ in 0..50 {
///     fuzzer.step()?;
/// }
/// assert!(fuzzer.progress().edges > 20 && fuzzer.found().is_empty());
/// # Ok::<(), qcowfuzz::base::error::Error>(())
/// ```
pub trait Subject {
    /// Runs an input while the [`recorder`](Subject::recorder) counts its events.
    fn run(&mut self, input: &[u8]) -> RunReply;

    /// Returns the recorder that counts events. The loop resets it before each run.
    fn recorder(&self) -> &Recorder;

    /// Runs an input again, which has found nothing before, and returns the bytes of its files that the code under test
    /// accesses: by default, nothing is known about them. The recorder counts no event of this run.
    fn trace(&mut self, input: &[u8]) -> Option<Vec<AccessedRange>> {
        let _ = input;
        None
    }

    /// Returns the known findings that the last run met, each once: by default, none.
    fn met(&self) -> &[MetFinding] {
        &[]
    }

    /// Returns an input that shows the finding of the last run better than the input of that run: by default, none.
    fn shown_by(&self) -> Option<&[u8]> {
        None
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunReply {
    /// The run found nothing.
    Sound(Outcome),
    /// The run found a bug.
    Found(Finding),
    /// A panic ended the run, and the finding is known.
    KnownPanic,
    /// The subject did not run the input, because the input is known to end the process.
    Skipped,
}

impl RunReply {
    /// Reports whether another run of the input may have other counters, for a reason outside of the code under test.
    pub fn varies(&self) -> bool {
        matches!(self, Self::Sound(outcome) if outcome.varies)
    }
}

/// The settings of a campaign, which do not change while it runs.
#[derive(Clone, Debug)]
pub struct FuzzSettings {
    /// The seed of all random choices.
    pub rng_seed: u64,
    /// The kind of the target's inputs.
    pub inputs: Inputs,
    /// The limits of the target.
    pub limits: Limits,
    /// The claims of the engine under test: inputs are folded into the features that it knows.
    pub claims: Claims,
    /// The highest number of operations of a child.
    pub max_operations: usize,
    /// The name of the code that is fuzzed. In the same build, the same input has the same coverage.
    pub build: String,
}

/// The measures of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// The vitals of the last image.
    pub vitals: [u64; Vital::COUNT],
    /// The work of the run: `Recorder::work`.
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
