//! What the target `refcounts` runs on.

use crate::disk::observer::Observer;
use crate::harness::oracles::recount::Recount;
use crate::harness::oracles::refcounts;
use crate::harness::{Checks, Failure, Outcome, Pipeline};
use crate::images::files::{FileNames, Images};
use crate::images::limits::Limits;
use crate::programs::{Program, Vm};

/// Programs of which only the refcounts are judged; see [`libfuzzer::refcounts`](crate::fuzzing::libfuzzer::refcounts).
#[derive(Debug, Default)]
pub struct Refcounts<O: Observer = ()> {
    pipeline: Pipeline,
    recount: Recount,
    observer: O,
}

impl<O: Observer> Refcounts<O> {
    /// Tells `observer` what happens.
    pub fn observed(observer: O) -> Self {
        Self { pipeline: Pipeline::default(), recount: Recount::default(), observer }
    }

    /// The same, for images that are to become files: they call each other by `names`.
    pub fn named(self, names: FileNames) -> Self {
        Self { pipeline: Pipeline::named(names), ..self }
    }

    /// Runs the program that `input` is.
    ///
    /// # Errors
    /// A violation.
    pub fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self { pipeline, recount, observer } = self;
        pipeline.run(input, Limits::ALLOCATED, checks, observer, |built| {
            let top = built.images.top();
            refcounts::check(recount, &top.image, &top.out_of_date)
        })
    }

    /// The program of the last run.
    pub fn program(&self) -> &Program {
        self.pipeline.program()
    }

    /// The virtual machine as the last run left it.
    pub fn vm(&self) -> &Vm {
        self.pipeline.vm()
    }

    /// How many operations had run when the last run ended; of a panic, the one in which it was is counted too.
    pub fn operations_run(&self) -> usize {
        self.pipeline.operations_run()
    }

    /// The files that were built last.
    pub fn images(&self) -> &Images {
        self.pipeline.images()
    }
}
