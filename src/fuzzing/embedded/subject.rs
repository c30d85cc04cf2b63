//! The interface between the embedded loop and the code that it runs, with the measures of a run: its work and its
//! complexity. They depend on the input alone, and on no clock.

use serde::{Deserialize, Serialize};

use crate::base::limits::MAX_LAYERS;
use crate::disk::observer::Vital;
use crate::findings::runner::Finding;
use crate::fuzzing::feedback::Recorder;
use crate::fuzzing::feedback::layout::magnitude;
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
///                 guest: failure.violation.guest,
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measures {
    /// The work of the run: `Recorder::work`.
    pub work: u64,
    /// The number of layers of the last image, and the magnitudes of the numbers of its extents and of the operations.
    pub complexity: u32,
}

impl Measures {
    /// Returns the measures of the run that `recorder` observed, of a program with this many operations.
    pub fn of(recorder: &Recorder, operations: usize) -> Self {
        let of = |vital: Vital| recorder.last_vital(vital);
        let magnitudes = [operations as u64, of(Vital::Extents)].map(magnitude);
        let layers = of(Vital::Layers).min(MAX_LAYERS as u64) as u32;
        let complexity = layers + magnitudes.into_iter().map(u32::from).sum::<u32>();
        Self { work: recorder.work(), complexity }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::observer::Observer;

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
        // 2 layers, 2 to 3 extents, 8 to 15 operations.
        let expected = Measures { work: 1003 + 20 + 100, complexity: 2 + 2 + 4 };
        assert_eq!(Measures::of(&recorder, 8), expected);
        recorder.begin_run();
        assert_eq!(Measures::of(&recorder, 0), Measures::default());
    }
}
