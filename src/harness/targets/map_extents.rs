//! The target `map_extents`: [`Harness`], with our walker as the engine.

use crate::disk::observer::Observer;
use crate::harness::engine::Engine;
use crate::harness::target::{Definition, Expectation, Inputs, Target};
use crate::harness::{Checks, Failure, Harness, Outcome, Pipeline, Walker};
use crate::images::files::FileNames;
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "map_extents",
    about: "A program: its image is built and walked, all oracles judge",
    inputs: Inputs::Programs,
    limits: Limits::WALKED,
    expectation: Expectation::Extents,
    constructor: "harness::Harness::new({engine})",
};

/// Creates the target with our walker under test.
pub(super) fn create<O>(names: FileNames, observer: &O) -> Box<dyn Target>
where
    O: Observer + Clone + 'static,
{
    let walker = Walker::observed(observer.clone());
    Box::new(Harness::observed(walker, observer.clone()).named(names))
}

impl<E: Engine, O: Observer> Target for Harness<E, O> {
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        Harness::run(self, input, checks)
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        Some(Harness::pipeline(self))
    }
}
