//! From a program's bytes to built images: runs the operations, builds the files at each checkpoint, and passes them to
//! a judge.

use std::borrow::Cow;

use crate::disk::observer::{Observer, State, Vital};
use crate::harness::against::second_opinion::ComparedImages;
use crate::harness::cases::case::Case;
use crate::harness::engine::claims::Claims;
use crate::harness::engine::questions::QuestionKinds;
use crate::harness::oracles::{OracleResult, Violation};
use crate::images::damage::Damage;
use crate::images::files::{FileNames, Images};
use crate::images::limits::Limits;
use crate::programs::{Effect, Program, Vm};

/// The times at which images are built and verified, in addition to a program's checkpoints and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Checks {
    /// In a share of the programs, after every operation that changes something: the changes alone are judged. The
    /// `rng_seed` of the program decides, so that the program keeps its checks when it is minimized.
    #[default]
    Drawn,
    /// No other time.
    AtCheckpoints,
    /// After every operation that changes something: the changes alone are judged.
    AfterChanges,
    /// After every operation: the image is judged in full.
    AfterEach,
}

/// For 1 in this many values of `rng_seed`, the images of a program are verified after every change.
const CHANGES_ONE_IN: u32 = 32;

impl Checks {
    /// Returns [`Checks::AfterEach`] if `each` is true, and otherwise the default.
    pub fn after_each_if(each: bool) -> Self {
        if each { Self::AfterEach } else { Self::default() }
    }

    /// Returns the checks for programs with this `rng_seed`: the seed decides which ones replace [`Checks::Drawn`].
    pub fn of_seed(self, rng_seed: u16) -> Self {
        // The products of adjacent seeds are spread over all values.
        let mixed = u32::from(rng_seed).wrapping_add(1).wrapping_mul(0x9E37_79B9);
        match self {
            Self::Drawn if mixed < u32::MAX / CHANGES_ONE_IN => Self::AfterChanges,
            Self::Drawn => Self::AtCheckpoints,
            fixed => fixed,
        }
    }

    /// Reports whether images are verified after operations that are no checkpoints.
    pub fn are_after_operations(self) -> bool {
        matches!(self, Self::AfterChanges | Self::AfterEach)
    }
}

/// The result of a run without a violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The number of operations of the program.
    pub operations: usize,
    /// The number of operations that changed the image or asked a question.
    pub effective: usize,
    /// The number of images that were built and verified.
    pub images: usize,
    /// The number of images that the engine refused, as it may: damaged ones, or ones with features that it may refuse.
    pub refused: usize,
    /// The number of damaged images that the engine opened and did not walk to the end.
    pub failed: usize,
    /// The program had features that the engine does not claim, and ran without them.
    pub folded: bool,
    /// Some image has a feature that the engine does not know: the harness did not call it.
    pub unsupported: bool,
    /// A tool that made the files places their clusters in a random order: another run may have other counters.
    pub varies: bool,
    /// The kinds of questions that the engine did not answer.
    pub unanswered: QuestionKinds,
    /// The images that a second opinion has judged, or could not judge.
    pub second: ComparedImages,
}

/// A violation, and its place in the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The violation.
    pub violation: Violation,
    /// The number of operations that had run when the image was verified.
    pub operations_run: usize,
}

/// The path from bytes to images. A pipeline reuses all buffers from run to run, and no run depends on the one before.
#[derive(Debug, Default)]
pub struct Pipeline {
    program: Program,
    /// Folding changed the program.
    folded: bool,
    vm: Vm,
    images: Images,
    damage: Damage,
    names: FileNames,
    operations_run: usize,
}

impl Pipeline {
    /// Creates a pipeline whose images name each other by `names`, for files that are to be written.
    pub fn named(names: FileNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Takes the program that `input` encodes, folded into the features that `claims` allows. Returns the bytes of the
    /// program that will run: `input` itself, unless folding changed the program.
    pub fn load<'i>(&mut self, input: &'i [u8], claims: &Claims) -> Cow<'i, [u8]> {
        self.program.decode_from(input);
        self.folded = claims.fold_program(&mut self.program);
        match self.folded {
            true => Cow::Owned(self.program.encode()),
            false => Cow::Borrowed(input),
        }
    }

    /// Runs the program that was loaded. Builds its files and passes them to `judge` at the times that `checks`
    /// selects. The VM and the build report events to `observer`.
    ///
    /// # Errors
    /// Returns the violation that `judge` found.
    pub fn run(
        &mut self,
        limits: Limits,
        checks: Checks,
        observer: &dyn Observer,
        mut judge: impl FnMut(&Case) -> OracleResult,
    ) -> Result<Outcome, Box<Failure>> {
        observer.begin(State::Build);
        self.vm.begin(&self.program.prologue, limits);
        self.images.resize(0);
        let operations = self.program.operations.len();
        let checks = checks.of_seed(self.program.prologue.rng_seed);
        let mut outcome = Outcome { operations, folded: self.folded, ..Outcome::default() };
        // Something has changed since the last image.
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
                Checks::AtCheckpoints | Checks::Drawn => {
                    effect == Effect::Checkpoint && anything_new
                }
                Checks::AfterChanges => anything_new,
                Checks::AfterEach => true,
            };
            // The last image is verified only once.
            if end || early && at + 1 < operations {
                anything_new = false;
                observer.vital(Vital::Questions, self.vm.questions().len() as u64);
                if !self.vm.attacks().is_empty() {
                    // Damaged files cannot be reused: build them again.
                    self.images.resize(0);
                }
                self.vm.build(&self.names, &mut self.images, observer);
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

    /// Returns the program of the last run.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Reports whether folding changed that program.
    pub fn is_folded(&self) -> bool {
        self.folded
    }

    /// Returns the virtual machine as the last run left it, with its builders and journals.
    pub fn vm(&self) -> &Vm {
        &self.vm
    }

    /// Returns the number of operations that the last run executed. After a panic, it includes the operation that
    /// panicked.
    pub fn operations_run(&self) -> usize {
        self.operations_run
    }

    /// Returns the files that were built last.
    pub fn images(&self) -> &Images {
        &self.images
    }
}

/// Returns the case of the images that `vm` has built.
fn case<'c>(vm: &'c Vm, images: &'c Images, damage: &'c Damage, in_full: bool) -> Case<'c> {
    Case {
        images,
        journals: vm.journals().collect(),
        questions: vm.questions(),
        requests: vm.requests(),
        new_image: vm.new_image(),
        damage,
        features: vm.features(),
        cell_bytes: vm.cell_bytes(),
        table_span_bits: vm.table_span_bits(),
        is_any_content: false,
        known: &[],
        in_full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::text::assemble;

    #[test]
    fn a_share_of_seeds_is_drawn_and_the_seed_of_minimized_programs_is_not() {
        let is_drawn = |rng_seed: &u16| Checks::Drawn.of_seed(*rng_seed) == Checks::AfterChanges;
        let all = (0..=u16::MAX).filter(is_drawn).count() as u32;
        let few = (0..1000).filter(is_drawn).count() as u32;
        assert!((all * CHANGES_ONE_IN).abs_diff(1 << 16) < 1 << 10, "{all}");
        assert!((few * CHANGES_ONE_IN).abs_diff(1000) < 50, "{few}");
        assert!(!is_drawn(&0));
    }

    /// Returns the number of images of a program that are judged.
    fn images(text: &str, checks: Checks) -> usize {
        let mut pipeline = Pipeline::default();
        pipeline.load(&assemble(text).unwrap().encode(), &Claims::ALL);
        pipeline.run(Limits::WALKED, checks, &(), |_| Ok(())).unwrap().images
    }

    #[test]
    fn a_drawn_program_builds_an_image_after_each_change() {
        let program = |rng_seed: u16| {
            format!(
                "image version=3 cluster_bits=16 refcount_order=4 features=none size=8<<16+0 \
                 rng_seed={rng_seed} blocks=append table=append tolerance=0\n\
                 write at=start+0 clusters=1\ndelete_snapshot index=0\nwrite at=start+1 clusters=1\n\
                 zero at=start+2 clusters=1 keep=no\n"
            )
        };
        let drawn = (0..100).find(|&it| Checks::Drawn.of_seed(it) == Checks::AfterChanges).unwrap();
        assert_eq!(images(&program(0), Checks::Drawn), 1);
        assert_eq!(images(&program(drawn), Checks::AtCheckpoints), 1);
        // There is no snapshot to delete.
        assert_eq!(images(&program(drawn), Checks::Drawn), 3);
        assert_eq!(images(&program(0), Checks::AfterEach), 4);
    }
}
