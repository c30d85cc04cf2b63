//! Judges an engine that writes: carries out the requests of a program through it, and compares the bytes that a guest
//! then reads, and the image that the engine leaves, with a simple model. A program can cut the power, or kill the
//! engine's process.

mod bitmaps;
mod changed_disk;
mod crash;
mod faults;
mod flown;
mod guest;
pub(crate) mod hostile;
mod in_flight;
mod left_files;
mod length;
mod pattern;
mod reopened;
mod requests;
mod state;
mod steps;
mod work;

use std::sync::Arc;

use crate::base::features::Feature;
use crate::disk::extent::{Extent, Window};
use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, State};
use crate::disk::storage::Storage;
use crate::harness::Walker;
use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::accesses::AccessReport;
use crate::harness::cases::case::{Case, Verdicts};
use crate::harness::cases::explored::Explored;
use crate::harness::cases::target::{CaseEnd, CaseRun, JudgeCase};
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{Engine, EngineError, OpenDisk};
use crate::harness::files::chain::Chain;
use crate::harness::files::meter::Meter;
use crate::harness::oracles::bounds::Collector;
use crate::harness::oracles::data::GuestRead;
use crate::harness::oracles::qcow2::recount::Recount;
use crate::harness::oracles::written::{self, BeyondEdges, DiskReader, Moment};
use crate::harness::oracles::{self, OracleResult, SetAside};
use crate::images::content::entropy::Entropy;
use crate::images::files::{FileNames, Images};
use crate::programs::WriteRequest;

use guest::{Cut, GuestDisk, SessionEnd};
use state::{BuiltDisks, MetFaults};
use steps::FileSteps;
use work::handled_bytes;

/// The most steps of the walk of a written image.
const MAX_WALK_STEPS: u64 = 1 << 20;

/// Judges how engines write, with buffers that are reused.
#[derive(Debug, Default)]
pub(crate) struct WriterJudge {
    /// The disk before the first request, and its snapshots.
    built: BuiltDisks,
    guest: GuestDisk,
    meter: Arc<Meter>,
    reader: Walker,
    recount: Recount,
    extents: Vec<Extent>,
    /// The extents that the engine emits when it has opened the written image again.
    again: Vec<Extent>,
    /// The image before the first request. There is none if the engine has created the image.
    before: Option<Chain>,
    bytes: written::WrittenBuffers,
    /// Selects the bytes that are compared.
    entropy: Entropy,
    payload: Vec<u8>,
    /// The bytes of requests in flight.
    flight_bytes: Vec<Vec<u8>>,
    faults: MetFaults,
    /// The most bytes that the closed file may have, if that is known.
    most_bytes: Option<u64>,
    explored: Explored,
    /// The cuts of a session, which are judged when the image is closed.
    cuts: Vec<Cut>,
    /// The files that the engine left, or those of the cut in which an oracle found a new violation.
    written: Option<Chain>,
    /// The first files with a known finding. They take the place of `written` if there is no new finding.
    of_known_finding: Option<Chain>,
}

impl JudgeCase for WriterJudge {
    fn begin_run(&mut self, checksum: u32) {
        self.entropy = Entropy::new(u64::from(checksum));
        self.reader.begin_run();
        self.explored.begin_run();
    }

    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        if case.images.top().format != ImageFormat::Qcow2 {
            // Programs make requests only for qcow2 images, and only these can be recounted.
            return Ok(CaseEnd::Unsupported);
        }
        run.observer.begin(State::Write);
        let judged = self.judge_requests(engine, run, case);
        // A known error ends the requests, except that of a write, zeroes or a discard of an image without bitmaps.
        run.verdicts.judge(judged).map(|_| CaseEnd::Judged)
    }

    fn compare(
        &mut self,
        opinion: &mut Opinion,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult {
        // If the file has a known finding, the other implementation would only report the same fault. Requests in
        // flight may leave another disk there.
        match (run.verdicts.met(), &self.written) {
            ([], Some(left)) if !self.faults.may_leak && !case.features.has(Feature::InFlight) => {
                opinion.judge_left(engine, case, left, run.verdicts)
            }
            _ => Ok(()),
        }
    }

    #[cfg(feature = "fuzzer")]
    fn explored(&mut self) -> Option<&mut Explored> {
        Some(&mut self.explored)
    }

    fn left(&self) -> Option<&Chain> {
        self.written.as_ref()
    }

    fn forget(&mut self) {
        self.written = None;
        self.of_known_finding = None;
    }
}

impl WriterJudge {
    /// Opens the images of `case` through `engine`, carries out its requests, and judges the result. The image that the
    /// engine writes is a copy. The engine need not answer all requests: `verdicts` records the kinds that it lacks.
    fn judge_requests(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult {
        self.meter = Arc::clone(run.meter);
        self.cuts.clear();
        (self.faults, self.most_bytes) = Default::default();
        self.begin(case);
        let has_cuts = case.requests.iter().any(WriteRequest::is_cut);
        self.meter.take_refused_writes();
        let created = self.create(engine, case, has_cuts, run)?;
        self.before = created.is_none().then(|| Chain::new(case.images));
        let images = created.as_ref().filter(|_| run.observer.observes()).map(images_of);
        let mut chain = match created {
            Some(chain) => chain,
            None => {
                let device = self.built.device(case.requests);
                Chain::metered(case.images, &self.meter).writable(device, has_cuts)
            }
        };
        self.most_bytes = length::most_bytes(case, self.before.as_ref().unwrap_or(&chain));
        let feedback = engine.facts().writes();
        AccessReport::begin(feedback, &self.meter, run.observer);
        let ran = self.sessions(engine, case, &mut chain, run);
        // Nothing is known about the origin of data in an image that the engine has created.
        let files = match &images {
            Some(images) => (images, &[][..]),
            None => (case.images, &case.journals[..]),
        };
        run.accesses.end(feedback, files, &self.meter, run.observer);
        if run.observer.observes() {
            run.observer.handled_bytes(handled_bytes(files.0, case.requests));
        }
        let written = chain.into_written();
        let judged = match ran {
            Ok(true) => {
                self.closed(&written, run.verdicts).and_then(|file| match file.has_disk {
                    true => {
                        let read = self.read_again(engine, &written, run.verdicts);
                        self.check_read_only("image opened again", run.verdicts)?;
                        read
                    }
                    // The engine would hardly find more in the file.
                    false => Ok(()),
                })
            }
            Ok(false) => Ok(()),
            Err(found) => Err(found),
        };
        self.guest.bitmaps.forget();
        self.before = None;
        let of_known_finding = self.of_known_finding.take().filter(|_| judged.is_ok());
        // The file of a cut in which there was a new finding comes first.
        self.written.get_or_insert_with(|| of_known_finding.unwrap_or(written));
        judged
    }

    /// Begins with the disk of a case, before its requests.
    fn begin(&mut self, case: &Case) {
        self.built.replay(case.journals.iter().copied());
        let has_bitmaps = case.features.has(Feature::Bitmaps);
        self.guest.begin(&self.built, has_bitmaps.then(|| Chain::new(case.images)));
    }

    /// Carries out all requests. A session ends where the engine closes the image, or crashes; the file is judged after
    /// each session but the last. Returns false if the caller must not judge the file: the engine does not open images
    /// for writing, or one of these files has a known finding that is more than a leak.
    fn sessions(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
        chain: &mut Chain,
        run: &mut CaseRun,
    ) -> OracleResult<bool> {
        let mut rest = case.requests;
        loop {
            let length = rest.iter().position(WriteRequest::ends_session).unwrap_or(rest.len());
            let (session, behind) = rest.split_at(length);
            let (end, behind) =
                behind.split_first().map_or((None, behind), |(it, all)| (Some(it), all));
            let ended = self.session(engine, chain, (session, end), run);
            let was_traced = self.meter.interrupt_trace();
            let goes_on = self.judge_session(engine, chain, (ended, end.is_none()), run.verdicts);
            self.meter.resume_trace(was_traced);
            match (goes_on?, end) {
                (true, Some(_)) => rest = behind,
                (goes_on, _) => return Ok(goes_on),
            }
        }
    }

    /// Judges the files that a session leaves. The caller judges the one that the last session closes. Returns false if
    /// the engine has not opened the image, or if there is a known finding that is more than a leak: later ones could
    /// follow from it.
    fn judge_session(
        &mut self,
        engine: &mut TestedEngine,
        chain: &mut Chain,
        (ended, is_last): (OracleResult<SessionEnd>, bool),
        verdicts: &mut Verdicts,
    ) -> OracleResult<bool> {
        self.check_read_only("layer below", verdicts)?;
        // The cuts before an error have left their files all the same, even if the error is known.
        // Their violations have the names of the cuts, also after an error of the file.
        let attribution = verdicts.attribute_to(None);
        let cuts_hold = self.judge_cuts(engine, verdicts)?;
        verdicts.attribute_to(attribution);
        match ended? {
            SessionEnd::NotOpened => return Ok(false),
            SessionEnd::Crashed(left) => {
                return Ok(cuts_hold && self.go_on(chain, *left));
            }
            SessionEnd::Closed => {}
        }
        if self.faults.is_lost {
            return self.judge_lost(&chain.as_written(), verdicts).map(|()| false);
        }
        chain.note_closed();
        self.guest.settle();
        Ok(is_last || !self.closed(&chain.as_written(), verdicts)?.has_harm)
    }

    /// Opens the image, carries out requests, reads the disk, and closes the image, unless the request `end` lets the
    /// engine crash.
    fn session(
        &mut self,
        engine: &mut TestedEngine,
        chain: &Chain,
        (requests, end): (&[WriteRequest], Option<&WriteRequest>),
        run: &mut CaseRun,
    ) -> OracleResult<SessionEnd> {
        let needs_repair = self.needs_repair(chain);
        // Bitmaps are in use while an image is open.
        let is_compared = requests.is_empty() && !needs_repair && !self.guest.bitmaps.were_there();
        let before = is_compared.then(|| (chain.written_version(), chain.as_written()));
        let size = engine.facts().policy.size;
        let refused = |error| oracles::unexpected_error("open", "image", &error);
        self.begin_faults(chain);
        let opened = match engine.open_to_write(chain) {
            // The engine is not to blame: the caller counts the run among those that were not judged.
            Err(error @ EngineError::NotGiven(_)) => return Err(refused(error)),
            Err(_) if needs_repair || self.has_met(chain) => return Ok(SessionEnd::NotOpened),
            opened => opened.map_err(refused),
        };
        let Some(mut disk) = run.verdicts.judge_answer(opened)? else {
            return Ok(SessionEnd::NotOpened);
        };
        self.check_open_size(size, disk.virtual_size_bytes())?;
        self.begin_faults(chain);
        self.carry_out_session((chain, &mut disk), requests, run)?;
        if let (Some(WriteRequest::Crash { kind, choice }), false) = (end, self.faults.is_lost) {
            run.observer.event(State::Write, Event::Cut);
            return Ok(SessionEnd::Crashed(Box::new(self.crash(chain, disk, *kind, *choice))));
        }
        if !self.faults.is_lost {
            self.check_open_size(size, disk.virtual_size_bytes())?;
            let read = &mut |at, into: &mut [u8]| disk.read(at, into);
            let set_aside = &mut |found| run.verdicts.set_aside(found);
            let compared = self.compare(Moment::Open, read, set_aside);
            run.verdicts.judge_answer(self.excused(compared))?;
        }
        let written = chain.written_changes();
        self.close(chain, disk, run.verdicts)?;
        if let Some(WriteRequest::Cut { kind, choice }) = requests.last()
            && !self.faults.is_lost
        {
            self.cut_while_closing(chain, written, *kind, *choice);
        }
        if let Some((version, before)) = before
            && version != chain.written_version()
        {
            self.unchanged(&before, &chain.as_written())?;
        }
        run.observer.event(State::Write, Event::Checkpoint);
        Ok(SessionEnd::Closed)
    }

    /// Judges the file that the engine has left, step by step.
    fn closed(&mut self, chain: &Chain, verdicts: &mut Verdicts) -> OracleResult<ClosedFile> {
        let mut steps = FileSteps::new(verdicts, written::in_file);
        let are_dropped = self.guest.bitmaps.note_dropped(chain);
        steps.judge(self.guest.bitmaps.check_kept())?;
        match self.faults.may_leak {
            true => self.count_with_leaks(chain, &mut steps)?,
            false => steps.each(|set_aside| self.count(chain, are_dropped, set_aside)).map(drop)?,
        }
        if let (Some(most_bytes), false) = (self.most_bytes, self.faults.may_leak) {
            steps.judge(written::check_length(chain.image().length_bytes(), most_bytes))?;
        }
        let mut reader = std::mem::take(&mut self.reader);
        let walked = self.walk(&mut reader, chain, &mut steps);
        self.reader = reader;
        let Some(has_disk) = walked? else {
            return Ok(ClosedFile { has_harm: true, has_disk: false });
        };
        steps.each(|set_aside| self.kept_bits(chain, set_aside))?;
        steps.each(|set_aside| self.kept(chain, set_aside))?;
        let has_failed = self.faults.may_leak;
        steps.each(|set_aside| self.guest.bitmaps.check(chain, has_failed, set_aside))?;
        steps.each(|set_aside| self.raw_data_file(chain, set_aside))?;
        Ok(ClosedFile { has_harm: steps.has_harm(), has_disk })
    }

    /// Walks and reads the file and its snapshots with our own walker. Returns true if the disk has the guest's bytes,
    /// false if a known finding says otherwise, and `None` if a known finding prevents the comparison.
    fn walk(
        &mut self,
        reader: &mut Walker,
        chain: &Chain,
        steps: &mut FileSteps,
    ) -> OracleResult<Option<bool>> {
        let expected_bytes = self.guest.size_bytes();
        let walked = self.walked(reader, chain, |size_bytes| {
            oracles::extents::model::check_size(expected_bytes, size_bytes)
        });
        let Some(mut disk) = steps.judge(walked)? else { return Ok(None) };
        steps.each(|set_aside| oracles::extents::check_flags(&self.extents, set_aside))?;
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let has_disk = steps.each(|set_aside| self.compare(Moment::Closed, read, set_aside))?;
        drop(disk);
        if has_disk {
            steps.each(|set_aside| self.mapping(set_aside))?;
        }
        steps.each(|set_aside| self.snapshots(reader, chain, set_aside))?;
        Ok(Some(has_disk))
    }

    /// Opens the file with our own walker, checks the size of its disk, and walks it. The extents stay in `extents`.
    fn walked<'d>(
        &mut self,
        reader: &'d mut Walker,
        chain: &'d Chain,
        check_size: impl FnOnce(u64) -> OracleResult,
    ) -> OracleResult<Box<dyn OpenDisk + 'd>> {
        let refused = |error| oracles::unexpected_error("written", "image", &error);
        let mut disk = reader.open(chain).map_err(refused)?;
        let size_bytes = disk.virtual_size_bytes();
        check_size(size_bytes)?;
        let mut collector = Collector::new(&mut self.extents, MAX_WALK_STEPS);
        let walked = disk.map(Window::ALL, &mut collector);
        oracles::bounds::check_steps(collector.exhausted(), MAX_WALK_STEPS)?;
        walked.map_err(refused)?;
        oracles::extents::check_partition(&self.extents, &(0..size_bytes))?;
        Ok(disk)
    }

    /// Judges whether the engine has tried to write to files that are open for reading only.
    fn check_read_only(&self, files: &'static str, verdicts: &mut Verdicts) -> OracleResult {
        let checked = written::check_read_only(files, self.meter.take_refused_writes());
        verdicts.judge(checked).map(|_| ())
    }

    fn compare(
        &mut self,
        moment: Moment,
        read: &mut GuestRead,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let Self { built, guest, bytes: buffers, entropy, .. } = self;
        // Our walker has read more of the file before the engine opens it again.
        let beyond = match moment {
            Moment::Reopened => BeyondEdges::Nothing,
            _ => BeyondEdges::Drawn(entropy),
        };
        let disk = &guest.over(built);
        DiskReader { read, disk, moment, buffers }.check(beyond, set_aside)
    }
}

/// The result of the oracles on the file that an engine has closed.
struct ClosedFile {
    /// An oracle met a known finding that is more than a leak.
    has_harm: bool,
    /// The file has the disk of the guest.
    has_disk: bool,
}

/// Returns the files of a chain with a new image, as those of a case.
fn images_of(chain: &Chain) -> Images {
    let mut images = Images::default();
    images.resize(1);
    let top = images.layer_mut(0);
    top.set_names(&FileNames::default(), 0, ImageFormat::Qcow2);
    top.image = chain.as_written().image().built().clone();
    images
}
