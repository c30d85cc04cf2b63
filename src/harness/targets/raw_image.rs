//! The target `raw_image`: image files of any content.

use crate::disk::image_format::ImageFormat;
use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::tested::TestedEngine;
use crate::harness::oracles::qcow2::recount::Recount;
use crate::harness::oracles::raw::RawJudge;
use crate::harness::oracles::{OracleResult, Violation};
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "raw_image",
    about: "An image file of any content: the answers of the walker must agree with each other",
    inputs: Inputs::Files,
    // No run of this target reads them.
    limits: Limits::WALKED,
    expectation: Expectation::Unknown,
    claims: |facts| facts.claims,
    judges_structures: false,
    judges_memory: true,
};

/// The maximum number of references that a recount of a file keeps. A file may name a table many times, and libFuzzer
/// ends a process that takes 2 GiB.
const MAX_FILE_REFERENCES: usize = 1 << 20;

/// Creates the judge.
pub(super) fn judge() -> Box<dyn JudgeCase> {
    Box::new(FileJudge {
        recount: Recount::bounded(MAX_FILE_REFERENCES),
        judge: RawJudge::default(),
    })
}

/// Judges how an engine reads files of any content.
#[derive(Debug)]
struct FileJudge {
    recount: Recount,
    judge: RawJudge,
}

impl JudgeCase for FileJudge {
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> Result<CaseEnd, Box<Violation>> {
        let top = case.images.top();
        if top.format == ImageFormat::Qcow2 {
            // The recount must end without a panic. Any result is correct for a file of any content.
            let _ = self.recount.recount(&top.image);
        }
        self.judge.judge(engine, run, case)
    }

    fn compare(
        &mut self,
        opinion: &mut Opinion,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult {
        opinion.judge(engine, case, None, run.verdicts)
    }
}
