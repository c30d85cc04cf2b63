//! The target `raw_image`: image files of any content.

use crate::disk::image_format::ImageFormat;
use crate::disk::observer::Observer;
use crate::formats::probe::probe;
use crate::formats::vmdk::constants::SPARSE_MAGIC;
use crate::formats::vmdk::head::ImageLayout;
use crate::formats::vpc::constants::{COOKIE, FOOTER_BYTES};
use crate::harness::accesses::AccessReport;
use crate::harness::claims::Claims;
use crate::harness::engine::Engine;
use crate::harness::oracles::memory::MemoryMeter;
use crate::harness::oracles::qcow2::recount::Recount;
use crate::harness::oracles::raw::{RawFile, RawJudge, RawOutcome};
use crate::harness::second_opinion::SecondOpinion;
use crate::harness::target::{Definition, Expectation, Inputs, Target};
use crate::harness::verdicts::Verdicts;
use crate::harness::{Checks, Failure, MetFinding, Outcome, Pipeline};
use crate::images::files::FileNames;
use crate::images::limits::Limits;

/// The constant properties of the target.
pub(super) const DEFINITION: Definition = Definition {
    name: "raw_image",
    about: "An image file of any content: the answers of the walker must agree with each other",
    inputs: Inputs::Files,
    // No run of this target reads them.
    limits: Limits::WALKED,
    expectation: Expectation::Unknown,
};

/// Creates the target with `engine` under test.
pub(super) fn create<E, O>(
    engine: E,
    _names: FileNames,
    observer: &O,
    _second: Option<Box<dyn SecondOpinion>>,
) -> Box<dyn Target>
where
    E: Engine + 'static,
    O: Observer + Clone + 'static,
{
    Box::new(RawImage::observed(engine, observer.clone()))
}

/// The maximum number of references that a recount of a file keeps. A file may name a table many times, and libFuzzer
/// ends a process that takes 2 GiB.
const MAX_FILE_REFERENCES: usize = 1 << 20;

/// Judges how the engine reads files of any content.
#[derive(Debug)]
pub struct RawImage<E, O: Observer = ()> {
    engine: E,
    observer: O,
    recount: Recount,
    judge: RawJudge,
    accesses: AccessReport,
    verdicts: Verdicts,
}

impl<E: Engine, O: Observer> RawImage<E, O> {
    /// Creates the target with `engine` under test. The oracles report events to `observer`.
    pub fn observed(engine: E, observer: O) -> Self {
        let recount = Recount::bounded(MAX_FILE_REFERENCES);
        let verdicts = Verdicts::knowing(engine.known_findings());
        let (judge, accesses) = Default::default();
        Self { engine, observer, recount, judge, accesses, verdicts }
    }
}

/// Returns the format of a file among those that the engine opens. A file of any other format is given to the engine as
/// a qcow2 image, which it must refuse.
fn format_of(file: &[u8], claims: &Claims) -> ImageFormat {
    let format = match probe(file) {
        // Every file is a raw image. A fixed VHD disk has a mark only at its end.
        Ok(ImageFormat::Raw) if ends_like_vhd(file) => ImageFormat::Vpc,
        Ok(format) if format != ImageFormat::Raw => format,
        _ => ImageFormat::Qcow2,
    };
    if claims.knows(format) { format } else { ImageFormat::Qcow2 }
}

/// Returns the file of any content for the oracle. If it is a VMDK descriptor, it stands for the file of each extent.
/// Such a file is a sparse extent only if it also begins like one.
fn raw_file(format: ImageFormat, bytes: &[u8]) -> RawFile<'_> {
    let layout = (format == ImageFormat::Vmdk).then(|| ImageLayout::read(bytes));
    let extents = match &layout {
        Some(Ok(layout)) => layout.extents().len(),
        Some(Err(_)) | None => 0,
    };
    RawFile {
        format,
        bytes,
        extents,
        may_split_grains: extents > 0 && bytes.starts_with(&SPARSE_MAGIC),
    }
}

fn ends_like_vhd(file: &[u8]) -> bool {
    let last = file.len().checked_sub(FOOTER_BYTES).and_then(|at| file.get(at..));
    last.is_some_and(|footer| footer.starts_with(&COOKIE))
}

impl<E: Engine, O: Observer> Target for RawImage<E, O> {
    fn run(&mut self, input: &[u8], _checks: Checks) -> Result<Outcome, Box<Failure>> {
        let Self { engine, observer, recount, judge, accesses, verdicts } = self;
        let format = format_of(input, &engine.claims());
        if format == ImageFormat::Qcow2 {
            // The recount must end without a panic. Any result is correct for a file of any content.
            let _ = recount.recount(&input);
        }
        let file = raw_file(format, input);
        engine.begin_run();
        verdicts.begin_run();
        if engine.begin_rehearsal() {
            // Only the questions count.
            let _ = judge.judge(engine, &file, &(), &mut Verdicts::default());
            engine.end_rehearsal();
        }
        let memory = MemoryMeter::begin();
        let meter = judge.renewed_meter();
        AccessReport::begin(engine.accesses_are_feedback(), &meter, observer);
        let judged = judge.judge(engine, &file, observer, verdicts);
        accesses.end((judge.images(), &[]), &meter, observer);
        let judged = verdicts.judge_end(engine.take_end(), judged, RawOutcome::Failed);
        let judged = judged.and_then(|outcome| {
            verdicts.judge(memory.check(engine.policy().memory))?;
            Ok(outcome)
        });
        observer.measured();
        let outcome = judged
            .map_err(|violation| Box::new(Failure { violation: *violation, operations_run: 0 }))?;
        let (refused, failed) = match outcome {
            RawOutcome::Refused => (1, 0),
            RawOutcome::Failed => (0, 1),
            RawOutcome::Walked => (0, 0),
        };
        let unanswered = self.verdicts.unanswered();
        Ok(Outcome { images: 1, refused, failed, unanswered, ..Outcome::default() })
    }

    fn pipeline(&self) -> Option<&Pipeline> {
        None
    }

    fn met(&self) -> &[MetFinding] {
        self.verdicts.met()
    }
}
