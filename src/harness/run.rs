//! One run: bytes become a program, the program an image, the image extents, and the oracles judge
//! them. Everything that calls the pipeline (libFuzzer, tests, replay, benchmarks) calls this.

use crate::disk::extent::Extent;
use crate::disk::observer::Observer;
use crate::harness::engine::Engine;
use crate::images::entropy::Entropy;
use crate::images::files::{FileNames, Images};
use crate::images::image::Image;
use crate::images::limits::Limits;
use crate::programs::{Program, Vm};

use super::judge::Judge;
use super::{Checks, Failure, Outcome, Pipeline};

/// An engine and everything that judging it takes. What happens is told to its observer.
#[derive(Debug)]
pub struct Harness<E, O: Observer = ()> {
    engine: E,
    observer: O,
    pipeline: Pipeline,
    judge: Judge,
}

impl<E: Engine> Harness<E> {
    /// Puts `engine` in the walker's place.
    pub fn new(engine: E) -> Self {
        Self::observed(engine, ())
    }
}

impl<E: Engine, O: Observer> Harness<E, O> {
    /// Puts `engine` in the walker's place, and tells `observer` what VM, build and oracles do. What the
    /// engine does, it tells itself, if at all.
    pub fn observed(engine: E, observer: O) -> Self {
        let (pipeline, judge) = (Pipeline::default(), Judge::default());
        Self { engine, observer, pipeline, judge }
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
        let Self { engine, observer, pipeline, judge } = self;
        // Whatever is left open is decided by the input alone.
        let mut entropy = Entropy::new(u64::from(crc32fast::hash(input)));
        let mut unsupported = false;
        engine.begin_run();
        judge.begin_run();
        let outcome = pipeline.run(input, Limits::WALKED, checks, observer, |built| {
            judge.images(built.images)?;
            unsupported = !built.supported_by(&engine.capabilities());
            if unsupported {
                return Ok(());
            }
            judge.engine(engine, &built, observer, &mut entropy)
        })?;
        Ok(Outcome { unsupported, ..outcome })
    }

    /// Runs the program that `input` is without judging it, and returns the image that it builds; of a
    /// chain, the one at the top.
    pub fn build(&mut self, input: &[u8]) -> &Image {
        // Nothing can be found where nothing is judged.
        let run = self.pipeline.run(input, Limits::WALKED, Checks::default(), &(), |_| Ok(()));
        debug_assert!(run.is_ok());
        self.image()
    }

    /// The program of the last run.
    pub fn program(&self) -> &Program {
        self.pipeline.program()
    }

    /// The virtual machine as the last run left it: the builder, and the journal.
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

    /// The image that was built last; of a chain, the one at the top.
    pub fn image(&self) -> &Image {
        &self.images().top().image
    }

    /// The extents that were expected of the last image that was judged.
    pub fn expected(&self) -> &[Extent] {
        self.judge.expected()
    }

    /// The extents that the engine gave for it.
    pub fn actual(&self) -> &[Extent] {
        self.judge.whole()
    }
}
