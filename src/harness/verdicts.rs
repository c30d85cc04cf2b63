//! The verdicts of the oracles on one run: a violation ends the run, unless its finding is known.

use std::sync::Arc;

use super::Violation;
use super::engine::ErrorKind;
use super::idle::{QuestionKind, Unanswered};

/// Findings that a user has set aside: the oracle that meets one records it, and the run goes on with the next oracle.
#[derive(Clone, Debug, Default)]
pub struct KnownFindings {
    fingerprints: Arc<[String]>,
}

impl KnownFindings {
    /// Creates the list of these fingerprints.
    pub fn new(fingerprints: impl IntoIterator<Item = String>) -> Self {
        Self { fingerprints: fingerprints.into_iter().collect() }
    }

    /// Reports whether the finding of `violation` is known.
    pub fn contain(&self, violation: &Violation) -> bool {
        // A violation is rare, and its fingerprint costs more than the search.
        !self.fingerprints.is_empty() && self.fingerprints.contains(&violation.fingerprint())
    }
}

/// The verdicts on one run.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// The findings that are known in every run.
    pub(super) known: KnownFindings,
    /// The fingerprints of known findings that the run met.
    met: Vec<String>,
    unanswered: Unanswered,
}

impl Verdicts {
    /// Begins a run.
    pub(super) fn begin_run(&mut self) {
        self.met.clear();
        self.unanswered = Unanswered::default();
    }

    /// Returns the fingerprints of known findings that the run met.
    pub(super) fn met(&self) -> &[String] {
        &self.met
    }

    /// Returns the kinds of questions that the engine did not answer.
    pub(super) fn unanswered(&self) -> Unanswered {
        self.unanswered
    }

    /// Returns the result of an oracle; `None` if it met a known finding.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(super) fn judge<T>(
        &mut self,
        result: Result<T, Box<Violation>>,
    ) -> Result<Option<T>, Box<Violation>> {
        match result {
            Ok(held) => Ok(Some(held)),
            Err(violation) if self.known.contain(&violation) => {
                self.met.push(violation.fingerprint());
                Ok(None)
            }
            Err(violation) => Err(violation),
        }
    }

    /// Returns the result of an oracle that asks questions of one kind; `None` if the engine has no answers to them, or
    /// if the oracle met a known finding.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(super) fn judge_answers<T>(
        &mut self,
        kind: QuestionKind,
        result: Result<T, Box<Violation>>,
    ) -> Result<Option<T>, Box<Violation>> {
        let not_asked = |violation: &Violation| violation.error_kind() == Some(ErrorKind::NotAsked);
        match result {
            Err(violation) if not_asked(&violation) => {
                self.unanswered.add(kind);
                Ok(None)
            }
            result => self.judge(result),
        }
    }
}
