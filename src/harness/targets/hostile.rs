//! The target `hostile`: programs that damage the images that they build.

use crate::disk::extent::Extent;
use crate::disk::observer::Observer;
use crate::harness::accesses::AccessReport;
use crate::harness::claims::Claim;
use crate::harness::engine::Engine;
use crate::harness::model::Model;
use crate::harness::oracles::hostile;
use crate::harness::oracles::memory::MemoryMeter;
use crate::harness::oracles::raw::RawOutcome;
use crate::harness::second_opinion::{Opinion, SecondOpinion};
use crate::harness::target::{Definition, Expectation, Inputs, Target};
use crate::harness::verdicts::Verdicts;
use crate::harness::{Checks, Failure, MetFinding, Outcome, Pipeline};
use crate::images::entropy::Entropy;
use crate::images::files::FileNames;
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "hostile",
    about: "A program that damages its image: the engine must stay within bounds when it reads the image",
    inputs: Inputs::Programs,
    limits: Limits::HOSTILE,
    expectation: Expectation::UntouchedExtents,
};

/// Creates the target with `engine` under test.
pub(super) fn create<E, O>(
    engine: E,
    names: FileNames,
    observer: &O,
    second: Option<Box<dyn SecondOpinion>>,
) -> Box<dyn Target>
where
    E: Engine + 'static,
    O: Observer + Clone + 'static,
{
    Box::new(Hostile {
        second: second.map(Opinion::new),
        ..Hostile::observed(engine, observer.clone()).named(names)
    })
}

/// Runs programs that damage the images that they build, and judges how the engine reads these images.
#[derive(Debug)]
pub struct Hostile<E, O: Observer = ()> {
    engine: E,
    observer: O,
    pipeline: Pipeline,
    model: Model,
    expected: Vec<Extent>,
    buffers: hostile::HostileBuffers,
    accesses: AccessReport,
    verdicts: Verdicts,
    second: Option<Opinion>,
}

impl<E: Engine, O: Observer> Hostile<E, O> {
    /// Creates the target with `engine` under test. VM and build report events to `observer`.
    pub fn observed(engine: E, observer: O) -> Self {
        let (pipeline, buffers, accesses, model, expected) = Default::default();
        let verdicts = Verdicts::knowing(engine.known_findings());
        let second = None;
        Self { engine, observer, pipeline, model, expected, buffers, accesses, verdicts, second }
    }

    /// Uses `names` for the files of images that name each other.
    pub fn named(self, names: FileNames) -> Self {
        Self { pipeline: Pipeline::named(names), ..self }
    }
}

impl<E: Engine, O: Observer> Target for Hostile<E, O> {
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self {
            engine,
            observer,
            pipeline,
            model,
            expected,
            buffers,
            accesses,
            verdicts,
            second,
        } = self;
        let claims = engine.claims();
        let checksum = crc32fast::hash(&pipeline.load(input, &claims));
        let mut entropy = Entropy::new(u64::from(checksum));
        let (mut refused, mut failed, mut unsupported) = (0, 0, false);
        engine.begin_run();
        verdicts.begin_run();
        second.iter_mut().for_each(|second| second.begin_run(checksum));
        let outcome = pipeline.run(DEFINITION.limits, checks, observer, |case| {
            if claims.about(case.features) == Claim::No {
                unsupported = true;
                return Ok(());
            }
            model.replay(case.journals.iter().copied());
            model.extents(expected);
            if engine.begin_rehearsal() {
                let (entropy, verdicts) = (&mut entropy.clone(), &mut Verdicts::default());
                // Only the questions count.
                let _ = hostile::check(engine, (case, expected), entropy, &(), buffers, verdicts);
                engine.end_rehearsal();
            }
            let memory = MemoryMeter::begin();
            let damaged = (case, &expected[..]);
            let meter = buffers.renewed_meter();
            AccessReport::begin(engine.accesses_are_feedback(), &meter, observer);
            let judged = hostile::check(engine, damaged, &mut entropy, observer, buffers, verdicts);
            accesses.end((case.images, &case.journals), &meter, observer);
            let judged = verdicts.judge_end(engine.take_end(), judged, RawOutcome::Failed)?;
            verdicts.judge(memory.check(engine.policy().memory))?;
            match judged {
                RawOutcome::Refused => refused += 1,
                RawOutcome::Failed => failed += 1,
                RawOutcome::Walked => {}
            }
            match second {
                Some(second) => second.judge(engine, case, None, verdicts),
                None => Ok(()),
            }
        })?;
        let unanswered = verdicts.unanswered();
        let second = second.as_ref().map_or_else(Default::default, Opinion::images);
        Ok(Outcome { refused, failed, unsupported, unanswered, second, ..outcome })
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        Some(&self.pipeline)
    }

    fn met(&self) -> &[MetFinding] {
        self.verdicts.met()
    }
}
