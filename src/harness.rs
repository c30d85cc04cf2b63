//! One run: bytes become a program, the program an image, the image extents, and the oracles judge
//! them. Everything that calls the pipeline (libFuzzer, tests, replay, benchmarks) calls this.

use crate::build;
use crate::engines::{Engine, OpenDisk};
use crate::entropy::Entropy;
use crate::extent::{Extent, Window};
use crate::image::Image;
use crate::limits::Limits;
use crate::model::Model;
use crate::oracles::collector::Collector;
use crate::oracles::metered::Metered;
use crate::oracles::recount::Recount;
use crate::oracles::{self, Verdict, Violation};
use crate::qcow2::header::Geometry;
use crate::vm::{Effect, Program, Question, Vm};

/// When the image is built and verified, beside a program's checkpoints and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// Never.
    #[default]
    AtCheckpoints,
    /// After every operation.
    AfterEach,
}

/// What became of a run without a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many operations the program has.
    pub operations: usize,
    /// How many of them changed the image or asked a question.
    pub effective: usize,
    /// How many images were built and verified.
    pub images: usize,
    /// The engine does not support the image's features: nothing was asked of it.
    pub unsupported: bool,
}

/// A violation, and where in the program it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was found.
    pub violation: Violation,
    /// How many operations had run when the image was verified.
    pub operations_run: usize,
}

/// The way from bytes to images. All buffers are reused from run to run, and no run sees anything of
/// the one before.
#[derive(Debug, Default)]
pub struct Pipeline {
    program: Program,
    vm: Vm,
    scratch: build::Scratch,
    image: Image,
}

impl Pipeline {
    /// Runs the program that `input` is, and has each image that is due judged.
    ///
    /// # Errors
    /// What `judge` found.
    pub fn run(
        &mut self,
        input: &[u8],
        limits: Limits,
        checks: Checks,
        mut judge: impl FnMut(&Image, &Vm) -> Verdict,
    ) -> Result<Outcome, Box<Failure>> {
        self.program.decode_from(input);
        self.vm.begin(&self.program.prologue, limits);
        let operations = self.program.operations.len();
        let mut outcome = Outcome { operations, ..Outcome::default() };
        for at in 0..=operations {
            let end = at == operations;
            let effect = match end {
                true => Effect::Checkpoint,
                false => self.vm.step(self.program.operations[at]),
            };
            outcome.effective += usize::from(effect != Effect::None && !end);
            // What comes last is verified once.
            let early = effect == Effect::Checkpoint || checks == Checks::AfterEach;
            if end || early && at + 1 < operations {
                self.vm.builder().build(&mut self.scratch, &mut self.image);
                outcome.images += 1;
                let operations_run = (at + 1).min(operations);
                judge(&self.image, &self.vm).map_err(|violation| {
                    Box::new(Failure { violation: *violation, operations_run })
                })?;
                self.vm.answered();
            }
        }
        Ok(outcome)
    }

    /// The program of the last run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The image that was built last.
    pub fn image(&self) -> &Image {
        &self.image
    }
}

/// An engine and everything that judging it takes.
#[derive(Debug)]
pub struct Harness<E> {
    engine: E,
    pipeline: Pipeline,
    judge: Judge,
}

impl<E: Engine> Harness<E> {
    /// Puts `engine` in the walker's place.
    pub fn new(engine: E) -> Self {
        Self { engine, pipeline: Pipeline::default(), judge: Judge::default() }
    }

    /// Runs the program that `input` is.
    ///
    /// # Errors
    /// A violation.
    pub fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self { engine, pipeline, judge } = self;
        // Whatever is left open is decided by the input alone.
        let mut entropy = Entropy::new(u64::from(crc32fast::hash(input)));
        let mut unsupported = false;
        let outcome = pipeline.run(input, Limits::WALKED, checks, |image, vm| {
            judge.image(image)?;
            unsupported = !engine.capabilities().cover(&vm.builder().plan().geometry);
            if unsupported {
                return Ok(());
            }
            judge.engine(engine, image, vm, &mut entropy)
        })?;
        Ok(Outcome { unsupported, ..outcome })
    }

    /// Runs the program that `input` is without judging it, and returns the image that it builds.
    pub fn build(&mut self, input: &[u8]) -> &Image {
        // Nothing can be found where nothing is judged.
        let run = self.pipeline.run(input, Limits::WALKED, Checks::default(), |_, _| Ok(()));
        debug_assert!(run.is_ok());
        self.pipeline.image()
    }

    /// The program of the last run.
    pub fn program(&self) -> &Program {
        self.pipeline.program()
    }

    /// The virtual machine as the last run left it: the builder, and the journal.
    pub fn vm(&self) -> &Vm {
        &self.pipeline.vm
    }

    /// The image that was built last.
    pub fn image(&self) -> &Image {
        self.pipeline.image()
    }

    /// The extents that were expected of the last image that was judged.
    pub fn expected(&self) -> &[Extent] {
        &self.judge.expected
    }

    /// The extents that the engine gave for it.
    pub fn actual(&self) -> &[Extent] {
        &self.judge.whole
    }
}

/// The oracles, with their buffers.
#[derive(Debug, Default)]
struct Judge {
    model: Model,
    recount: Recount,
    expected: Vec<Extent>,
    whole: Vec<Extent>,
    other: Vec<Extent>,
    bytes: oracles::data::Buffers,
    snapshot: oracles::snapshots::Buffers,
}

impl Judge {
    /// Judges the bytes of an image by themselves.
    fn image(&mut self, image: &Image) -> Verdict {
        oracles::refcounts::check(&mut self.recount, image)
    }

    /// Judges what an engine makes of an image that [`Judge::image`] has passed.
    fn engine<E: Engine>(
        &mut self,
        engine: &mut E,
        image: &Image,
        vm: &Vm,
        entropy: &mut Entropy,
    ) -> Verdict {
        let geometry = vm.builder().plan().geometry;
        self.model.replay(vm.journal());
        self.model.extents(&mut self.expected);
        let fuel = oracles::bounds::fuel(self.recount.active_table_bytes());
        let metered = Metered::new(image);
        let reads = self.answers(engine, &metered, vm, &geometry, fuel, entropy)?;
        let fail_at = entropy.below(reads);
        let Self { whole, other, .. } = self;
        oracles::io::check(engine, &metered, fail_at, whole, fuel, other)?;
        let snapshots = self.model.snapshot_count();
        if snapshots == 0 || !engine.capabilities().snapshots {
            return Ok(());
        }
        let index = entropy.below(snapshots as u64) as usize;
        let Self { model, recount, snapshot, .. } = self;
        let table_bytes = recount.snapshot_table_bytes();
        let judged = &metered;
        oracles::snapshots::check(engine, judged, index, model, &geometry, table_bytes, snapshot)
    }

    /// Asks everything but what happens when a read fails; returns how many reads opening the image
    /// and walking it takes.
    fn answers<E: Engine>(
        &mut self,
        engine: &mut E,
        metered: &Metered<'_, Image>,
        vm: &Vm,
        geometry: &Geometry,
        fuel: u64,
        entropy: &mut Entropy,
    ) -> Result<u64, Box<Violation>> {
        let capabilities = engine.capabilities();
        let disk = &mut match engine.open(metered) {
            Ok(disk) => disk,
            Err(error) => return Err(oracles::unexpected_error("open", "image", &error)),
        };
        let Self { model, recount, expected, whole, other, bytes, .. } = self;
        let size = model.virtual_size_bytes();
        oracles::model::check_size(size, disk.virtual_size_bytes())?;
        let open_reads = metered.reads();
        metered.restart(u64::MAX);
        let mut collector = Collector::new(whole, fuel);
        let walked = disk.map(Window::ALL, &mut collector);
        let exhausted = collector.exhausted();
        let reads = open_reads + metered.reads();
        let (table_bytes, read_bytes) = (recount.active_table_bytes(), metered.bytes());
        let cost = oracles::bounds::Cost { table_bytes, read_bytes, exhausted };
        oracles::bounds::check(&cost, whole, size, geometry)?;
        if let Err(error) = walked {
            return Err(oracles::unexpected_error("walk", "image", &error));
        }
        oracles::partition::check(whole, &(0..size))?;
        oracles::flags::check(whole)?;
        // Before the model, to which a missed merge is one wrong length among others.
        oracles::maximal::check(whole)?;
        oracles::model::check(expected, whole)?;
        if !whole.is_empty() {
            let stop_after = 1 + entropy.below(whole.len() as u64) as usize;
            oracles::window::check_resumed(disk, stop_after, whole, fuel, other)?;
        }
        if capabilities.lookup {
            oracles::lookup::check(disk, whole)?;
        }
        if capabilities.read {
            oracles::data::check(disk, model, geometry)?;
        }
        for question in vm.questions() {
            match *question {
                Question::Walk(window) => {
                    oracles::window::check(disk, window, whole, fuel, other)?;
                }
                Question::Lookup(guest) if capabilities.lookup => {
                    oracles::lookup::check_point(disk, guest, whole)?;
                }
                Question::Read { start, length_bytes } if capabilities.read => {
                    let length = usize::from(length_bytes);
                    if !oracles::data::costly(model, geometry, start, length) {
                        oracles::data::check_range(disk, model, geometry, start, length, bytes)?;
                    }
                }
                Question::Lookup(_) | Question::Read { .. } => {}
            }
        }
        Ok(reads)
    }
}
