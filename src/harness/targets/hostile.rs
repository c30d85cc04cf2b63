//! What the target `hostile` runs on.

use crate::disk::extent::Extent;
use crate::disk::observer::Observer;
use crate::harness::engine::Engine;
use crate::harness::model::Model;
use crate::harness::oracles::hostile;
use crate::harness::oracles::raw::RawOutcome;
use crate::harness::{Built, Checks, Failure, Outcome, Pipeline};
use crate::images::damage::DamagedFiles;
use crate::images::entropy::Entropy;
use crate::images::files::{FileNames, Images};
use crate::images::limits::Limits;
use crate::programs::{Program, Vm};

/// Programs whose images are damaged; see [`libfuzzer::hostile`](crate::fuzzing::libfuzzer::hostile).
#[derive(Debug)]
pub struct Hostile<E, O: Observer = ()> {
    engine: E,
    observer: O,
    pipeline: Pipeline,
    model: Model,
    expected: Vec<Extent>,
    buffers: hostile::Buffers,
}

impl<E: Engine> Hostile<E> {
    /// Puts `engine` in the walker's place.
    pub fn new(engine: E) -> Self {
        Self::observed(engine, ())
    }
}

impl<E: Engine, O: Observer> Hostile<E, O> {
    /// Puts `engine` in the walker's place, and tells `observer` what VM and build do.
    pub fn observed(engine: E, observer: O) -> Self {
        let (pipeline, buffers) = Default::default();
        let (model, expected) = Default::default();
        Self { engine, observer, pipeline, model, expected, buffers }
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
        let Self { engine, observer, pipeline, model, expected, buffers } = self;
        let mut entropy = Entropy::new(u64::from(crc32fast::hash(input)));
        let (mut refused, mut failed, mut unsupported) = (0, 0, false);
        engine.begin_run();
        let outcome = pipeline.run(input, Limits::HOSTILE, checks, observer, |built| {
            let Built { images, vm, damage, .. } = built;
            unsupported = !built.supported_by(&engine.capabilities());
            if unsupported {
                return Ok(());
            }
            model.replay(vm.journals());
            model.extents(expected);
            let files = DamagedFiles::new(images, damage);
            let written_bytes = images.written_bytes();
            let case = hostile::Case { files: &files, written_bytes, expected, damage };
            let judged = hostile::check(engine, &case, &mut entropy, buffers);
            match judged? {
                RawOutcome::Refused => refused += 1,
                RawOutcome::Failed => failed += 1,
                RawOutcome::Walked => {}
            }
            Ok(())
        })?;
        Ok(Outcome { refused, failed, unsupported, ..outcome })
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

    /// The files that were built last, as the program damaged them.
    pub fn images(&self) -> &Images {
        self.pipeline.images()
    }
}
