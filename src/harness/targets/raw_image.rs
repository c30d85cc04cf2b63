//! What the target `raw_image` runs on.

use crate::disk::observer::Observer;
use crate::harness::Walker;
use crate::harness::oracles::Violation;
use crate::harness::oracles::raw::{RawJudge, RawOutcome};

/// Files of any content; see [`libfuzzer::raw_image`](crate::fuzzing::libfuzzer::raw_image).
#[derive(Debug)]
pub struct RawImage<O: Observer = ()> {
    walker: Walker<O>,
    judge: RawJudge,
}

impl Default for RawImage {
    /// Nobody observes.
    fn default() -> Self {
        Self::observed(())
    }
}

impl<O: Observer> RawImage<O> {
    /// Tells `observer` what the walker does.
    pub fn observed(observer: O) -> Self {
        Self { walker: Walker::observed(observer), judge: RawJudge::default() }
    }

    /// Judges what the walker makes of the file that `input` is.
    ///
    /// # Errors
    /// A violation.
    pub fn run(&mut self, input: &[u8]) -> Result<RawOutcome, Box<Violation>> {
        self.judge.judge(&mut self.walker, input)
    }
}
