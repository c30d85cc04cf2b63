//! Runs inputs of a target and turns a panic of the code under test into a finding.

use std::rc::Rc;

use crate::disk::observer::Observer;
use crate::disk::offsets::GuestOffset;
#[cfg(feature = "fuzzer")]
use crate::harness::cases::explored::Explored;
use crate::harness::cases::implementation::Implementation;
#[cfg(feature = "fuzzer")]
use crate::harness::cases::lanes::Lane;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Failure, Harness, MetFinding, Outcome, Pipeline};
use crate::images::files::{FileNames, LayerFiles};

use super::panics::{self, PanicNote};

#[cfg(feature = "cli")]
use crate::harness::cases::implementation::no_observer;

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Ran {
    /// No oracle found a violation.
    Sound(Outcome),
    /// An oracle found a violation.
    Violation(Box<Failure>),
    /// The code under test panicked.
    Panic(PanicNote),
    /// The code under test panicked, and the finding is known. Nothing is known about the rest of the run.
    KnownPanic(PanicNote),
}

/// A violation or a panic, as reports name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// One line that is the same for all inputs that show the bug.
    pub fingerprint: String,
    /// The place and the values, for people.
    pub detail: String,
    /// The first guest byte about which the answers disagree, if the finding is about certain bytes.
    pub guest: Option<GuestOffset>,
}

impl Ran {
    /// Returns the finding, if there is one.
    pub fn finding(&self) -> Option<Finding> {
        let (fingerprint, detail, guest) = match self {
            Self::Sound(_) | Self::KnownPanic(_) => return None,
            Self::Violation(failure) => {
                let violation = &failure.violation;
                (violation.fingerprint(), violation.detail.clone(), violation.guest)
            }
            Self::Panic(note) => (note.fingerprint(), note.detail.clone(), None),
        };
        Some(Finding { fingerprint, detail, guest })
    }

    /// Reports whether the oracle that found the violation draws its questions from the checksum of the input.
    pub fn is_drawn(&self) -> bool {
        matches!(self, Self::Violation(failure) if failure.violation.drawn)
    }
}

/// The fingerprint of a difference between two runs of one input.
#[cfg(feature = "fuzzer")]
pub(crate) const UNSTEADY: &str = "determinism: run, the same → others";

/// Returns the finding of two runs of one input: their difference, or else the finding of the first.
#[cfg(feature = "fuzzer")]
pub(crate) fn finding_of_two(first: &Ran, again: &Ran) -> Option<Finding> {
    if first == again {
        return first.finding();
    }
    let described = |ran: &Ran| match ran.finding() {
        Some(Finding { fingerprint, detail, .. }) => format!("{fingerprint} ({detail})"),
        None => "nothing".to_string(),
    };
    let (first, again) = (described(first), described(again));
    Some(Finding {
        fingerprint: UNSTEADY.to_string(),
        detail: format!("found first: {first}; found when it was run again: {again}"),
        guest: None,
    })
}

/// Returns `implementation`, with the known findings under which `input` shows a finding: its own; or none, if all that
/// the input shows is known.
#[cfg(feature = "cli")]
pub(crate) fn showing(
    implementation: &Implementation,
    kind: TargetKind,
    input: &[u8],
) -> Implementation {
    let mut runner = Runner::new(implementation, kind, FileNames::default(), no_observer());
    let finding = runner.run(input, Checks::default()).finding();
    let known = match finding.is_none() && !runner.met().is_empty() {
        true => Default::default(),
        false => runner.target.facts().known.clone(),
    };
    implementation.clone().knowing(known)
}

/// Runs inputs of a target. It reuses the target's buffers from run to run.
pub struct Runner {
    implementation: Implementation,
    kind: TargetKind,
    names: FileNames,
    observer: Rc<dyn Observer>,
    target: Harness,
    /// True if the last run panicked. The target's buffers are then in an unknown state.
    panicked: bool,
}

impl Runner {
    /// Creates a runner for inputs of the target `kind`, with `implementation` under test. Images name each other by
    /// `names`; the target reports events to `observer`.
    pub fn new(
        implementation: &Implementation,
        kind: TargetKind,
        names: FileNames,
        observer: Rc<dyn Observer>,
    ) -> Self {
        let target = kind.create(implementation, names.clone(), Rc::clone(&observer));
        let implementation = implementation.clone();
        Self { implementation, kind, names, observer, target, panicked: false }
    }

    /// Runs an input. If it panics, [`Runner::pipeline`] shows the progress of the run.
    pub fn run(&mut self, input: &[u8], checks: Checks) -> Ran {
        self.renew();
        let Self { target, panicked, .. } = self;
        let caught = panics::caught(|| target.run(input, checks));
        match caught {
            Ok(Ok(outcome)) => Ran::Sound(outcome),
            Ok(Err(failure)) => Ran::Violation(failure),
            Err(note) => {
                *panicked = true;
                match target.note_known(&note.fingerprint()) {
                    true => Ran::KnownPanic(note),
                    false => Ran::Panic(note),
                }
            }
        }
    }

    /// Replaces the target after a panic.
    fn renew(&mut self) {
        if std::mem::take(&mut self.panicked) {
            let observer = Rc::clone(&self.observer);
            self.target = self.kind.create(&self.implementation, self.names.clone(), observer);
        }
    }

    /// Returns the known findings that the last run met, each once.
    pub fn met(&self) -> &[MetFinding] {
        self.target.met()
    }

    /// Returns the possibilities of the last run, and the switches that say which of them the next one notes; `None` if
    /// the target does not write. After a panic, nothing is known about the last run.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn explored(&mut self) -> Option<&mut Explored> {
        self.renew();
        self.target.explored()
    }

    /// Has the next run note the lanes of requests in flight.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn note_lanes(&mut self) {
        self.explored().into_iter().for_each(|it| it.notes_lanes = true);
    }

    /// Returns the lanes of the last run, for each group of requests in flight.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn lanes(&mut self) -> Vec<Vec<Lane>> {
        // Also after a panic: the evidence needs the target as the run has left it.
        self.target.explored().map(|it| it.lanes.clone()).unwrap_or_default()
    }

    /// Returns the implementation under test.
    pub fn implementation(&self) -> &Implementation {
        &self.implementation
    }

    /// Returns the pipeline with the program, the virtual machine and the images of the last run. Returns `None` if the
    /// inputs of the target are files.
    pub fn pipeline(&self) -> Option<&Pipeline> {
        self.target.runs_programs().then(|| self.target.pipeline())
    }

    /// Returns the commands of the recipe of the last run, with a comment for each step.
    pub fn recipe_lines(&self) -> Vec<String> {
        self.target.recipe_lines()
    }

    /// Returns the files at the top as the engine of the last run has left them, if it has written them.
    pub fn left(&self) -> Option<&LayerFiles> {
        self.target.left()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::harness::oracles::Violation;

    /// Returns a made-up violation after two operations.
    pub(crate) fn violation(oracle: &'static str, drawn: bool) -> Ran {
        let (field, expected, actual) = ("kind", "normal", "unallocated");
        let violation = Violation {
            oracle,
            drawn,
            field,
            expected,
            actual,
            error: None,
            guest: None,
            detail: "where".to_string(),
        };
        Ran::Violation(Box::new(Failure { violation, operations_run: 2 }))
    }

    #[test]
    fn the_finding_of_two_runs_is_the_first_or_that_they_differ() {
        let [sound, other] =
            [0, 1].map(|images| Ran::Sound(Outcome { images, ..Outcome::default() }));
        let model = violation("model", false);
        assert_eq!(finding_of_two(&sound, &sound), None);
        assert_eq!(finding_of_two(&model, &model), model.finding());
        let differ = "determinism: run, the same → others";
        let found = finding_of_two(&model, &sound).unwrap();
        assert_eq!(found.fingerprint, differ);
        let detail = "found first: model: kind, normal → unallocated (where); found when it was run again: nothing";
        assert_eq!(found.detail, detail);
        // Neither run has a finding, but their results differ.
        assert_eq!(finding_of_two(&sound, &other).unwrap().fingerprint, differ);
    }

    #[test]
    fn a_violation_knows_whether_its_questions_are_drawn() {
        assert!(violation("window", true).is_drawn() && !violation("model", false).is_drawn());
        assert!(!Ran::Sound(Outcome::default()).is_drawn());
    }
}
