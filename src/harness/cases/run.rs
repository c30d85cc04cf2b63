//! The harness: the one frame in which every input of every target is run and judged. It runs a program, has an engine
//! open the images that it builds, and has the judge of the target and the oracles judge the answers. libFuzzer, tests,
//! `replay` and benchmarks call it.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use crate::disk::extent::Extent;
use crate::disk::observer::Observer;
#[cfg(feature = "fuzzer")]
use crate::harness::against::qemu_io::{self, CostlyComparisons};
use crate::harness::against::second_opinion::{Opinion, SecondOpinion};
use crate::harness::cases::accesses::AccessReport;
use crate::harness::cases::case::{Case, Verdicts};
#[cfg(feature = "fuzzer")]
use crate::harness::cases::explored::Explored;
use crate::harness::cases::implementation::{Implementation, no_observer};
#[cfg(feature = "cli")]
use crate::harness::cases::recipe_source::RecipeSource;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::claims::{Claim, Claims};
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{Engine, Facts, failure};
use crate::harness::files::chain::Chain;
use crate::harness::files::meter::{FileAccess, Meter};
use crate::harness::oracles::OracleResult;
use crate::harness::oracles::bounds::MemoryMeter;
use crate::harness::oracles::qcow2::Structures;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Failure, MetFinding, Outcome, Pipeline, files};
use crate::images::content::entropy::Entropy;
use crate::images::damage::Damage;
use crate::images::files::image::Image;
use crate::images::files::{FileNames, Images, LayerFiles};
use crate::programs::{Program, Vm};

/// A target with an engine under test. It reuses its buffers from run to run, and reports events to its observer.
pub struct Harness {
    definition: &'static Definition,
    observer: Rc<dyn Observer>,
    pipeline: Pipeline,
    /// The input, if inputs are files.
    file: Images,
    no_damage: Damage,
    #[cfg(feature = "cli")]
    recipes: RecipeSource,
    judging: Judging,
}

/// The engine, and all that judges it.
struct Judging {
    engine: TestedEngine,
    judge: Box<dyn JudgeCase>,
    structures: Structures,
    second: Option<Opinion>,
    verdicts: Verdicts,
    entropy: Entropy,
    meter: Arc<Meter>,
    accesses: AccessReport,
    /// The images of the run by their ends.
    ends: Outcome,
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness").field("target", &self.definition.name).finish_non_exhaustive()
    }
}

impl Harness {
    /// Creates the target `map_extents` with `engine` under test.
    pub fn new(engine: impl Engine + 'static) -> Self {
        TargetKind::MapExtents.judging(engine)
    }

    /// Creates the target `map_extents`, and reports events of VM, build and oracles to `observer`. The engine reports
    /// its own events, if it has any.
    pub fn observed(engine: impl Engine + 'static, observer: Rc<dyn Observer>) -> Self {
        let facts = engine.facts();
        Self::of(TargetKind::MapExtents, TestedEngine::new(Box::new(engine), facts), observer)
    }

    /// Creates a target with `engine` under test.
    pub(crate) fn of(kind: TargetKind, engine: TestedEngine, observer: Rc<dyn Observer>) -> Self {
        let verdicts = Verdicts::knowing(engine.facts().known.clone());
        let (structures, entropy, meter, accesses, ends) = Default::default();
        let (judge, second) = (kind.judge(), kind.own_opinion(&observer).map(Opinion::new));
        let judging =
            Judging { engine, judge, structures, second, verdicts, entropy, meter, accesses, ends };
        let (pipeline, file, no_damage) = Default::default();
        Self {
            definition: kind.definition(),
            observer,
            pipeline,
            file,
            no_damage,
            #[cfg(feature = "cli")]
            recipes: RecipeSource::default(),
            judging,
        }
    }

    /// Uses `names` for the files of images that name each other.
    pub fn named(self, names: FileNames) -> Self {
        Self { pipeline: Pipeline::named(names), ..self }
    }

    /// Has `second` judge the images, too, in place of the target's own second opinion.
    pub(crate) fn judged_by(mut self, second: Option<Box<dyn SecondOpinion>>) -> Self {
        if let Some(second) = second {
            self.judging.second = Some(Opinion::new(second));
        }
        self
    }

    /// Runs `input`, and judges each image that it builds; of a target whose inputs are files, the file, once.
    ///
    /// # Errors
    /// The first violation whose finding is new.
    pub fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        match self.definition.inputs {
            Inputs::Programs => self.run_program(input, checks),
            Inputs::Files => self.run_file(input),
            Inputs::Recipes => self.run_recipe(input),
        }
    }

    fn run_program(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self { definition, observer, pipeline, judging, .. } = self;
        let claims = (definition.claims)(judging.engine.facts());
        let checksum = crc32fast::hash(&pipeline.load(input, &claims));
        judging.begin_run(checksum);
        let observer = &**observer;
        let outcome = pipeline.run(definition.limits, checks, observer, |case| {
            judging.case(case, definition, &claims, observer)
        })?;
        Ok(judging.outcome(outcome))
    }

    fn run_file(&mut self, input: &[u8]) -> Result<Outcome, Box<Failure>> {
        let Self { definition, observer, file, no_damage, judging, .. } = self;
        let claims = (definition.claims)(judging.engine.facts());
        judging.begin_run(crc32fast::hash(input));
        let (format, extents) = files::format_of(input, &claims);
        file.become_file(format, input, extents);
        let judged =
            judging.case(&Case::of_file(file, no_damage), definition, &Claims::ALL, &**observer);
        observer.measured();
        match judged {
            Ok(()) => Ok(judging.outcome(Outcome { images: 1, ..Outcome::default() })),
            Err(violation) => Err(Box::new(Failure { violation: *violation, operations_run: 0 })),
        }
    }

    #[cfg(feature = "cli")]
    fn run_recipe(&mut self, input: &[u8]) -> Result<Outcome, Box<Failure>> {
        let Self { definition, observer, recipes, judging, .. } = self;
        let claims = (definition.claims)(judging.engine.facts());
        judging.begin_run(crc32fast::hash(input));
        recipes.draw(input);
        judging.verdicts.begin_recipe(recipes.recipe().commands());
        let observer = &**observer;
        let outcome =
            recipes.run(observer, |case| judging.case(case, definition, &claims, observer))?;
        Ok(judging.outcome(outcome))
    }

    #[cfg(not(feature = "cli"))]
    fn run_recipe(&mut self, _input: &[u8]) -> Result<Outcome, Box<Failure>> {
        failure::fail("recipes: built without the feature 'cli', expected it".to_string())
    }

    /// Decodes `input` as a program, runs it without judging anything, and returns the image that it builds. If it
    /// builds a chain, returns the image at the top.
    pub fn build(&mut self, input: &[u8]) -> &Image {
        self.pipeline.load(input, &Claims::ALL);
        // Without a judge, the run finds no violation.
        let run = self.pipeline.run(self.definition.limits, Checks::default(), &(), |_| Ok(()));
        debug_assert!(run.is_ok());
        self.image()
    }

    /// Notes that the last run met the finding with this fingerprint, by a panic. Returns false if it is not known.
    pub(crate) fn note_known(&mut self, fingerprint: &str) -> bool {
        self.judging.verdicts.note_known(fingerprint)
    }

    /// Returns the known findings that the last run met, each once.
    pub fn met(&self) -> &[MetFinding] {
        self.judging.verdicts.met()
    }

    /// Returns the pipeline with the program, the virtual machine and the images of the last run. If inputs are files,
    /// it is empty.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// Reports whether inputs are programs, which the pipeline runs.
    pub fn runs_programs(&self) -> bool {
        self.definition.inputs == Inputs::Programs
    }

    /// Returns the program of the last run.
    pub fn program(&self) -> &Program {
        self.pipeline.program()
    }

    /// Returns the virtual machine as the last run left it, with its builders and journals.
    pub fn vm(&self) -> &Vm {
        self.pipeline.vm()
    }

    /// Returns the files that were built last.
    pub fn images(&self) -> &Images {
        self.pipeline.images()
    }

    /// Returns the image that was built last; of a chain, the one at the top.
    pub fn image(&self) -> &Image {
        &self.images().top().image
    }

    /// Returns the files at the top as the engine of the last run has left them, or as the first cut did in which an
    /// oracle found a violation, known or not; `None` if no engine has written them.
    pub fn left(&self) -> Option<&LayerFiles> {
        self.written().map(Chain::top_files)
    }

    /// Returns the same files with the layers below.
    pub fn written(&self) -> Option<&Chain> {
        self.judging.judge.left()
    }

    /// Returns what the last run could have met; `None` if the target does not write.
    #[cfg(feature = "fuzzer")]
    pub(crate) fn explored(&mut self) -> Option<&mut Explored> {
        self.judging.judge.explored()
    }

    /// Returns the extents that the model expected of the image that was judged last.
    pub fn expected(&self) -> &[Extent] {
        self.judging.judge.extents()[0]
    }

    /// Returns the extents that the engine emitted for it.
    pub fn actual(&self) -> &[Extent] {
        self.judging.judge.extents()[1]
    }

    /// Returns the commands of the recipe of the last run, with a comment for each step; none if inputs choose no
    /// recipe.
    pub(crate) fn recipe_lines(&self) -> Vec<String> {
        #[cfg(feature = "cli")]
        return self.recipes.recipe().lines();
        #[cfg(not(feature = "cli"))]
        Vec::new()
    }

    /// Forgets the accesses to files of earlier runs.
    pub(crate) fn forget_accesses(&mut self) {
        self.judging.meter = Arc::default();
    }

    /// Returns the accesses of the engine to the files of the last case, as far as they are feedback.
    pub(crate) fn last_accesses(&self) -> Vec<FileAccess> {
        self.judging.meter.last_trace()
    }

    /// Returns the facts of the engine under test.
    pub fn facts(&self) -> &Facts {
        self.judging.engine.facts()
    }
}

impl TargetKind {
    /// Returns the second opinion of a target that has one of its own: QEMU has made the images of recipes.
    #[cfg(feature = "fuzzer")]
    fn own_opinion(self, observer: &Rc<dyn Observer>) -> Option<Box<dyn SecondOpinion>> {
        let is_of_qemu = self.definition().inputs == Inputs::Recipes;
        is_of_qemu.then(|| qemu_io::opinion(CostlyComparisons::Always, observer))
    }

    #[cfg(not(feature = "fuzzer"))]
    fn own_opinion(self, _observer: &Rc<dyn Observer>) -> Option<Box<dyn SecondOpinion>> {
        None
    }

    /// Creates the target with an engine of `implementation` under test. Images name each other by `names`; VM, build
    /// and oracles report events to `observer`.
    pub fn create(
        self,
        implementation: &Implementation,
        names: FileNames,
        observer: Rc<dyn Observer>,
    ) -> Harness {
        let second = implementation.second_opinion(&observer);
        if second.is_some() && self.definition().expectation == Expectation::NotWalked {
            failure::fail(format!(
                "--against: found the target {}, expected one whose images an implementation reads",
                self.name()
            ));
        }
        if implementation.takes_turns && self.limits().requests == 0 {
            let target = self.name();
            failure::fail(format!(
                "--in-turn: found the target {target}, expected one of: writes, hostile_writes"
            ));
        }
        let engine = implementation.tested(&observer);
        Harness::of(self, engine, observer).named(names).judged_by(second)
    }

    /// Creates the target with `engine` under test.
    pub fn judging(self, engine: impl Engine + 'static) -> Harness {
        let facts = engine.facts();
        Harness::of(self, TestedEngine::new(Box::new(engine), facts), no_observer())
    }
}

impl Judging {
    fn begin_run(&mut self, checksum: u32) {
        self.engine.begin_run();
        self.verdicts.begin_run();
        self.judge.begin_run(checksum);
        self.second.iter_mut().for_each(|second| second.begin_run(checksum));
        self.entropy = Entropy::new(u64::from(checksum));
        self.ends = Outcome::default();
    }

    /// Judges one case: the structures of its images, the answers of the engine about it, the memory that they take,
    /// and a second opinion.
    fn case(
        &mut self,
        case: &Case,
        definition: &Definition,
        claims: &Claims,
        observer: &dyn Observer,
    ) -> OracleResult {
        self.judge.forget();
        self.verdicts.begin_case(case.features);
        if definition.judges_structures
            && self.verdicts.judge(self.structures.check(case))?.is_none()
        {
            // The rest of the case depends on correct structures.
            return Ok(());
        }
        let claim = claims.about(case.features);
        if claim == Claim::No {
            self.ends.unsupported = true;
            return Ok(());
        }
        Meter::renew(&mut self.meter);
        self.meter.restart(u64::MAX);
        let Self { engine, judge, structures, second, verdicts, entropy, meter, accesses, ends } =
            self;
        let tables = structures.table_bytes();
        let mut run = CaseRun { verdicts, observer, entropy, meter, accesses, tables };
        let memory = MemoryMeter::begin();
        let judged = judge.judge(engine, &mut run, case);
        let end = engine.take_end();
        let has_ended = end.is_some();
        match run.verdicts.judge_end(end, judged, CaseEnd::Failed) {
            Err(found) if found.is_not_given() => {
                ends.unsupported = true;
                return Ok(());
            }
            Err(found) if claim == Claim::RefuseOrBeRight && found.error_kind().is_some() => {
                ends.refused += 1;
                return Ok(());
            }
            Err(found) => return Err(found),
            Ok(CaseEnd::Unsupported) => {
                ends.unsupported = true;
                return Ok(());
            }
            Ok(CaseEnd::Judged) => {}
            Ok(CaseEnd::Refused) => ends.refused += 1,
            Ok(CaseEnd::Failed) => ends.failed += 1,
        }
        if definition.judges_memory {
            let policy = engine.facts().policy.memory;
            run.verdicts.judge(memory.check(policy, judge.kept_bytes()))?;
        }
        match second.as_mut().filter(|_| !has_ended) {
            Some(second) => judge.compare(second, engine, &mut run, case),
            None => Ok(()),
        }
    }

    /// Adds to the outcome of a run what the judge knows.
    fn outcome(&self, outcome: Outcome) -> Outcome {
        let Outcome { refused, failed, unsupported, .. } = self.ends;
        let unanswered = self.engine.unanswered();
        let second = self.second.as_ref().map_or_else(Default::default, Opinion::images);
        let unsupported = unsupported || outcome.unsupported;
        Outcome { refused, failed, unsupported, unanswered, second, ..outcome }
    }
}
