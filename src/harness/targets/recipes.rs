//! The target `recipes`: disks that QEMU makes and changes.

use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::tested::TestedEngine;
use crate::harness::files::chain::Chain;
use crate::harness::oracles::raw::RawJudge;
use crate::harness::oracles::{OracleResult, Violation, known_bytes};
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "recipes",
    about: "Choices of commands by which the installed QEMU makes a disk: the engine's answers about it, and QEMU's",
    inputs: Inputs::Recipes,
    // The programs with which some recipes begin have limits of their own.
    limits: Limits::HOSTILE,
    expectation: Expectation::Bytes,
    claims: |facts| facts.claims,
    judges_structures: false,
    // The bound on memory depends on the tables of programs.
    judges_memory: false,
};

/// Creates the judge.
pub(super) fn judge() -> Box<dyn JudgeCase> {
    Box::<MadeDiskJudge>::default()
}

/// Judges how an engine reads the disks of recipes.
#[derive(Debug, Default)]
struct MadeDiskJudge {
    judge: RawJudge,
    buffer: Vec<u8>,
}

impl JudgeCase for MadeDiskJudge {
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> Result<CaseEnd, Box<Violation>> {
        let Self { judge, buffer } = self;
        let end = judge.judge(engine, run, case)?;
        if end == CaseEnd::Judged && !case.known.is_empty() {
            let chain = Chain::metered(case.images, run.meter);
            // The walk before has opened it.
            if let Ok(mut disk) = engine.open(&chain) {
                run.verdicts.judge(known_bytes::check(&mut disk, case.known, buffer))?;
            }
        }
        Ok(end)
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
