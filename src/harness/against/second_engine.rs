//! Any engine as a second opinion: it opens the same images as the engine under test, and all answers are compared,
//! those about snapshots and about written files included. If it writes, it carries out the same requests on a copy of
//! its own, and the guest's bytes of both disks are compared.
//!
//! Does not compare more than four snapshots of an image; nor the disks after requests that a side has not carried out.
//! `disks` says which answers about a disk are not compared.

use std::fmt;
use std::ops::Range;

use crate::disk::extent::Extent;
use crate::disk::image_format::ImageFormat;
use crate::formats::qcow2::header::Header;
use crate::harness::cases::case::Case;
use crate::harness::cases::implementation::{Expression, Implementation, no_observer};
use crate::harness::cases::target::JudgeCase;
use crate::harness::engine::claims::{Claim, SizePolicy};
use crate::harness::engine::questions::{QuestionKind, QuestionKinds};
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::engine::{EngineError, ErrorKind};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::{OracleResult, SetAside, Violation, disagreement_with, process_end};
use crate::harness::writing::WriterJudge;

use super::differences::Other;
use super::disks::{DiskBuffers, DiskSides};
use super::second_opinion::{self, JudgedDisk, JudgedImage, SecondOpinion, WalkEnd, walked};

/// The beginning of the fingerprints of an image.
const IMAGE: &str = second_opinion::OF_ENGINE;
/// The beginning of the fingerprints of a snapshot.
const SNAPSHOT: &str = "against snapshot";
/// The beginning of the fingerprints of the disk that both engines have written.
const WRITTEN: &str = "against written";
/// The highest number of snapshots of an image that are compared.
const MAX_COMPARED_SNAPSHOTS: u32 = 4;
/// The number of bytes behind each edge of a request that are compared.
const COMPARED_EDGE_BYTES: u64 = 4096;
/// The requests that change what a guest reads.
const WRITE_REQUESTS: QuestionKinds = QuestionKinds::of(&[
    QuestionKind::Writing,
    QuestionKind::WriteZeroes,
    QuestionKind::Discard,
    QuestionKind::Resize,
    QuestionKind::TakeSnapshot,
    QuestionKind::ApplySnapshot,
    QuestionKind::DeleteSnapshot,
    QuestionKind::Create,
]);

impl Implementation {
    /// Returns the implementation, with whose answers those of `other` are compared.
    pub fn against_engine(self, other: Self) -> Self {
        let other_text = other.expression().map(Expression::of_implementation);
        let call = other_text.map(|other| format!(".against_engine({other})"));
        self.written_with(call).judged_by(move |_| Box::new(SecondEngine::new(&other)))
    }
}

/// An engine whose answers are compared with those of the engine under test.
pub(crate) struct SecondEngine {
    engine: TestedEngine,
    name: String,
    buffers: DiskBuffers,
    /// The extents of a disk of the engine under test.
    extents: Vec<Extent>,
    writer: WriterJudge,
}

impl fmt::Debug for SecondEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecondEngine").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SecondOpinion for SecondEngine {
    fn begin_run(&mut self, checksum: u32) {
        self.engine.begin_run();
        self.writer.begin_run(checksum);
    }

    fn judge(
        &mut self,
        image: &JudgedImage,
        disk: Option<&mut TestedDisk>,
        set_aside: &mut SetAside,
    ) -> OracleResult<bool> {
        let claims = &self.engine.facts().claims;
        let claim = match image.chain.layers().iter().all(|layer| claims.knows(layer.format)) {
            true => claims.about(image.features),
            false => Claim::No,
        };
        if claim == Claim::No {
            return Ok(false);
        }
        let may_refuse = image.is_any_content || claim == Claim::RefuseOrBeRight;
        let judged = self.judge_claimed(image, disk, may_refuse, set_aside);
        self.ended(IMAGE, judged, true, set_aside)
    }

    fn judge_snapshots(
        &mut self,
        engine: &mut TestedEngine,
        image: &JudgedImage,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        if image.chain.format() != ImageFormat::Qcow2 {
            return Ok(());
        }
        // Both sides have opened an image whose header cannot be read: there is nothing to compare.
        let count = Header::read(image.chain.image()).map_or(0, |header| header.snapshots);
        for index in 0..count.min(MAX_COMPARED_SNAPSHOTS) {
            let set_aside = &mut |mut found: Box<Violation>| {
                found.detail = format!("snapshot {index} of the table\n{}", found.detail);
                set_aside(found)
            };
            let judged = self.judge_snapshot(engine, image, index, set_aside);
            if !self.ended(SNAPSHOT, judged, false, set_aside)? {
                break;
            }
        }
        Ok(())
    }

    fn judge_requests(
        &mut self,
        engine: &mut TestedEngine,
        (case, files): (&Case, &Chain),
        set_aside: &mut SetAside,
    ) -> OracleResult {
        if self.engine.facts().write_claims().about(case.features) != Claim::Yes
            || engine.unanswered().and(WRITE_REQUESTS) != QuestionKinds::default()
        {
            return Ok(());
        }
        let judged = self.judge_written(engine, (case, files), set_aside);
        self.ended(WRITTEN, judged, (), set_aside)
    }

    fn unanswered(&self) -> QuestionKinds {
        self.engine.unanswered()
    }
}

impl SecondEngine {
    pub(crate) fn new(implementation: &Implementation) -> Self {
        // The events of the other implementation are no feedback.
        let engine = implementation.tested(&no_observer());
        let name = engine.facts().name.to_string();
        let (buffers, extents, writer) = Default::default();
        Self { engine, name, buffers, extents, writer }
    }

    /// Returns the result of a comparison: the end of the other engine's process, if there is one, or `judged`. Returns
    /// `ended` if that end is set aside.
    fn ended<T>(
        &mut self,
        oracle: &'static str,
        judged: OracleResult<T>,
        ended: T,
        set_aside: &mut SetAside,
    ) -> OracleResult<T> {
        match self.engine.take_end() {
            None => judged,
            Some(end) => set_aside(process_end(end).attributed_to(oracle)).map(|()| ended),
        }
    }

    /// Reports whether the policy of an engine allows sizes near the one that an image stores.
    fn allows_near_size(&self) -> bool {
        self.engine.facts().policy.size == SizePolicy::Near
    }

    /// Compares the answers about an image that the other engine claims to read. Returns false if it may refuse the
    /// image and does, or if it does not support a feature.
    fn judge_claimed(
        &mut self,
        image: &JudgedImage,
        disk: Option<&mut TestedDisk>,
        may_refuse: bool,
        set_aside: &mut SetAside,
    ) -> OracleResult<bool> {
        let allows_near_size = self.allows_near_size() || image.allows_near_size;
        let Self { engine, name, buffers, .. } = self;
        let other = other(IMAGE, name);
        let opened = engine.open(image.chain);
        match (opened, disk, &image.disk) {
            (Err(error), ..) if is_no_answer(&error) => Ok(false),
            (Err(error), Some(_), _) => match may_refuse {
                true => Ok(false),
                false => set_aside(other.refuses_alone(&error.to_string())).map(|()| true),
            },
            (Err(_), None, _) => Ok(true),
            (Ok(mut theirs), Some(ours), Ok(judged)) => {
                let (theirs, is_any_content) = (&mut theirs, image.is_any_content);
                let mut sides = DiskSides { ours, theirs, other, is_any_content, allows_near_size };
                sides.compare(judged, buffers, set_aside).map(|()| true)
            }
            (Ok(_), _, Err(_)) if image.is_any_content => Ok(false),
            (Ok(_), _, Err(error)) => {
                set_aside(other.opens_alone(&error.to_string())).map(|()| true)
            }
            (Ok(_), None, Ok(_)) => Ok(false),
        }
    }

    /// Compares the answers about a snapshot. Returns false if a side has no answers about it.
    fn judge_snapshot(
        &mut self,
        engine: &mut TestedEngine,
        image: &JudgedImage,
        index: u32,
        set_aside: &mut SetAside,
    ) -> OracleResult<bool> {
        let allows_near_size = self.allows_near_size() || image.allows_near_size;
        let Self { engine: second, name, buffers, extents, .. } = self;
        let other = other(SNAPSHOT, name);
        let is_any_content = image.is_any_content;
        match (second.open_snapshot(image.chain, index), engine.open_snapshot(image.chain, index)) {
            (Err(error), _) | (_, Err(error)) if is_no_answer(&error) => Ok(false),
            (Err(_), Err(_)) => Ok(true),
            (Ok(_), Err(_)) | (Err(_), Ok(_)) if is_any_content => Ok(true),
            (Ok(_), Err(error)) => set_aside(other.opens_alone(&error.to_string())).map(|()| true),
            (Err(error), Ok(_)) => {
                set_aside(other.refuses_alone(&error.to_string())).map(|()| true)
            }
            (Ok(mut theirs), Ok(mut ours)) => {
                let (walked, is_cut) = walked(&mut ours, extents);
                let walk = WalkEnd::of(&walked, is_cut);
                let size_bytes = ours.virtual_size_bytes();
                let judged = JudgedDisk { size_bytes, extents, walk };
                let (ours, theirs) = (&mut ours, &mut theirs);
                let mut sides = DiskSides { ours, theirs, other, is_any_content, allows_near_size };
                sides.compare(&judged, buffers, set_aside).map(|()| true)
            }
        }
    }

    /// Has the other engine carry out the requests of a case, and compares the guest's bytes with those of `files`.
    fn judge_written(
        &mut self,
        engine: &mut TestedEngine,
        (case, files): (&Case, &Chain),
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let allows_near_size =
            self.allows_near_size() || engine.facts().policy.size == SizePolicy::Near;
        let carried_out = self.writer.carry_out_all(&mut self.engine, case);
        let written = match carried_out {
            Ok(written) => written,
            Err(error) if is_no_answer(&error) => return Ok(()),
            Err(error) => {
                let (error, kinds) = (error.to_string(), ("an error", "an answer"));
                let detail = format!("{} does not carry out the requests: {error}", self.name);
                return set_aside(disagreement_with(&error, WRITTEN, "requests", kinds, detail));
            }
        };
        let Self { engine: second, name, buffers, extents, .. } = self;
        let other = other(WRITTEN, name);
        // The oracles judge the refusal of a file by its own writer, and `judge` that of the other engine.
        let (Ok(mut theirs), Ok(mut ours)) = (second.open(&written), engine.open(files)) else {
            return Ok(());
        };
        let _ = walked(&mut ours, extents);
        let (ours, theirs, is_any_content) = (&mut ours, &mut theirs, false);
        let mut sides = DiskSides { ours, theirs, other, is_any_content, allows_near_size };
        sides.compare_sizes(set_aside)?;
        sides.compare_data(extents, &edges(case), buffers, set_aside)
    }
}

/// Returns the other engine, as findings of `oracle` name it.
fn other<'n>(oracle: &'static str, name: &'n str) -> Other<'n> {
    Other { oracle, whose: "the other's", name }
}

/// Returns the parts of the disk around the edges of the requests.
fn edges(case: &Case) -> Vec<Range<u64>> {
    let changed = case.requests.iter().filter_map(|request| request.changed());
    let around = |edge: u64| {
        edge.saturating_sub(COMPARED_EDGE_BYTES)..edge.saturating_add(COMPARED_EDGE_BYTES)
    };
    changed.flat_map(|changed| [around(changed.start), around(changed.end)]).collect()
}

/// Reports whether an error says that the engine does not answer, or does not support the image.
fn is_no_answer(error: &EngineError) -> bool {
    matches!(error.kind(), ErrorKind::NoAnswer | ErrorKind::Unsupported)
}
