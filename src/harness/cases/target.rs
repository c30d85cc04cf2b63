//! The parts of a fuzz target that differ from target to target: its constant properties, and the judge of its cases.

use std::sync::Arc;

use crate::disk::extent::Extent;
use crate::disk::observer::Observer;
use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::accesses::AccessReport;
use crate::harness::cases::case::{Case, Verdicts};
#[cfg(feature = "fuzzer")]
use crate::harness::cases::explored::Explored;
use crate::harness::engine::claims::Claims;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{AccessFeedback, Facts};
use crate::harness::files::chain::Chain;
use crate::harness::files::meter::Meter;
use crate::harness::oracles::OracleResult;
use crate::harness::oracles::bounds::TableBytes;
use crate::images::content::entropy::Entropy;
use crate::images::limits::Limits;

/// The constant properties of a target.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The name on the command line, of the libFuzzer binary and of the corpus folder.
    pub name: &'static str,
    /// The description in help texts: one line.
    pub about: &'static str,
    /// The kind of its inputs.
    pub inputs: Inputs,
    /// The limits of its programs. They mean nothing if its inputs are files.
    pub limits: Limits,
    /// The extents that the harness expects from the walk of an image.
    pub expectation: Expectation,
    /// Returns the claims into which its programs are folded.
    pub(crate) claims: fn(&Facts) -> Claims,
    /// The oracles judge the structures of each image before an engine opens it.
    pub(crate) judges_structures: bool,
    /// The oracle `memory` judges the engine.
    pub(crate) judges_memory: bool,
}

/// The kind of a target's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Programs, which build images.
    Programs,
    /// Image files of any content.
    Files,
    /// Bytes that choose the commands of a recipe.
    Recipes,
}

/// The extents that the harness expects from the walk of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The extents of the reference model.
    Extents,
    /// The extents of the reference model in the guest ranges that no attack has touched.
    UntouchedExtents,
    /// Nothing: the target judges the disk that the engine has written.
    Written,
    /// Nothing: the target judges the refcounts, and no image is walked.
    NotWalked,
    /// Nothing: a file without a journal has no expectation.
    Unknown,
    /// Nothing: the target judges the bytes of the disk, and compares the answers with QEMU's.
    Bytes,
}

/// Judges the cases of a target. It reuses its buffers from run to run.
pub(crate) trait JudgeCase {
    /// Begins a run of the program with this checksum.
    fn begin_run(&mut self, checksum: u32) {
        let _ = checksum;
    }

    /// Forgets the files of the last case.
    fn forget(&mut self) {}

    /// Has the engine answer questions about `case`, and judges the answers.
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd>;

    /// Has a second opinion judge the engine's answers about the same case, too. By default, passes it no expected
    /// extents.
    fn compare(
        &mut self,
        opinion: &mut Opinion,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult {
        opinion.judge(engine, case, None, run.verdicts)
    }

    /// Returns the extents that the model expected of the last image, and those that the engine emitted.
    fn extents(&self) -> [&[Extent]; 2] {
        [&[], &[]]
    }

    /// Returns what the last run could have met; `None` if the engine does not write.
    #[cfg(feature = "fuzzer")]
    fn explored(&mut self) -> Option<&mut Explored> {
        None
    }

    /// Returns the number of bytes of written files that the harness may keep in memory while the engine works.
    fn kept_bytes(&self) -> u64 {
        0
    }

    /// Returns the files of the last case as the engine has left them, or as the first cut did in which an oracle found
    /// a violation, known or not; `None` if no engine has written them.
    fn left(&self) -> Option<&Chain> {
        None
    }
}

/// The run of a case, beside its engine.
pub(crate) struct CaseRun<'r> {
    pub(crate) verdicts: &'r mut Verdicts,
    pub(crate) observer: &'r dyn Observer,
    /// The random choices of the oracles depend on the program alone.
    pub(crate) entropy: &'r mut Entropy,
    /// Counts the reads of the files of the case. No engine counts on it any more from a case before.
    pub(crate) meter: &'r Arc<Meter>,
    pub(crate) accesses: &'r mut AccessReport,
    /// The bytes of tables that the images have, if the oracles have judged their structures.
    pub(crate) tables: TableBytes,
}

impl CaseRun<'_> {
    /// Begins the trace of accesses, if they are feedback.
    pub(crate) fn begin_accesses(&self, feedback: AccessFeedback) {
        AccessReport::begin(feedback, self.meter, self.observer);
    }

    /// Ends the trace, if there is one, and reports the accesses to the files of `case`.
    pub(crate) fn end_accesses(&mut self, feedback: AccessFeedback, case: &Case) {
        let files = (case.images, &case.journals[..]);
        self.accesses.end(feedback, files, self.meter, self.observer);
    }
}

/// How the judgement of a case ended, without a new finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaseEnd {
    /// The engine has answered; or a known finding prevents more answers.
    Judged,
    /// The engine did not open the image, as it may.
    Refused,
    /// The engine opened the image, and its walk ended with an error, or had to.
    Failed,
    /// The target has no images of this kind.
    Unsupported,
}
