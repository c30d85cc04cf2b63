//! The interface between the embedded loop and the code that it runs.

use crate::findings::runner::Finding;
use crate::fuzzing::feedback::Recorder;
use crate::harness::cases::tracer::AccessedRange;
use crate::harness::{MetFinding, Outcome};

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
