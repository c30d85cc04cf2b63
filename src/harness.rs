//! One run: bytes become a program, the program an image, the image extents, and the oracles judge
//! them. Everything that calls the pipeline (libFuzzer, tests, replay, benchmarks) calls this.

use crate::build::{self, Builder};
use crate::engines::{Capabilities, Engine, OpenDisk};
use crate::entropy::Entropy;
use crate::extent::{Extent, Window};
use crate::image::Image;
use crate::images::{FileNames, Images};
use crate::limits::Limits;
use crate::model::Model;
use crate::oracles::collector::Collector;
use crate::oracles::metered::{Meter, MeteredImages};
use crate::oracles::recount::Recount;
use crate::oracles::{self, Verdict, Violation};
use crate::storage::Layer;
use crate::vm::{Effect, Program, Question, Vm};

/// When the image is built and verified, beside a program's checkpoints and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// At no other time.
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
    images: Images,
    names: FileNames,
}

impl Pipeline {
    /// Images call each other by `names`, for files that are to be written.
    pub fn named(names: FileNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Runs the program that `input` is, and has the files judged each time they are due.
    ///
    /// # Errors
    /// What `judge` found.
    pub fn run(
        &mut self,
        input: &[u8],
        limits: Limits,
        checks: Checks,
        mut judge: impl FnMut(&Images, &Vm) -> Verdict,
    ) -> Result<Outcome, Box<Failure>> {
        self.program.decode_from(input);
        self.vm.begin(&self.program.prologue, limits);
        self.images.resize(0);
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
                self.vm.build(&self.names, &mut self.scratch, &mut self.images);
                outcome.images += 1;
                let operations_run = (at + 1).min(operations);
                judge(&self.images, &self.vm).map_err(|violation| {
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

    /// The virtual machine as the last run left it: the builder, and the journal.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// The files that were built last.
    pub fn images(&self) -> &Images {
        &self.images
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

    /// The same, for images that are to become files: they call each other by `names`.
    pub fn named(engine: E, names: FileNames) -> Self {
        Self { engine, pipeline: Pipeline::named(names), judge: Judge::default() }
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
        let outcome = pipeline.run(input, Limits::WALKED, checks, |images, vm| {
            judge.images(images)?;
            unsupported = !supported(&engine.capabilities(), vm);
            if unsupported {
                return Ok(());
            }
            judge.engine(engine, images, vm, &mut entropy)
        })?;
        Ok(Outcome { unsupported, ..outcome })
    }

    /// Runs the program that `input` is without judging it, and returns the image that it builds; of a
    /// chain, the one at the top.
    pub fn build(&mut self, input: &[u8]) -> &Image {
        // Nothing can be found where nothing is judged.
        let run = self.pipeline.run(input, Limits::WALKED, Checks::default(), |_, _| Ok(()));
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
        &self.judge.expected
    }

    /// The extents that the engine gave for it.
    pub fn actual(&self) -> &[Extent] {
        &self.judge.whole
    }
}

/// Whether an engine supports every layer that a program built.
fn supported(capabilities: &Capabilities, vm: &Vm) -> bool {
    let layers = vm.builders().len();
    // Of a raw layer, nothing but its bytes is left.
    let images = vm.builders().zip(vm.journals()).filter(|(_, journal)| !journal.raw);
    let covered = |(builder, _): (&Builder, _)| capabilities.cover(&builder.plan().geometry);
    (layers == 1 || capabilities.backing_files) && images.into_iter().all(covered)
}

/// The oracles, with their buffers.
#[derive(Debug, Default)]
struct Judge {
    model: Model,
    recount: Recount,
    /// Bytes of the active L1 and L2 tables of all layers that are there.
    table_bytes: u64,
    /// The same where the image at the top is any of its snapshots.
    snapshot_bytes: u64,
    expected: Vec<Extent>,
    whole: Vec<Extent>,
    other: Vec<Extent>,
    bytes: oracles::data::Buffers,
    snapshot: oracles::snapshots::Buffers,
}

impl Judge {
    /// Judges the bytes of each image by themselves.
    fn images(&mut self, images: &Images) -> Verdict {
        (self.table_bytes, self.snapshot_bytes) = (0, 0);
        for (depth, files) in images.layers().enumerate().filter(|(_, files)| !files.raw) {
            oracles::refcounts::check(&mut self.recount, &files.image, &files.out_of_date)?;
            let active_bytes = self.recount.active_table_bytes();
            self.table_bytes += active_bytes;
            let own = if depth == 0 { self.recount.snapshot_table_bytes() } else { active_bytes };
            self.snapshot_bytes += own;
        }
        Ok(())
    }

    /// Judges what an engine makes of images that [`Judge::images`] has passed.
    fn engine<E: Engine>(
        &mut self,
        engine: &mut E,
        images: &Images,
        vm: &Vm,
        entropy: &mut Entropy,
    ) -> Verdict {
        self.model.replay(vm.journals());
        self.model.extents(&mut self.expected);
        let fuel = oracles::bounds::fuel(self.table_bytes);
        let meter = Meter::new();
        let metered = MeteredImages::new(images, &meter);
        let chain = metered.chain();
        let reads = self.answers(engine, &chain, &meter, vm, fuel, entropy)?;
        let fail_at = entropy.below(reads);
        let Self { whole, other, .. } = self;
        oracles::io::check(engine, &chain, &meter, fail_at, whole, fuel, other)?;
        let snapshots = self.model.snapshot_count();
        if snapshots == 0 || !engine.capabilities().snapshots {
            return Ok(());
        }
        let index = entropy.below(snapshots as u64) as usize;
        let Self { model, snapshot_bytes, snapshot, .. } = self;
        meter.restart(u64::MAX);
        oracles::snapshots::check(engine, &chain, index, model, *snapshot_bytes, snapshot)
    }

    /// Asks everything but what happens when a read fails; returns how many reads opening the image
    /// and walking it takes.
    fn answers<E: Engine>(
        &mut self,
        engine: &mut E,
        chain: &[Layer],
        meter: &Meter,
        vm: &Vm,
        fuel: u64,
        entropy: &mut Entropy,
    ) -> Result<u64, Box<Violation>> {
        let capabilities = engine.capabilities();
        let disk = &mut match engine.open(chain) {
            Ok(disk) => disk,
            Err(error) => return Err(oracles::unexpected_error("open", "image", &error)),
        };
        let Self { model, table_bytes, expected, whole, other, bytes, .. } = self;
        let size = model.virtual_size_bytes();
        oracles::model::check_size(size, disk.virtual_size_bytes())?;
        let open_reads = meter.reads();
        meter.restart(u64::MAX);
        let mut collector = Collector::new(whole, fuel);
        let walked = disk.map(Window::ALL, &mut collector);
        let exhausted = collector.exhausted();
        let reads = open_reads + meter.reads();
        let (table_bytes, read_bytes) = (*table_bytes, meter.bytes());
        let cost =
            oracles::bounds::Cost { layers: chain.len(), table_bytes, read_bytes, exhausted };
        let cell_bytes = vm.builders().map(|builder| builder.plan().geometry.cell_bytes()).min();
        oracles::bounds::check(&cost, whole, size, cell_bytes.unwrap_or(1))?;
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
            oracles::data::check(disk, model, bytes)?;
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
                    if !oracles::data::costly(model, start, length) {
                        oracles::data::check_range(disk, model, start, length, bytes)?;
                    }
                }
                Question::Lookup(_) | Question::Read { .. } => {}
            }
        }
        Ok(reads)
    }
}
