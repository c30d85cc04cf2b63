//! The target `map_extents`: programs that build valid images, with our walker as the first engine.

use crate::harness::cases::target::{Definition, Expectation, Inputs, JudgeCase};
use crate::images::limits::Limits;

use super::reading::ReadingJudge;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "map_extents",
    about: "A program: the harness builds its image, the engine walks it, and all oracles judge",
    inputs: Inputs::Programs,
    limits: Limits::WALKED,
    expectation: Expectation::Extents,
    claims: |facts| facts.claims,
    judges_structures: true,
    judges_memory: true,
};

/// Creates the judge.
pub(super) fn judge() -> Box<dyn JudgeCase> {
    Box::<ReadingJudge>::default()
}
