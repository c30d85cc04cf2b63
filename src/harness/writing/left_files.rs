//! Judges what an engine has left in closed files, and in those after a cut: the extents, a raw data file, the
//! snapshots, and the names and bits that a writer has to keep. Clusters that no request has changed stay where they
//! are, and the image stores what was written.
//!
//! The oracles `power_cut` and `killed` find faults in files that a cut of the power, or the end of the engine's
//! process, could have left. They open, have all that the guest has flushed, and need no repair except for leaks. Our
//! walker, the recount and the engine judge them. Does not check: bytes that a request has changed since the flush; if
//! the image has the dirty bit, its counts, its raw data file and the engine's answers; a write that the end of the
//! process tears.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{AUTOCLEAR_RAW_DATA_FILE, INCOMPATIBLE_DIRTY};
use crate::formats::qcow2::header::Header;
use crate::harness::Walker;
use crate::harness::cases::case::Verdicts;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{Engine, EngineError, ErrorKind};
use crate::harness::files::chain::{Chain, ChainFile};
use crate::harness::oracles::qcow2::{self, kept, refcounts};
use crate::harness::oracles::written::{self, BeyondEdges, DiskReader, Moment, WrittenBuffers};
use crate::harness::oracles::{self, OracleResult, SetAside, Violation};
use crate::images::content::entropy::Entropy;
use crate::programs::CutKind;

use super::WriterJudge;
use super::changed_disk::ChangedDisk;
use super::guest::Cut;
use super::state::{BuiltDisks, DiskState, GuestChange, whole_clusters};
use super::steps::FileSteps;

impl WriterJudge {
    /// Compares the extents that our walker has found in a closed file with those before the requests.
    pub(super) fn mapping(&mut self, set_aside: &mut SetAside) -> OracleResult {
        let Self { built, guest, extents, bytes, before, .. } = self;
        let state = guest.state();
        // Nothing is known about the extents of an image that the engine has created.
        if before.is_some() {
            let cluster_bytes = built.cluster_bytes();
            let touched = state.changes.iter();
            let touched = touched.map(|(range, _)| whole_clusters(&range, cluster_bytes));
            written::check_outside(built.below(state), touched, extents, bytes, set_aside)?;
        }
        state.changes.iter().try_for_each(|(range, change)| match change {
            GuestChange::Written(_) => {
                written::check_stored(&range, extents).or_else(&mut *set_aside)
            }
            // A writer may leave out zeros, and bytes that are there already.
            GuestChange::Zeroed
            | GuestChange::Former
            | GuestChange::Unstamped { .. }
            | GuestChange::Unknown
            | GuestChange::OneOf(_) => Ok(()),
        })
    }

    /// Recounts the file that the engine has left.
    pub(super) fn count(
        &mut self,
        chain: &Chain,
        are_dropped: bool,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        match are_dropped {
            true => self.count_without_bitmaps(chain, set_aside),
            false => refcounts::check(&mut self.recount, chain.image(), &[], set_aside),
        }
    }

    /// Recounts the file of an engine that has dropped the bitmaps. Nothing but a repair frees their clusters.
    fn count_without_bitmaps(&mut self, chain: &Chain, set_aside: &mut SetAside) -> OracleResult {
        let of_bitmaps = match self.guest.bitmaps.built() {
            Some(built) => refcounts::clusters_of_bitmaps(&mut self.recount, built)?,
            None => Vec::new(),
        };
        refcounts::check_with_leaks(&mut self.recount, chain.image(), &of_bitmaps, set_aside)
    }

    /// Judges the files after an engine had the image open for writing, without a request.
    pub(super) fn unchanged(&self, before: &Chain, after: &Chain) -> OracleResult {
        written::check_unchanged(before, after, behind_new_header(before, after))
    }

    /// Judges the data file of a closed image.
    pub(super) fn raw_data_file(
        &mut self,
        chain: &Chain,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let Some(RawDataFile { file, cluster_size }) = raw_data_file_of(chain) else {
            return Ok(());
        };
        let Self { built, guest, bytes, .. } = self;
        let size_bytes = guest.size_bytes();
        let most_bytes = cluster_size.saturating_bytes(cluster_size.clusters_for(size_bytes));
        // A cut may have lost a new size of the disk, but not the new length of the file.
        if !self.faults.has_crashed {
            qcow2::check_raw_length(file, size_bytes..=most_bytes).or_else(&mut *set_aside)?;
        }
        qcow2::check_written_raw(file, &guest.over(built), Moment::Closed, bytes, set_aside)
    }

    /// Judges the data file after a cut that has left a disk of `size_bytes`.
    fn raw_data_file_after_cut(
        &mut self,
        cut: &Cut,
        size_bytes: u64,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let Some(RawDataFile { file, .. }) = raw_data_file_of(&cut.files) else { return Ok(()) };
        let expected = cut.guest.flushed_over(&self.built, size_bytes);
        qcow2::check_written_raw(file, &expected, Moment::Cut, &mut self.bytes, set_aside)
    }

    /// Judges the snapshots of a closed file.
    pub(super) fn snapshots(
        &mut self,
        reader: &mut Walker,
        chain: &Chain,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let count = count_of(chain)?;
        let Self { built, guest, bytes, entropy, .. } = self;
        let active = guest.state();
        let mut snapshots =
            SnapshotReader { reader, chain, built, active, bytes, entropy, is_cut: false };
        match guest.snapshots.states().count() {
            expected if expected == count => snapshots.check(guest.snapshots.states(), set_aside),
            expected => written::wrong_snapshot_count(expected, count),
        }
    }

    /// Judges the snapshots of the file after a cut. Its table is one of those since the last flush.
    fn snapshots_after_cut(
        &mut self,
        reader: &mut Walker,
        cut: &Cut,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let count = count_of(&cut.files)?;
        let Self { built, bytes, entropy, .. } = self;
        let (chain, active) = (&cut.files, cut.guest.state());
        let mut snapshots =
            SnapshotReader { reader, chain, built, active, bytes, entropy, is_cut: true };
        // The latest table says most.
        let mut of_latest = None;
        for states in cut.guest.snapshots.after_cut() {
            let states: Vec<&DiskState> = states.collect();
            if states.len() != count {
                continue;
            }
            let mut found = Vec::new();
            snapshots.check(states.into_iter(), &mut |violation| {
                found.push(violation);
                Ok(())
            })?;
            if found.is_empty() {
                return Ok(());
            }
            of_latest.get_or_insert(found);
        }
        match of_latest {
            Some(found) => found.into_iter().try_for_each(set_aside),
            None => written::wrong_snapshot_count(cut.guest.snapshots.states().count(), count),
        }
    }

    /// Checks the bits in the header of a closed file, or of one after a cut.
    pub(super) fn kept_bits(&self, chain: &Chain, set_aside: &mut SetAside) -> OracleResult {
        kept::check_bits(self.before.as_ref().map(Chain::image), chain.image(), set_aside)
    }

    /// Compares the names in the header, and the snapshots from before, with those before the requests.
    pub(super) fn kept(&self, chain: &Chain, set_aside: &mut SetAside) -> OracleResult {
        let Some(before) = &self.before else { return Ok(()) };
        kept::check(before.image(), chain.image(), self.guest.snapshots.kept(), set_aside)
    }

    /// Compares the names in the header of a file after a cut with those before the requests, and so the snapshots from
    /// before, unless a request has changed their table since the last flush.
    fn kept_after_cut(&self, cut: &Cut, set_aside: &mut SetAside) -> OracleResult {
        let Some(before) = &self.before else { return Ok(()) };
        let snapshots = &cut.guest.snapshots;
        let kept = snapshots.is_settled().then(|| snapshots.kept()).into_iter().flatten();
        kept::check(before.image(), cut.files.image(), kept, set_aside)
    }

    /// Judges the cuts of a session, and forgets them. Returns false if there is a known finding.
    pub(super) fn judge_cuts(
        &mut self,
        engine: &mut TestedEngine,
        verdicts: &mut Verdicts,
    ) -> OracleResult<bool> {
        let mut all_hold = true;
        for cut in std::mem::take(&mut self.cuts) {
            let mut steps = FileSteps::new(verdicts, attribution(cut.kind));
            let judged = self.judge_cut(engine, &cut, &mut steps);
            all_hold &= !steps.has_finding();
            match (judged, steps.has_finding()) {
                (Err(found), _) => {
                    self.written = Some(cut.files);
                    return Err(found);
                }
                // A person wants to see the file of a known finding, too.
                (Ok(()), true) => drop(self.of_known_finding.get_or_insert(cut.files)),
                (Ok(()), false) => {}
            }
        }
        Ok(all_hold)
    }

    fn judge_cut(
        &mut self,
        engine: &mut TestedEngine,
        cut: &Cut,
        steps: &mut FileSteps,
    ) -> OracleResult {
        let mut reader = std::mem::take(&mut self.reader);
        let walked = self.walk_after_cut(&mut reader, cut, steps);
        let snapshots =
            steps.each(|set_aside| self.snapshots_after_cut(&mut reader, cut, set_aside));
        self.reader = reader;
        let size_bytes = walked?;
        snapshots?;
        steps.each(|set_aside| self.kept_after_cut(cut, set_aside))?;
        steps.each(|set_aside| self.kept_bits(&cut.files, set_aside))?;
        if is_dirty(&cut.files) {
            // With lazy refcounts, the next writer counts all clusters again. Many readers refuse the image until then.
            return Ok(());
        }
        steps.each(|set_aside| {
            refcounts::check_after_cut(&mut self.recount, cut.files.image(), set_aside)
        })?;
        // The bytes are not those of the guest, or our walker has not read the file.
        let Some(size_bytes) = size_bytes else { return Ok(()) };
        steps.each(|set_aside| self.raw_data_file_after_cut(cut, size_bytes, set_aside))?;
        let read = steps.each(|set_aside| {
            match self.read_after_cut(engine, cut, size_bytes, set_aside) {
                // The engine has no answer to reads, or the harness cannot give it the file.
                Err(found) if found.error_kind() == Some(ErrorKind::NoAnswer) => Ok(()),
                judged => judged,
            }
        });
        let refused_writes = self.meter.take_refused_writes();
        steps.judge(written::check_read_only("image opened again", refused_writes))?;
        read.map(|_| ())
    }

    /// Walks and reads the file with our own walker. Returns the size of the disk; `None` if a known finding
    /// prevents the reading, or says that the disk has other bytes.
    fn walk_after_cut(
        &mut self,
        reader: &mut Walker,
        cut: &Cut,
        steps: &mut FileSteps,
    ) -> OracleResult<Option<u64>> {
        let walked = self.walked(reader, &cut.files, |size_bytes| {
            match cut.guest.may_have_size(size_bytes) {
                true => Ok(()),
                false => oracles::extents::model::check_size(cut.guest.size_bytes(), size_bytes),
            }
        });
        let Some(mut disk) = steps.judge(walked)? else { return Ok(None) };
        let size_bytes = disk.virtual_size_bytes();
        let expected = cut.guest.flushed_over(&self.built, size_bytes);
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let beyond = BeyondEdges::Drawn(&mut self.entropy);
        let has_disk = steps.each(|set_aside| {
            let (moment, buffers) = (Moment::Cut, &mut self.bytes);
            DiskReader { read, disk: &expected, moment, buffers }.check(beyond, set_aside)
        })?;
        let has_survived = |range: &_| cut.guest.has_written(range, read);
        steps.each(|set_aside| {
            let (files, unsettled) = (&cut.files, cut.guest.unsettled());
            cut.guest.bitmaps.check_after_cut(files, unsettled, has_survived, set_aside)
        })?;
        Ok(has_disk.then_some(size_bytes))
    }

    /// Opens the image through the engine for reading only, and reads its disk of `size_bytes`.
    fn read_after_cut(
        &mut self,
        engine: &mut TestedEngine,
        cut: &Cut,
        size_bytes: u64,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let size = engine.facts().policy.size;
        let opened = engine.open(&cut.files);
        let mut disk =
            opened.map_err(|error| oracles::unexpected_error("open", "image", &error))?;
        let has_first_size = size_bytes == self.built.active().virtual_size_bytes();
        self.check_size(size, has_first_size, (size_bytes, disk.virtual_size_bytes()))?;
        let expected = cut.guest.flushed_over(&self.built, size_bytes);
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let (moment, buffers) = (Moment::CutReopened, &mut self.bytes);
        let mut reader = DiskReader { read, disk: &expected, moment, buffers };
        reader.check(BeyondEdges::Nothing, set_aside)?;
        disk.close().map_err(|error| oracles::unexpected_error("written", "close", &error))
    }
}

/// Returns the offset of the first byte that must be as before. That is the second cluster if the header is another one
/// without the bit that declares the data file raw, and otherwise means the same. A writer that does not know this
/// autoclear bit must clear it, and may do so when it opens the image (qcow2 specification, "autoclear_features"). With
/// the bit, it writes the whole header, and its own table of feature names.
fn behind_new_header(before: &Chain, after: &Chain) -> HostOffset {
    let headers =
        Header::read(before.image()).and_then(|it| Ok((it, Header::read(after.image())?)));
    let Ok((before, after)) = headers else { return HostOffset::ZERO };
    let expected = Header {
        autoclear: before.autoclear & !AUTOCLEAR_RAW_DATA_FILE,
        // The header may be longer, and the name may lie elsewhere. `kept` compares the names themselves.
        header_length_bytes: after.header_length_bytes,
        backing_file_offset: after.backing_file_offset,
        ..before
    };
    match before.autoclear & AUTOCLEAR_RAW_DATA_FILE != 0 && after == expected {
        true => HostOffset::new(after.geometry.cluster_size.bytes()),
        false => HostOffset::ZERO,
    }
}

/// The data file of an image that declares it raw.
struct RawDataFile<'c> {
    file: &'c ChainFile,
    cluster_size: ClusterSize,
}

/// Returns the data file of the image at the top, if the image declares it raw. A writer that does not know the feature
/// clears its bit.
fn raw_data_file_of(chain: &Chain) -> Option<RawDataFile<'_>> {
    let file = chain.data_file()?;
    let header = Header::read(chain.image()).ok()?;
    let is_raw = header.geometry.data_file && header.autoclear & AUTOCLEAR_RAW_DATA_FILE != 0;
    is_raw.then_some(RawDataFile { file, cluster_size: header.geometry.cluster_size })
}

/// Returns the number of snapshots that a file has.
fn count_of(chain: &Chain) -> OracleResult<usize> {
    let header = Header::read(chain.image());
    let header = header.map_err(|error| {
        written::in_snapshot(oracles::unexpected_error("open", "", &EngineError::from(error)))
    })?;
    // The header allows 65,536.
    Ok(header.snapshots as usize)
}

/// Compares the snapshots of a file.
struct SnapshotReader<'r> {
    reader: &'r mut Walker,
    chain: &'r Chain,
    built: &'r BuiltDisks,
    active: &'r DiskState,
    bytes: &'r mut WrittenBuffers,
    entropy: &'r mut Entropy,
    /// After a cut, bytes that were not flushed may be any.
    is_cut: bool,
}

impl SnapshotReader<'_> {
    /// Reads all snapshots, in the order of the table.
    fn check<'d>(
        &mut self,
        states: impl Iterator<Item = &'d DiskState>,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let set_aside = &mut |found| set_aside(written::in_snapshot(found));
        (0..).zip(states).try_for_each(|(index, state)| {
            let opened = self.check_one(index, state, set_aside);
            opened.or_else(&mut *set_aside)
        })
    }

    fn check_one(
        &mut self,
        index: u32,
        state: &DiskState,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        let Self { reader, chain, built, active, bytes, entropy, is_cut } = self;
        let opened = reader.open_snapshot(chain, index);
        let mut disk = opened.map_err(|error| oracles::unexpected_error("open", "", &error))?;
        oracles::extents::model::check_size(state.size_bytes, disk.virtual_size_bytes())?;
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let beyond = BeyondEdges::Drawn(entropy);
        let disk = ChangedDisk::new(state, built).beside(active);
        let (disk, moment) = match is_cut {
            true => (disk.after_cut(), Moment::Cut),
            false => (disk, Moment::Closed),
        };
        DiskReader { read, disk: &disk, moment, buffers: bytes }.check(beyond, set_aside)
    }
}

/// Returns how findings in the file of a cut are attributed.
fn attribution(kind: CutKind) -> fn(Box<Violation>) -> Box<Violation> {
    match kind {
        CutKind::Power => |found| written::in_file(found).attributed_to("power_cut"),
        CutKind::Process => |found| written::in_file(found).attributed_to("killed"),
    }
}

/// Reports whether the image at the top of `files` is marked as dirty.
pub(super) fn is_dirty(files: &Chain) -> bool {
    let header = Header::read(files.image());
    header.is_ok_and(|header| header.incompatible & INCOMPATIBLE_DIRTY != 0)
}
