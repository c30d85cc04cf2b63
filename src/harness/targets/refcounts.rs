//! The target `refcounts`: the allocator alone, in geometries that are too large for a walk.

use crate::disk::observer::Observer;
use crate::harness::claims::Claims;
use crate::harness::engine::Engine;
use crate::harness::oracles::qcow2::recount::Recount;
use crate::harness::oracles::qcow2::refcounts;
use crate::harness::second_opinion::SecondOpinion;
use crate::harness::target::{Definition, Expectation, Inputs, Target};
use crate::harness::verdicts::Verdicts;
use crate::harness::{Checks, Failure, KnownFindings, MetFinding, Outcome, Pipeline};
use crate::images::files::FileNames;
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "refcounts",
    about: "A program with larger limits: the harness builds its image, and judges only the refcounts",
    inputs: Inputs::Programs,
    limits: Limits::ALLOCATED,
    expectation: Expectation::NotWalked,
};

/// Creates the target. It asks the engine only for its known findings.
pub(super) fn create<E, O>(
    engine: E,
    names: FileNames,
    observer: &O,
    _second: Option<Box<dyn SecondOpinion>>,
) -> Box<dyn Target>
where
    E: Engine + 'static,
    O: Observer + Clone + 'static,
{
    let known = engine.known_findings();
    Box::new(Refcounts::observed(observer.clone(), known).named(names))
}

/// Runs programs and judges only the refcounts of the images that they build.
#[derive(Debug, Default)]
pub struct Refcounts<O: Observer = ()> {
    pipeline: Pipeline,
    recount: Recount,
    observer: O,
    verdicts: Verdicts,
}

impl<O: Observer> Refcounts<O> {
    /// Creates the target, which sets the findings `known` aside. VM and build report events to `observer`.
    pub fn observed(observer: O, known: KnownFindings) -> Self {
        let (pipeline, recount) = Default::default();
        Self { pipeline, recount, observer, verdicts: Verdicts::knowing(known) }
    }

    /// Uses `names` for the files of images that name each other.
    pub fn named(self, names: FileNames) -> Self {
        Self { pipeline: Pipeline::named(names), ..self }
    }
}

impl<O: Observer> Target for Refcounts<O> {
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self { pipeline, recount, observer, verdicts } = self;
        verdicts.begin_run();
        // Other formats have no refcounts.
        pipeline.load(input, &Claims::QCOW2);
        pipeline.run(DEFINITION.limits, checks, observer, |case| {
            let top = case.images.top();
            verdicts.judge(refcounts::check(recount, &top.image, &top.out_of_date)).map(|_| ())
        })
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        Some(&self.pipeline)
    }

    fn met(&self) -> &[MetFinding] {
        self.verdicts.met()
    }
}
