//! The target `hostile`: programs that damage the images that they build.

use crate::disk::extent::Extent;
use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::tested::TestedEngine;
use crate::harness::model::Model;
use crate::harness::oracles::{OracleResult, Violation, hostile};
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "hostile",
    about: "A program that damages its image: the engine must stay within bounds when it reads the image",
    inputs: Inputs::Programs,
    limits: Limits::HOSTILE,
    expectation: Expectation::UntouchedExtents,
    claims: |facts| facts.claims,
    judges_structures: false,
    judges_memory: true,
};

/// Creates the judge.
pub(super) fn judge() -> Box<dyn JudgeCase> {
    Box::<HostileJudge>::default()
}

/// Judges how an engine reads damaged images.
#[derive(Debug, Default)]
struct HostileJudge {
    model: Model,
    /// The extents of the disk without the damage.
    expected: Vec<Extent>,
    buffers: hostile::HostileBuffers,
}

impl JudgeCase for HostileJudge {
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> Result<CaseEnd, Box<Violation>> {
        let Self { model, expected, buffers } = self;
        model.replay(case.journals.iter().copied());
        model.extents(expected);
        let feedback = engine.facts().reads;
        run.begin_accesses(feedback);
        let judged = hostile::check(engine, (case, model, expected), run, buffers);
        run.end_accesses(feedback, case);
        judged
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
