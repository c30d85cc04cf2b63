//! The target `map_extents`: [`Harness`], with our walker as the engine.

use crate::disk::observer::Observer;
use crate::harness::engine::Engine;
use crate::harness::run::LIMITS;
use crate::harness::second_opinion::SecondOpinion;
use crate::harness::target::{Definition, Expectation, Inputs, Target};
use crate::harness::{Checks, Failure, Harness, MetFinding, Outcome, Pipeline};
use crate::images::files::FileNames;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "map_extents",
    about: "A program: the harness builds its image, the engine walks it, and all oracles judge",
    inputs: Inputs::Programs,
    limits: LIMITS,
    expectation: Expectation::Extents,
};

/// Creates the target with `engine` under test.
pub(super) fn create<E, O>(
    engine: E,
    names: FileNames,
    observer: &O,
    second: Option<Box<dyn SecondOpinion>>,
) -> Box<dyn Target>
where
    E: Engine + 'static,
    O: Observer + Clone + 'static,
{
    Box::new(Harness::observed(engine, observer.clone()).named(names).judged_by(second))
}

impl<E: Engine, O: Observer> Target for Harness<E, O> {
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        Harness::run(self, input, checks)
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        Some(Harness::pipeline(self))
    }

    fn met(&self) -> &[MetFinding] {
        Harness::met(self)
    }
}
