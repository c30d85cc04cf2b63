//! The verdicts of the oracles on one run: a violation ends the run, unless its finding is known.

use super::Violation;
use super::engine::{EngineEnd, ErrorKind};
use super::idle::{QuestionKind, Unanswered};
use super::known::{KnownFindings, MetFinding};
use super::oracles::process_end;

/// The verdicts on one run.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// The findings that are known in every run.
    known: KnownFindings,
    /// The known findings that the run met, each once.
    met: Vec<MetFinding>,
    unanswered: Unanswered,
}

impl Verdicts {
    /// Creates the verdicts of runs in which the findings `known` are set aside.
    pub(super) fn knowing(known: KnownFindings) -> Self {
        Self { known, ..Self::default() }
    }

    /// Begins a run.
    pub(super) fn begin_run(&mut self) {
        self.met.clear();
        self.unanswered = Unanswered::default();
    }

    /// Returns the known findings that the run met, each once.
    pub(super) fn met(&self) -> &[MetFinding] {
        &self.met
    }

    /// Returns the kinds of questions that the engine did not answer.
    pub(super) fn unanswered(&self) -> Unanswered {
        self.unanswered
    }

    /// Records that the engine has no answer to questions of this kind.
    pub(super) fn leave_unanswered(&mut self, kind: QuestionKind) {
        self.unanswered.add(kind);
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
            // A violation is rare: its fingerprint may cost more than the search.
            Err(violation) if !self.known.is_empty() => {
                let fingerprint = violation.fingerprint();
                let Some(known) = self.known.find(&fingerprint) else { return Err(violation) };
                MetFinding::add(&mut self.met, known, &fingerprint);
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

    /// Returns the result of all oracles on an image: the end of the engine's process, if there is one, or `judged`.
    /// Returns `ended` if that end is a known finding.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(super) fn judge_end<T>(
        &mut self,
        end: Option<EngineEnd>,
        judged: Result<T, Box<Violation>>,
        ended: T,
    ) -> Result<T, Box<Violation>> {
        match end {
            None => judged,
            Some(end) => Ok(self.judge(Err(process_end(end)))?.unwrap_or(ended)),
        }
    }
}
