//! The oracle `hostile_writes`: an engine writes to an image that the program has damaged. Each request must end,
//! without a panic and in bounded memory, and the engine writes to no other file. It may refuse the image and any
//! request.
//!
//! If the damage has changed nothing but entries that map guest ranges (L1 and L2 tables), all other guest ranges keep
//! their bytes, or have those of the last request that the engine has reported as successful: an entry describes its
//! own guest range alone, and a cluster is free only if its refcount is 0 (QEMU's specification of qcow2, "Cluster
//! mapping" and "Host cluster management"). The oracle reads them while the image is open, when it is closed, and when
//! the engine has opened it again. If the engine has refused a read or a request, it may give the image up, and only
//! bytes that it has flushed are certain in the closed file (QEMU, `qapi/block-core.json`, `BLOCK_IMAGE_CORRUPTED`: a
//! fatal error makes the image unusable).
//!
//! Does not check: the bytes of images without damage, which `writes` judges; reads that fail, and the refcounts and
//! the length of the file, about which nothing is promised after damage. Nor the bytes after other damage; or after a
//! request that uses a damaged entry or all entries (a resize, a snapshot): a write goes where the entry says, and
//! that may be the data of another range. Bytes of the image at the top do not change during reads here, and none of
//! its reads fails.
//!
//! # Arithmetic
//! A disk ends before 2^63, so that no offset near it saturates at 2^64.

use std::ops::Range;

use crate::disk::image_format::ImageFormat;
use crate::disk::observer::State;
use crate::disk::offsets::GuestOffset;
use crate::formats::anatomy::EVERYTHING;
use crate::harness::Walker;
use crate::harness::against::second_opinion::Opinion;
use crate::harness::cases::accesses::AccessReport;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, JudgeCase};
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::engine::{Answer, Engine, EngineError};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::data::GuestRead;
use crate::harness::oracles::written::{self, BeyondEdges, DiskReader, Moment, WrittenBuffers};
use crate::harness::oracles::{self, OracleResult, Violation, observed};
use crate::images::content::entropy::Entropy;
use crate::images::damage::Damage;
use crate::programs::WriteRequest;

use super::faults::exposed;
use super::flown::RequestResult;
use super::guest::GuestDisk;
use super::requests::asked;
use super::state::BuiltDisks;
use super::work::handled_bytes;

const ORACLE: &str = "hostile_writes";

/// Judges how engines write to damaged images, with buffers that are reused.
#[derive(Debug, Default)]
pub(crate) struct HostileWriterJudge {
    /// The disk without the damage, before the first request.
    built: BuiltDisks,
    guest: GuestDisk,
    /// Nothing is known about the bytes of the disk.
    is_lost: bool,
    /// The engine has refused a read or a request since it has opened the image.
    has_refused: bool,
    reader: Walker,
    bytes: WrittenBuffers,
    /// Selects the bytes that are compared.
    entropy: Entropy,
    payload: Vec<u8>,
    /// The files that the engine left.
    written: Option<Chain>,
    /// The number of bytes that it has written.
    written_bytes: u64,
}

impl JudgeCase for HostileWriterJudge {
    fn begin_run(&mut self, checksum: u32) {
        self.entropy = Entropy::new(u64::from(checksum));
        self.reader.begin_run();
    }

    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        if case.images.top().format != ImageFormat::Qcow2 {
            // Programs make requests only for qcow2 images.
            return Ok(CaseEnd::Unsupported);
        }
        run.observer.begin(State::Write);
        run.verdicts.attribute_to(Some(ORACLE));
        run.meter.take_refused_writes();
        self.begin(case);
        let device = self.built.device(case.requests);
        let chain = Chain::damaged(case.images, case.damage, run.meter).writable(device, false);
        let feedback = engine.facts().writes();
        AccessReport::begin(feedback, run.meter, run.observer);
        let judged = self.sessions(engine, case, &chain, run);
        let files = (case.images, &case.journals[..]);
        run.accesses.end(feedback, files, run.meter, run.observer);
        if run.observer.observes() {
            run.observer.handled_bytes(handled_bytes(case.images, case.requests));
        }
        self.written_bytes = chain.written_bytes();
        let written = self.written.insert(chain.into_written()).clone();
        let read_again = judged.and_then(|end| {
            let writes = run.meter.take_refused_writes();
            run.verdicts.judge(written::check_read_only("layer below", writes))?;
            match end {
                CaseEnd::Judged => self.read_again(engine, &written, run).map(|()| end),
                _ => Ok(end),
            }
        });
        run.verdicts.attribute_to(None);
        read_again
    }

    /// Another implementation may refuse the damage, or write elsewhere.
    fn compare(
        &mut self,
        _opinion: &mut Opinion,
        _engine: &mut TestedEngine,
        _run: &mut CaseRun,
        _case: &Case,
    ) -> OracleResult {
        Ok(())
    }

    fn left(&self) -> Option<&Chain> {
        self.written.as_ref()
    }

    fn kept_bytes(&self) -> u64 {
        // A file in memory keeps some room for more.
        self.written_bytes.saturating_mul(2)
    }

    fn forget(&mut self) {
        self.written = None;
        self.written_bytes = 0;
    }
}

impl HostileWriterJudge {
    /// Begins with the disk of a case, before its requests.
    fn begin(&mut self, case: &Case) {
        self.built.replay(case.journals.iter().copied());
        // The requests leave bitmaps alone.
        self.guest.begin(&self.built, None);
        // The target `writes` judges images without damage.
        let has_damage = !case.damage.touched().is_empty();
        self.is_lost = !has_damage || case.damage.may_mislead_writers();
        case.damage.touched().iter().for_each(|range| self.guest.note_unknown(range.clone()));
    }

    /// Carries out all requests. Each session but the first opens the image that the one before has left.
    fn sessions(
        &mut self,
        engine: &mut TestedEngine,
        case: &Case,
        chain: &Chain,
        run: &mut CaseRun,
    ) -> OracleResult<CaseEnd> {
        let mut end = CaseEnd::Refused;
        for requests in case.requests.split(|request| *request == WriteRequest::Reopen) {
            let mut disk = match engine.open_to_write(chain) {
                Err(error @ EngineError::NotGiven(_)) => return Err(not_given(&error)),
                Err(error) => {
                    observed::error(&error, run.observer);
                    return Ok(end);
                }
                Ok(disk) => disk,
            };
            (end, self.has_refused) = (CaseEnd::Judged, false);
            for request in requests {
                self.carry_out((chain, &mut disk), request, case.damage, run)?;
            }
            self.compare((Moment::Open, Compared::Disk), &mut |at, into| disk.read(at, into), run)?;
            note_answer(&disk.close(), run);
            // It may have given the image up, with all that it had not flushed.
            self.is_lost |= self.has_refused && !self.guest.note_failed_close();
        }
        Ok(end)
    }

    /// Passes a request to the engine, if its range lies on the disk.
    fn carry_out(
        &mut self,
        (chain, disk): (&Chain, &mut TestedDisk),
        request: &WriteRequest,
        damage: &Damage,
        run: &mut CaseRun,
    ) -> OracleResult {
        // The damage may have changed the size of the disk, and that of clusters. A discard has whole ones.
        let size_bytes = disk.virtual_size_bytes();
        self.is_lost |= size_bytes != self.guest.size_bytes();
        let range = request.changed().or(request.read()).filter(|range| !range.is_empty());
        let is_odd = matches!(request, WriteRequest::Discard { .. })
            && damage.touched().contains(&EVERYTHING);
        let ends_behind = range.is_some_and(|range| range.end > size_bytes);
        if ends_behind || is_odd || !self.guest.fits(request) {
            return Ok(());
        }
        if let WriteRequest::FailFile(fault) = *request {
            chain.faults(|faults| faults.arm(fault));
            return Ok(());
        }
        if let Some(range) = request.read() {
            let read = &mut |at, into: &mut [u8]| exposed(chain, || disk.read(at, into));
            return self.compare((Moment::Open, Compared::Whole(range)), read, run);
        }
        let Self { built, guest, payload, .. } = self;
        guest.fill(built, (1, request), payload);
        let Some(asked) = asked(guest, request, payload) else { return Ok(()) };
        let done = exposed(chain, || disk.request(&asked));
        note_answer(&done, run);
        self.is_lost |= !is_certain(request, damage, self.built.cluster_bytes());
        match done {
            Ok(()) => self.guest.note(request),
            Err(error @ EngineError::NotGiven(_)) => return Err(not_given(&error)),
            Err(EngineError::NoAnswer) => return Ok(()),
            Err(_) => {
                self.has_refused = true;
                self.guest.note_failed(request, RequestResult::Unknown);
            }
        }
        let Some(changed) = request.changed() else { return Ok(()) };
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let edges = Compared::Edges([changed.start, changed.end]);
        self.compare((Moment::Open, edges), read, run)
    }

    /// Reads the image that the engine has closed, with our walker, and then through the engine.
    fn read_again(
        &mut self,
        engine: &mut TestedEngine,
        written: &Chain,
        run: &mut CaseRun,
    ) -> OracleResult {
        let mut reader = std::mem::take(&mut self.reader);
        let read = reader.open(written).map_or(Ok(()), |mut disk| {
            self.compare((Moment::Closed, Compared::Disk), &mut |at, into| disk.read(at, into), run)
        });
        self.reader = reader;
        read?;
        match engine.open(written) {
            Err(error @ EngineError::NotGiven(_)) => Err(not_given(&error)),
            Err(error) => {
                observed::error(&error, run.observer);
                Ok(())
            }
            Ok(mut disk) => {
                let read = &mut |at, into: &mut [u8]| disk.read(at, into);
                self.compare((Moment::Reopened, Compared::Disk), read, run)
            }
        }
    }

    /// Compares bytes of the disk, if something is known about it.
    fn compare(
        &mut self,
        (moment, place): (Moment, Compared),
        read: &mut GuestRead,
        run: &mut CaseRun,
    ) -> OracleResult {
        let Self { built, guest, bytes: buffers, entropy, payload, has_refused, .. } = self;
        if self.is_lost {
            if let Compared::Whole(Range { start, end }) = place {
                // Any bytes and any error are right. A request to read has at most some KiB.
                payload.resize(end.saturating_sub(start) as usize, 0);
                let _ = read(GuestOffset::new(start), payload);
            }
            return Ok(());
        }
        let set_aside = &mut |found: Box<Violation>| match found.error_kind() {
            // The engine may refuse to read a damaged image.
            Some(_) => {
                *has_refused = true;
                Ok(())
            }
            None => run.verdicts.set_aside(found),
        };
        let mut reader = DiskReader { read, disk: &guest.over(built), moment, buffers };
        let compared = match place {
            Compared::Disk => reader.check(BeyondEdges::Drawn(entropy), set_aside),
            Compared::Edges(edges) => reader.check_edges(&edges, set_aside),
            Compared::Whole(range) => reader.check_range(range, set_aside),
        };
        compared.or_else(set_aside)
    }
}

/// The bytes of a disk that are compared.
enum Compared {
    /// The bytes around its edges, and more, which the input selects.
    Disk,
    /// Those around some offsets.
    Edges([u64; 2]),
    /// All bytes of a range.
    Whole(Range<u64>),
}

/// Reports whether a request uses no entry that `damage` has touched, so that the bytes of other ranges stay certain.
fn is_certain(request: &WriteRequest, damage: &Damage, cluster_bytes: u64) -> bool {
    let uses = |start: u64, end: u64| {
        damage.touched().iter().any(|range| range.start < end && start < range.end)
    };
    match *request {
        WriteRequest::Write { .. }
        | WriteRequest::WriteZeroes { .. }
        | WriteRequest::Discard { .. } => {
            let Range { start, end } = request.changed().unwrap_or_default();
            !uses(start / cluster_bytes * cluster_bytes, end.next_multiple_of(cluster_bytes))
        }
        WriteRequest::Resize { .. }
        | WriteRequest::TakeSnapshot { .. }
        | WriteRequest::ApplySnapshot { .. }
        | WriteRequest::DeleteSnapshot { .. } => damage.touched().is_empty(),
        _ => true,
    }
}

/// Reports that the harness could not give the image to the engine.
fn not_given(error: &EngineError) -> Box<Violation> {
    oracles::unexpected_error("open", "image", error)
}

/// Notes an error of the engine, which it may return for a damaged image.
fn note_answer(answer: &Answer, run: &CaseRun) {
    if let Err(error) = answer {
        observed::error(error, run.observer);
    }
}
