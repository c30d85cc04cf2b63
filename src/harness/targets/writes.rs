//! The target `writes`: programs with requests, by which an engine writes to the image at the top.

use crate::base::features::Feature;
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::State;
use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::Facts;
use crate::harness::engine::claims::Claims;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::{OracleResult, Violation};
use crate::harness::writing::WriterJudge;
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "writes",
    about: "A program: the engine writes to the image that the harness has built, and its disk and file are judged",
    inputs: Inputs::Programs,
    limits: Limits::WRITTEN,
    expectation: Expectation::Written,
    claims: claims_of,
    judges_structures: true,
    // The log of an engine's writes counts as allocated.
    judges_memory: false,
};

/// Creates the judge.
pub(super) fn judge() -> Box<dyn JudgeCase> {
    Box::<WriterJudge>::default()
}

/// Returns the claims by which programs are folded: those of the engine, without features that writers may change as
/// soon as they open an image.
fn claims_of(facts: &Facts) -> Claims {
    facts.write_claims().no(&[
        Feature::Dirty,
        Feature::OutOfDateRefcounts,
        Feature::Corrupt,
        Feature::UnknownBits,
    ])
}

impl JudgeCase for WriterJudge {
    fn begin_run(&mut self, checksum: u32) {
        WriterJudge::begin_run(self, checksum);
    }

    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> Result<CaseEnd, Box<Violation>> {
        if case.images.top().format != ImageFormat::Qcow2 {
            // Only qcow2 images have requests, and a recount of their own.
            return Ok(CaseEnd::Unsupported);
        }
        run.observer.begin(State::Write);
        let judged = self.judge_requests(engine, run, case);
        // A known error ends the requests, unless it is that of a write, of zeros or of a discard, and the image has
        // no bitmaps.
        run.verdicts.judge(judged).map(|_| CaseEnd::Judged)
    }

    fn compare(
        &mut self,
        opinion: &mut Opinion,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult {
        // The other implementation would only say the same of a file with a known finding.
        match (run.verdicts.met(), self.written()) {
            ([], Some(left)) => opinion.judge_left(engine, case, left, run.verdicts),
            _ => Ok(()),
        }
    }

    fn left(&self) -> Option<&Chain> {
        self.written()
    }

    fn forget(&mut self) {
        WriterJudge::forget(self);
    }
}
