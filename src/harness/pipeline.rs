//! The way from a program's bytes to built images: runs the operations, builds the files each time they are due, and
//! passes them to a judge.

use crate::disk::observer::{Observer, State, Vital};
use crate::formats::qcow2::geometry::{Compression, Geometry};
use crate::formats::qcow2::layout::Layout;
use crate::harness::case::{Case, Features};
use crate::harness::oracles::{Verdict, Violation};
use crate::images::damage::Damage;
use crate::images::files::{FileNames, Images};
use crate::images::limits::Limits;
use crate::images::qcow2;
use crate::programs::{Effect, Program, Vm};

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
    /// How many of these, which were damaged, the engine did not open.
    pub refused: usize,
    /// How many of them it opened and did not walk to the end.
    pub failed: usize,
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
    scratch: qcow2::Scratch,
    images: Images,
    damage: Damage,
    names: FileNames,
    operations_run: usize,
}

impl Pipeline {
    /// Images call each other by `names`, for files that are to be written.
    pub fn named(names: FileNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Runs the program that `input` is, and has the files judged each time they are due. What the VM and
    /// the build do is told to `observer`.
    ///
    /// # Errors
    /// What `judge` found.
    pub fn run(
        &mut self,
        input: &[u8],
        limits: Limits,
        checks: Checks,
        observer: &impl Observer,
        mut judge: impl FnMut(&Case) -> Verdict,
    ) -> Result<Outcome, Box<Failure>> {
        observer.begin(State::Build);
        self.program.decode_from(input);
        self.vm.begin(&self.program.prologue, limits);
        self.images.resize(0);
        let operations = self.program.operations.len();
        let mut outcome = Outcome { operations, ..Outcome::default() };
        // Whether there is anything to verify that was not there at the last image.
        let mut anything_new = true;
        for at in 0..=operations {
            let end = at == operations;
            self.operations_run = (at + 1).min(operations);
            let effect = match end {
                true => Effect::Checkpoint,
                false => self.vm.step_observed(self.program.operations[at], observer),
            };
            outcome.effective += usize::from(effect != Effect::None && !end);
            anything_new |= matches!(effect, Effect::Changed | Effect::Asked);
            let early = match checks {
                Checks::AtCheckpoints => effect == Effect::Checkpoint && anything_new,
                Checks::AfterEach => true,
            };
            // What comes last is verified once.
            if end || early && at + 1 < operations {
                anything_new = false;
                observer.vital(Vital::Questions, self.vm.questions().len() as u64);
                if !self.vm.attacks().is_empty() {
                    // What is damaged already is built anew.
                    self.images.resize(0);
                }
                self.vm.build(&self.names, &mut self.scratch, &mut self.images, observer);
                self.damage.apply(&mut self.images, self.vm.attacks());
                outcome.images += 1;
                let Self { images, vm, damage, operations_run, .. } = self;
                let operations_run = *operations_run;
                let in_full = end || checks == Checks::AfterEach;
                judge(&case(vm, images, damage, in_full)).map_err(|violation| {
                    Box::new(Failure { violation: *violation, operations_run })
                })?;
                observer.measured();
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

    /// How many operations had run when the last run ended; of a panic, the one in which it was is counted too.
    pub fn operations_run(&self) -> usize {
        self.operations_run
    }

    /// The files that were built last.
    pub fn images(&self) -> &Images {
        &self.images
    }
}

/// Returns the case of the images that `vm` has built.
fn case<'c>(vm: &'c Vm, images: &'c Images, damage: &'c Damage, in_full: bool) -> Case<'c> {
    let mut features = Features { backing_files: images.layers().len() > 1, ..Features::default() };
    // A raw layer has no structures: an engine reads only its bytes.
    for (builder, _) in vm.builders().zip(vm.journals()).filter(|(_, journal)| !journal.raw) {
        let Geometry { extended_l2, compression, data_file, .. } = builder.plan().geometry;
        features.extended_l2 |= extended_l2;
        features.zstd |= compression == Compression::Zstd;
        features.data_files |= data_file;
    }
    let cell_bytes = vm.builders().map(|builder| builder.plan().geometry.cell_bytes()).min();
    Case {
        images,
        journals: vm.journals().collect(),
        questions: vm.questions(),
        damage,
        features,
        cell_bytes: cell_bytes.unwrap_or(1),
        table_span_bits: vm.builder().plan().geometry.l2_span_bits(),
        in_full,
    }
}
