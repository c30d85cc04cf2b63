//! The target `map_extents`: [`Harness`], with our walker as the engine.

use crate::disk::observer::Observer;
use crate::harness::engine::Engine;
use crate::harness::target::{Definition, Expectation, Inputs, Target};
use crate::harness::{Checks, Failure, Harness, Outcome, Pipeline};
use crate::images::limits::Limits;

/// What is fixed about the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "map_extents",
    about: "A program: its image is built and walked, all oracles judge",
    inputs: Inputs::Programs,
    limits: Limits::WALKED,
    expectation: Expectation::Extents,
    constructor: "harness::Harness::new({engine})",
};

impl<E: Engine, O: Observer> Target for Harness<E, O> {
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        Harness::run(self, input, checks)
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        Some(Harness::pipeline(self))
    }
}
