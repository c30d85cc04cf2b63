//! The steps in which a file is judged: a known finding of one step does not hide those of the next.

use crate::harness::cases::case::Verdicts;
use crate::harness::oracles::qcow2::refcounts;
use crate::harness::oracles::{OracleResult, SetAside, Violation};

/// The verdicts on a file.
pub(super) struct FileSteps<'v> {
    pub(super) verdicts: &'v mut Verdicts,
    /// Adds to a violation in which file it was found.
    attribute: fn(Box<Violation>) -> Box<Violation>,
    has_finding: bool,
    /// A finding is more than a leak.
    has_harm: bool,
}

impl<'v> FileSteps<'v> {
    /// Begins to judge a file.
    pub(super) fn new(
        verdicts: &'v mut Verdicts,
        attribute: fn(Box<Violation>) -> Box<Violation>,
    ) -> Self {
        Self { verdicts, attribute, has_finding: false, has_harm: false }
    }

    /// Returns the result of a step; `None` if it met a known finding.
    pub(super) fn judge<T>(&mut self, found: OracleResult<T>) -> OracleResult<Option<T>> {
        match found {
            Ok(held) => Ok(Some(held)),
            Err(found) => self.set_aside(found).map(|()| None),
        }
    }

    /// Runs `judge`, which may set several violations aside. Returns true if there was none. A new violation is
    /// attributed twice, which changes nothing.
    pub(super) fn each(
        &mut self,
        judge: impl FnOnce(&mut SetAside) -> OracleResult,
    ) -> OracleResult<bool> {
        let mut has_held = true;
        let judged = judge(&mut |found| {
            has_held = false;
            self.set_aside(found)
        });
        Ok(self.judge(judged)?.is_some() && has_held)
    }

    fn set_aside(&mut self, found: Box<Violation>) -> OracleResult {
        self.has_finding = true;
        self.has_harm |= !refcounts::is_leak(&found);
        self.verdicts.set_aside((self.attribute)(found))
    }

    /// Reports whether a step has found something, known or not.
    pub(super) fn has_finding(&self) -> bool {
        self.has_finding
    }

    /// Reports whether a finding is more than a leak of clusters without a reference: later ones could follow from it.
    pub(super) fn has_harm(&self) -> bool {
        self.has_harm
    }
}
