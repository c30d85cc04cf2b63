//! Has an engine create an empty image, if a program wants that, and judges the image before the engine writes to it.
//! Then passes the requests of the program to the open disk, and reads the disk around what they changed. Another
//! engine may carry them out, too, without a verdict.

use std::ops::Range;

use crate::disk::observer::{Event, State};
use crate::formats::qcow2::geometry::{Compression, Version};
use crate::formats::qcow2::header::Header;
use crate::harness::cases::case::{Case, Verdicts};
use crate::harness::cases::target::CaseRun;
use crate::harness::engine::questions::QuestionKind;
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::engine::{Answer, EngineError, Request};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::written::{self, DiskReader, Moment};
use crate::harness::oracles::{self, OracleResult, SetAside, observed};
use crate::programs::{NewImage, WriteRequest};

use super::WriterJudge;
use super::faults::exposed;
use super::flown::RequestResult;
use super::guest::{Cut, GuestDisk};
use super::steps::FileSteps;

impl WriterJudge {
    /// Passes a request to the engine. The guest's disk changes only if the engine has an answer to it.
    pub(super) fn carry_out(
        &mut self,
        (chain, disk): (&Chain, &mut TestedDisk),
        request: &WriteRequest,
        run: &mut CaseRun,
    ) -> OracleResult {
        if let WriteRequest::Cut { kind, choice } = *request {
            let (files, guest) = (chain.after_cut(kind, choice), self.guest.clone());
            self.cuts.push(Cut { kind, files, guest });
            run.observer.event(State::Write, Event::Cut);
            return Ok(());
        }
        if let WriteRequest::FailFile(fault) = *request {
            chain.faults(|faults| faults.arm(fault));
            return Ok(());
        }
        if let Some(range) = request.read() {
            return self.carry_out_read((chain, disk), range, run);
        }
        let Some(done) = exposed(chain, || self.pass(disk, request)) else { return Ok(()) };
        self.note_faults(chain, run.verdicts);
        match self.result_of(request, done, run)? {
            RequestResult::Done => {
                self.observe(request, run);
                self.guest.note(request);
                if *request == WriteRequest::Flush {
                    chain.settle();
                }
                let set_aside = &mut |found| run.verdicts.set_aside(found);
                let compared = self.compare_edges(request, disk, Moment::Open, set_aside);
                run.verdicts.judge_answer(self.excused(compared)).map(|_| ())
            }
            RequestResult::Nothing => Ok(()),
            result => {
                self.guest.note_failed(request, result);
                Ok(())
            }
        }
    }

    /// Reads bytes for the guest, and compares them.
    fn carry_out_read(
        &mut self,
        (chain, disk): (&Chain, &mut TestedDisk),
        range: Range<u64>,
        run: &mut CaseRun,
    ) -> OracleResult {
        let Self { built, guest, bytes: buffers, .. } = self;
        let read = &mut |at, into: &mut [u8]| exposed(chain, || disk.read(at, into));
        let mut reader =
            DiskReader { read, disk: &guest.over(built), moment: Moment::Open, buffers };
        let compared = reader.check_range(range, &mut |found| run.verdicts.set_aside(found));
        self.note_faults(chain, run.verdicts);
        run.verdicts.judge_answer(self.excused(compared)).map(|_| ())
    }

    /// Notes the event of a request that was carried out.
    pub(super) fn observe(&self, request: &WriteRequest, run: &CaseRun) {
        let event = match request {
            WriteRequest::Write { .. } => Event::Normal,
            WriteRequest::WriteZeroes { .. } => Event::ZeroPlain,
            WriteRequest::Discard { .. } => Event::Unallocated,
            WriteRequest::Resize { .. } => Event::Resized,
            WriteRequest::TakeSnapshot { .. } => Event::Snapshot,
            WriteRequest::ApplySnapshot { .. } => Event::SnapshotApplied,
            WriteRequest::DeleteSnapshot { .. } => Event::SnapshotDeleted,
            WriteRequest::ChangeBitmap { .. } => Event::Bitmap,
            WriteRequest::Flush => Event::Flushed,
            _ => return,
        };
        run.observer.event(State::Write, event);
    }

    /// Returns the result of a request from the engine's answer, or the finding that the answer is.
    pub(super) fn result_of(
        &mut self,
        request: &WriteRequest,
        done: Answer,
        run: &mut CaseRun,
    ) -> OracleResult<RequestResult> {
        match done {
            Ok(()) => Ok(RequestResult::Done),
            Err(EngineError::NoAnswer) => Ok(RequestResult::Nothing),
            // Version 2 has no zero clusters, say.
            Err(error @ EngineError::Unsupported(_)) if may_be_unsupported(request) => {
                observed::error(&error, run.observer);
                Ok(RequestResult::Nothing)
            }
            // The engine has closed the image, and the harness could not give it back.
            Err(error @ EngineError::NotGiven(_)) => {
                Err(oracles::unexpected_error("open", "image", &error))
            }
            Err(error) if self.faults.in_session => {
                observed::error(&error, run.observer);
                Ok(self.refused(request))
            }
            Err(error) => {
                let kind = kind_of(&self.guest, request);
                let found = oracles::unexpected_error("written", kind.oracles().0, &error);
                match request.changed() {
                    // Only bytes may become unknown: after a failed resize, the size is, and with bitmaps their bits.
                    Some(range) if !range.is_empty() && !self.guest.bitmaps.were_there() => {
                        run.verdicts.set_aside(found)?;
                        Ok(RequestResult::Unknown)
                    }
                    _ => Err(found),
                }
            }
        }
    }

    /// Has the engine carry out a request to the open disk. Returns the answer; `None` if the request is not passed to
    /// an open disk.
    pub(super) fn pass(&mut self, disk: &mut TestedDisk, request: &WriteRequest) -> Option<Answer> {
        let Self { built, guest, payload, .. } = self;
        guest.fill(built, (1, request), payload);
        Some(disk.request(&asked(guest, request, payload)?))
    }

    /// Reads the open disk around the edges of a request that was carried out, or more of it if that applied a
    /// snapshot. Later requests may hide a mistake there, and the end of the session shows it too late.
    pub(super) fn compare_edges(
        &mut self,
        request: &WriteRequest,
        disk: &mut TestedDisk,
        moment: Moment,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        if matches!(request, WriteRequest::ApplySnapshot { .. }) {
            let read = &mut |at, into: &mut [u8]| disk.read(at, into);
            return self.compare(moment, read, set_aside);
        }
        let Some(changed) = request.changed() else { return Ok(()) };
        let Self { built, guest, bytes: buffers, .. } = self;
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let disk = &guest.over(built);
        let mut reader = DiskReader { read, disk, moment, buffers };
        reader.check_edges(&[changed.start, changed.end], set_aside)
    }

    /// Has the engine create the image of `case`, if the program wants that. Returns `None` if it does not, if the
    /// engine does not create such images, or if there is a known finding in the image that is more than a leak: the
    /// engine then writes to the image that the harness has built.
    pub(super) fn create(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
        has_cuts: bool,
        run: &mut CaseRun,
    ) -> OracleResult<Option<Chain>> {
        let Some(wanted) = &case.new_image else { return Ok(None) };
        let chain = Chain::empty(case.images, has_cuts, &self.meter);
        match engine.create(&chain, wanted) {
            Ok(()) => {}
            Err(EngineError::NoAnswer) => return Ok(None),
            Err(error @ EngineError::Unsupported(_)) => {
                observed::error(&error, run.observer);
                return Ok(None);
            }
            // The engine is not to blame.
            Err(error @ EngineError::NotGiven(_)) => {
                return Err(oracles::unexpected_error("open", "image", &error));
            }
            Err(error) => {
                run.verdicts
                    .judge::<()>(Err(oracles::unexpected_error("written", "create", &error)))?;
                return Ok(None);
            }
        }
        chain.note_closed();
        let files = chain.as_written();
        let judged = self.judge_created(&files, wanted, run.verdicts);
        match &judged {
            Ok(true) => {}
            Ok(false) => self.of_known_finding = Some(files),
            Err(_) => self.written = Some(files),
        }
        Ok(judged?.then_some(chain))
    }

    /// Judges the files of a new image. Returns false if there is a known finding in them that is more than a leak.
    fn judge_created(
        &mut self,
        files: &Chain,
        wanted: &NewImage,
        verdicts: &mut Verdicts,
    ) -> OracleResult<bool> {
        // If the geometry is wrong, the other oracles do not run: they would only report the same fault in other words.
        let mut steps = FileSteps::new(verdicts, written::in_file);
        let has_geometry = steps.each(|set_aside| check_geometry(files, wanted, set_aside))?;
        Ok(has_geometry && !self.closed(files, verdicts)?.has_harm)
    }
}

/// Returns a request as the engine gets it, with the bytes that it writes; `None` if it is not passed to an open disk.
pub(super) fn asked<'b>(
    disk: &GuestDisk,
    request: &WriteRequest,
    bytes: &'b [u8],
) -> Option<Request<'b>> {
    // A request that fits names a snapshot or a bitmap that is there.
    let index_of = |number| disk.snapshots.index_of(number).unwrap_or(u32::MAX);
    Some(match *request {
        WriteRequest::Write { guest, .. } => Request::Write { guest, bytes },
        WriteRequest::WriteZeroes { guest, length_bytes } => {
            Request::WriteZeroes { guest, length_bytes }
        }
        WriteRequest::Discard { guest, length_bytes } => Request::Discard { guest, length_bytes },
        WriteRequest::Resize { size_bytes } => Request::Resize { size_bytes },
        WriteRequest::TakeSnapshot { .. } => Request::TakeSnapshot,
        WriteRequest::ApplySnapshot { number } => {
            Request::ApplySnapshot { index: index_of(number) }
        }
        WriteRequest::DeleteSnapshot { number } => {
            Request::DeleteSnapshot { index: index_of(number) }
        }
        WriteRequest::ChangeBitmap { number, change } => {
            // As above.
            let index = disk.bitmaps.index_of(number, change).unwrap_or(u32::MAX);
            Request::ChangeBitmap { index, change }
        }
        WriteRequest::Flush => Request::Flush,
        WriteRequest::Read { .. }
        | WriteRequest::Cut { .. }
        | WriteRequest::Crash { .. }
        | WriteRequest::FailFile(_)
        | WriteRequest::Device { .. }
        | WriteRequest::InFlight(_)
        | WriteRequest::Reopen => return None,
    })
}

/// Returns the kind of a request that an engine gets.
pub(super) fn kind_of(disk: &GuestDisk, request: &WriteRequest) -> QuestionKind {
    asked(disk, request, &[]).map_or(QuestionKind::Read, |asked| asked.kind())
}

/// Reports whether an engine that writes may not support a request for some images.
fn may_be_unsupported(request: &WriteRequest) -> bool {
    use WriteRequest::{
        ApplySnapshot, ChangeBitmap, DeleteSnapshot, Discard, Resize, TakeSnapshot, WriteZeroes,
    };
    matches!(
        request,
        WriteZeroes { .. }
            | Discard { .. }
            | Resize { .. }
            | TakeSnapshot { .. }
            | ApplySnapshot { .. }
            | DeleteSnapshot { .. }
            | ChangeBitmap { .. }
    )
}

#[cfg(feature = "fuzzer")]
impl WriterJudge {
    /// Returns the files of `case` after all requests, on a copy that `engine` writes. There are no power cuts: the
    /// files that an engine closes do not depend on them.
    pub(crate) fn carry_out_all(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
    ) -> Answer<Chain> {
        self.begin(case);
        let chain = match &case.new_image {
            Some(wanted) => {
                let chain = Chain::empty(case.images, false, &self.meter);
                engine.create(&chain, wanted)?;
                chain.note_closed();
                chain
            }
            None => Chain::metered(case.images, &self.meter).writable(None, false),
        };
        for session in case.requests.split(|request| *request == WriteRequest::Reopen) {
            let mut disk = engine.open_to_write(&chain)?;
            for request in session {
                if self.guest.fits(request)
                    && let Some(done) = self.pass(&mut disk, request)
                {
                    done?;
                    self.guest.note(request);
                }
            }
            disk.close()?;
            chain.note_closed();
            self.guest.settle();
        }
        self.guest.bitmaps.forget();
        Ok(chain.into_written())
    }
}

/// Compares the header of a new image with the properties that the harness has asked for.
fn check_geometry(files: &Chain, wanted: &NewImage, set_aside: &mut SetAside) -> OracleResult {
    let header = Header::read(files.image()).map_err(|error| {
        oracles::unexpected_error("open", "new image", &EngineError::from(error))
    })?;
    let geometry = &header.geometry;
    let number = u64::from;
    let version = if geometry.version == Version::V2 { 2 } else { 3 };
    let is_zstd = geometry.compression == Compression::Zstd;
    for (field, expected, actual) in [
        ("version of a new image", number(wanted.version), version),
        (
            "cluster size of a new image",
            number(wanted.cluster_bits),
            number(geometry.cluster_size.bits()),
        ),
        (
            "refcount width of a new image",
            number(wanted.refcount_bits),
            1 << geometry.refcount_order,
        ),
        (
            "L2 entries of a new image",
            u64::from(wanted.extended_l2),
            u64::from(geometry.extended_l2),
        ),
        ("compression type of a new image", u64::from(wanted.is_zstd), u64::from(is_zstd)),
        ("backing file of a new image", 0, number(header.backing_file_bytes)),
        ("size of a new image", wanted.size_bytes, header.size_bytes),
    ] {
        written::check_new_image(field, expected, actual).or_else(&mut *set_aside)?;
    }
    Ok(())
}
