//! The target `writes`: programs with requests, by which an engine writes to the image at the top.

use crate::disk::features::Feature;
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Observer, State};
use crate::harness::chain::Chain;
use crate::harness::claims::{Claim, Claims};
use crate::harness::engine::Engine;
use crate::harness::oracles::qcow2::structures::Structures;
use crate::harness::second_opinion::{ComparedImages, Opinion, SecondOpinion};
use crate::harness::target::{Definition, Expectation, Inputs, Target};
use crate::harness::verdicts::Verdicts;
use crate::harness::writing::WriterJudge;
use crate::harness::{Checks, Failure, MetFinding, Outcome, Pipeline};
use crate::images::files::{FileNames, LayerFiles};
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "writes",
    about: "A program: the engine writes to the image that the harness has built, and its disk and file are judged",
    inputs: Inputs::Programs,
    limits: Limits::WRITTEN,
    expectation: Expectation::Written,
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
    let opinion = second.map(Opinion::new);
    Box::new(Writes { opinion, ..Writes::observed(engine, observer.clone()) }.named(names))
}

/// Returns the claims by which programs are folded: those of the engine, without features that writers may change as
/// soon as they open an image.
pub(super) fn claims_of(engine: &impl Engine) -> Claims {
    engine.write_claims().no(&[
        Feature::Dirty,
        Feature::OutOfDateRefcounts,
        Feature::Corrupt,
        Feature::UnknownBits,
    ])
}

/// Runs programs, and judges how the engine writes to their images.
#[derive(Debug)]
pub struct Writes<E, O: Observer = ()> {
    engine: E,
    observer: O,
    pipeline: Pipeline,
    structures: Structures,
    judge: WriterJudge,
    opinion: Option<Opinion>,
    verdicts: Verdicts,
}

impl<E: Engine, O: Observer> Writes<E, O> {
    /// Creates the target with `engine` under test. VM, build and judge report events to `observer`.
    pub fn observed(engine: E, observer: O) -> Self {
        let (pipeline, structures, judge) = Default::default();
        let verdicts = Verdicts::knowing(engine.known_findings());
        Self { engine, observer, pipeline, structures, judge, opinion: None, verdicts }
    }

    /// Returns the files of the last case, as the engine left them, or as a cut did in which an oracle found a
    /// violation.
    pub fn written(&self) -> Option<&Chain> {
        self.judge.written()
    }

    /// Uses `names` for the files of images that name each other.
    pub fn named(self, names: FileNames) -> Self {
        Self { pipeline: Pipeline::named(names), ..self }
    }
}

impl<E: Engine, O: Observer> Target for Writes<E, O> {
    fn run(&mut self, input: &[u8], checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self { engine, observer, pipeline, structures, judge, opinion, verdicts } = self;
        let claims = claims_of(engine);
        let checksum = crc32fast::hash(&pipeline.load(input, &claims));
        judge.begin_run(checksum);
        if let Some(opinion) = opinion {
            opinion.begin_run(checksum);
        }
        let (mut refused, mut unsupported) = (0, false);
        engine.begin_run();
        verdicts.begin_run();
        let outcome = pipeline.run(DEFINITION.limits, checks, observer, |case| {
            judge.forget();
            if verdicts.judge(structures.check(case))?.is_none() {
                return Ok(());
            }
            let claim = claims.about(case.features);
            let is_qcow2 = case.images.top().format == ImageFormat::Qcow2;
            if claim == Claim::No || !is_qcow2 {
                // Only qcow2 images have requests, and a recount of their own.
                unsupported = true;
                return Ok(());
            }
            observer.begin(State::Write);
            let judged = judge.judge(engine, case, observer, verdicts);
            match verdicts.judge_end(engine.take_end(), judged, ()) {
                Err(found) if found.is_not_given() => unsupported = true,
                Err(found) if claim == Claim::RefuseOrBeRight && found.error_kind().is_some() => {
                    refused += 1;
                }
                judged => {
                    verdicts.judge(judged)?;
                    // QEMU would only say the same of a file with a known finding.
                    if let (Some(opinion), [], Some(left)) =
                        (opinion.as_mut(), verdicts.met(), judge.written())
                    {
                        opinion.judge_left(left, verdicts)?;
                    }
                }
            }
            Ok(())
        })?;
        let unanswered = verdicts.unanswered();
        let second = opinion.as_ref().map_or_else(ComparedImages::default, Opinion::images);
        Ok(Outcome { refused, unsupported, unanswered, second, ..outcome })
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        Some(&self.pipeline)
    }

    fn left(&self) -> Option<&LayerFiles> {
        self.judge.written().map(Chain::top_files)
    }

    fn met(&self) -> &[MetFinding] {
        self.verdicts.met()
    }
}
