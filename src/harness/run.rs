//! The harness: runs a program, has an engine open the images that it builds, and has the oracles judge the answers.
//! libFuzzer, tests, `replay` and benchmarks call it.

use crate::disk::extent::Extent;
use crate::disk::observer::Observer;
use crate::harness::claims::{Claim, Claims};
use crate::harness::engine::Engine;
use crate::harness::oracles::qcow2::structures::Structures;
use crate::images::entropy::Entropy;
use crate::images::files::{FileNames, Images};
use crate::images::image::Image;
use crate::images::limits::Limits;
use crate::programs::{Program, Vm};

use super::judge::Judge;
use super::second_opinion::{Opinion, SecondOpinion};
use super::{Checks, Failure, MetFinding, Outcome, Pipeline};

/// The limits of the programs that a harness runs.
pub(super) const LIMITS: Limits = Limits::WALKED;

/// An engine, with the buffers for running programs and judging its answers. It reports events to its observer.
#[derive(Debug)]
pub struct Harness<E, O: Observer = ()> {
    engine: E,
    observer: O,
    pipeline: Pipeline,
    structures: Structures,
    judge: Judge,
    /// The judge of rehearsals.
    rehearsal: Judge,
    second: Option<Opinion>,
}

impl<E: Engine> Harness<E> {
    /// Creates a harness that judges `engine`.
    pub fn new(engine: E) -> Self {
        Self::observed(engine, ())
    }
}

impl<E: Engine, O: Observer> Harness<E, O> {
    /// Creates a harness that judges `engine`, and reports events of VM, build and oracles to `observer`. The engine
    /// reports its own events, if it has any.
    pub fn observed(engine: E, observer: O) -> Self {
        let (pipeline, structures, rehearsal) = Default::default();
        let judge = Judge::knowing(engine.known_findings());
        let second = None;
        Self { engine, observer, pipeline, structures, judge, rehearsal, second }
    }

    /// Uses `names` for the files of images that name each other.
    pub fn named(self, names: FileNames) -> Self {
        Self { pipeline: Pipeline::named(names), ..self }
    }

    /// Has `second` judge the images, too.
    pub(super) fn judged_by(self, second: Option<Box<dyn SecondOpinion>>) -> Self {
        Self { second: second.map(Opinion::new), ..self }
    }

    /// Decodes `input` as a program, runs it, and judges each image that it builds.
    ///
    /// # Errors
    /// The first violation.
    pub fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self { engine, observer, pipeline, structures, judge, rehearsal, second } = self;
        let claims = engine.claims();
        // The random choices of the oracles depend on the program alone.
        let checksum = crc32fast::hash(&pipeline.load(input, &claims));
        let mut entropy = Entropy::new(u64::from(checksum));
        let (mut unsupported, mut refused) = (false, 0);
        engine.begin_run();
        judge.begin_run();
        rehearsal.begin_run();
        second.iter_mut().for_each(|second| second.begin_run(checksum));
        let outcome = pipeline.run(LIMITS, checks, observer, |case| {
            if judge.verdicts_mut().judge(structures.check(case))?.is_none() {
                // The rest of the case depends on correct structures.
                return Ok(());
            }
            let claim = claims.about(case.features);
            if claim == Claim::No {
                unsupported = true;
                return Ok(());
            }
            let tables = structures.table_bytes();
            if engine.begin_rehearsal() {
                // Only the questions count.
                let _ = rehearsal.engine(engine, case, tables, &(), &mut entropy.clone());
                engine.end_rehearsal();
            }
            let judged = judge.engine(engine, case, tables, observer, &mut entropy);
            match judge.ended(engine.take_end(), judged) {
                Err(found) if found.is_not_given() => {
                    unsupported = true;
                    Ok(())
                }
                Err(found) if claim == Claim::RefuseOrBeRight && found.error_kind().is_some() => {
                    refused += 1;
                    Ok(())
                }
                Ok(()) => match second {
                    Some(second) => judge.compare(second, engine, case),
                    None => Ok(()),
                },
                Err(found) => Err(found),
            }
        })?;
        let second = second.as_ref().map_or_else(Default::default, Opinion::images);
        let unanswered = judge.verdicts().unanswered();
        Ok(Outcome { refused, unsupported, unanswered, second, ..outcome })
    }

    /// Decodes `input` as a program, runs it without judging anything, and returns the image that it builds. If it
    /// builds a chain, returns the image at the top.
    pub fn build(&mut self, input: &[u8]) -> &Image {
        self.pipeline.load(input, &Claims::ALL);
        // Without a judge, the run finds no violation.
        let run = self.pipeline.run(LIMITS, Checks::default(), &(), |_| Ok(()));
        debug_assert!(run.is_ok());
        self.image()
    }

    /// Returns the known findings that the last run met, each once.
    pub fn met(&self) -> &[MetFinding] {
        self.judge.verdicts().met()
    }

    /// Returns the engine under test.
    pub fn engine_mut(&mut self) -> &mut E {
        &mut self.engine
    }

    /// Returns the pipeline with the program, the virtual machine and the images of the last run.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
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

    /// Returns the extents that the model expected of the image that was judged last.
    pub fn expected(&self) -> &[Extent] {
        self.judge.expected()
    }

    /// Returns the extents that the engine emitted for it.
    pub fn actual(&self) -> &[Extent] {
        self.judge.whole()
    }
}
