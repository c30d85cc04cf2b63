//! The steps in which a file is judged: a known finding of one step does not hide those of the next.

use crate::harness::cases::verdicts::Verdicts;
use crate::harness::oracles::Violation;

/// The verdicts on a file.
pub(super) struct FileSteps<'v> {
    pub(super) verdicts: &'v mut Verdicts,
    /// Adds to a violation in which file it was found.
    attribute: fn(Box<Violation>) -> Box<Violation>,
    has_finding: bool,
}

impl<'v> FileSteps<'v> {
    /// Begins to judge a file.
    pub(super) fn new(
        verdicts: &'v mut Verdicts,
        attribute: fn(Box<Violation>) -> Box<Violation>,
    ) -> Self {
        Self { verdicts, attribute, has_finding: false }
    }

    /// Returns the result of a step; `None` if it met a known finding.
    ///
    /// # Errors
    /// The violation, if its finding is new.
    pub(super) fn judge<T>(
        &mut self,
        found: Result<T, Box<Violation>>,
    ) -> Result<Option<T>, Box<Violation>> {
        self.has_finding |= found.is_err();
        self.verdicts.judge(found.map_err(self.attribute))
    }

    /// Reports whether a step has found something, known or not.
    pub(super) fn has_finding(&self) -> bool {
        self.has_finding
    }
}
