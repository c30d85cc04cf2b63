//! The target `refcounts`: the allocator alone, in geometries that are too large for a walk.

use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::claims::Claims;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::oracles::Violation;
use crate::harness::oracles::qcow2::recount::Recount;
use crate::harness::oracles::qcow2::refcounts;
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "refcounts",
    about: "A program with larger limits: the harness builds its image, and judges only the refcounts",
    inputs: Inputs::Programs,
    limits: Limits::ALLOCATED,
    expectation: Expectation::NotWalked,
    // The harness asks the engine nothing. Other formats have no refcounts.
    claims: |_| Claims::QCOW2,
    judges_structures: false,
    judges_memory: false,
};

/// Creates the judge.
pub(super) fn judge() -> Box<dyn JudgeCase> {
    Box::<RefcountJudge>::default()
}

/// Judges only the refcounts of the images that programs build.
#[derive(Debug, Default)]
struct RefcountJudge {
    recount: Recount,
}

impl JudgeCase for RefcountJudge {
    fn judge(
        &mut self,
        _engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> Result<CaseEnd, Box<Violation>> {
        let top = case.images.top();
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        let checked = refcounts::check(&mut self.recount, &top.image, &top.out_of_date, set_aside);
        run.verdicts.judge(checked)?;
        Ok(CaseEnd::Judged)
    }
}
