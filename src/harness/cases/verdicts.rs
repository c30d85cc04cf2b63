//! The verdicts of the oracles on one run: a violation ends the run, unless its finding is known. A known finding sets
//! itself aside, and nothing else.

use crate::harness::Violation;
use crate::harness::engine::known::{KnownFindings, MetFinding};
use crate::harness::engine::{EngineEnd, ErrorKind};
use crate::harness::oracles::{OracleResult, process_end};

/// The verdicts on one run.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    /// The findings that are known in every run.
    known: KnownFindings,
    /// The known findings that the run met, each once.
    met: Vec<MetFinding>,
    /// The commands of the recipe that the run carries out; none if the input is no recipe.
    commands: Vec<String>,
    /// The words of the fingerprint that was set aside last: many answers in a row may have the same.
    last: Option<[&'static str; 4]>,
}

impl Verdicts {
    /// Creates the verdicts of runs in which the findings `known` are set aside.
    pub(crate) fn knowing(known: KnownFindings) -> Self {
        Self { known, ..Self::default() }
    }

    /// Begins a run.
    pub(crate) fn begin_run(&mut self) {
        self.met.clear();
        self.commands.clear();
        self.last = None;
    }

    /// Notes the commands of the recipe that the run carries out.
    #[cfg(feature = "cli")]
    pub(crate) fn begin_recipe(&mut self, commands: Vec<String>) {
        self.commands = commands;
    }

    /// Returns the known findings that the run met, each once.
    pub(crate) fn met(&self) -> &[MetFinding] {
        &self.met
    }

    /// Returns the result of an oracle; `None` if it met a known finding.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(crate) fn judge<T>(
        &mut self,
        result: Result<T, Box<Violation>>,
    ) -> Result<Option<T>, Box<Violation>> {
        match result {
            Ok(held) => Ok(Some(held)),
            Err(violation) => self.set_aside(violation).map(|()| None),
        }
    }

    /// Sets a violation aside.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(crate) fn set_aside(&mut self, violation: Box<Violation>) -> OracleResult {
        if self.known.is_empty() {
            return Err(violation);
        }
        let words = violation.words();
        if words.is_some() && words == self.last {
            return Ok(());
        }
        // A violation is rare: its fingerprint may cost more than the search.
        if !self.note_known(&violation.fingerprint()) {
            return Err(violation);
        }
        self.last = words;
        Ok(())
    }

    /// Notes that the run met the finding with this fingerprint. Returns false if it is not known.
    pub(crate) fn note_known(&mut self, fingerprint: &str) -> bool {
        let known = self.known.find_in(fingerprint, &self.commands);
        known.into_iter().for_each(|known| {
            MetFinding::add(&mut self.met, known, fingerprint);
        });
        known.is_some()
    }

    /// Returns the result of an oracle that asks questions of one kind; `None` if the engine has no answers to them, or
    /// if the oracle met a known finding.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(crate) fn judge_answer<T>(
        &mut self,
        result: Result<T, Box<Violation>>,
    ) -> Result<Option<T>, Box<Violation>> {
        match result {
            Err(found) if found.error_kind() == Some(ErrorKind::NoAnswer) => Ok(None),
            result => self.judge(result),
        }
    }

    /// Returns the result of all oracles on an image: the end of the engine's process, if there is one, or `judged`.
    /// Returns `ended` if that end is a known finding.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(crate) fn judge_end<T>(
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
