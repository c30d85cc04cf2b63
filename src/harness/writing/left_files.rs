//! Judges what an engine has left in closed files, and in those after a cut: the extents, a raw data file, the
//! snapshots, and the names and bits that a writer has to keep. Clusters that no request has changed stay where they
//! are, and the image stores what was written.

use std::ops::Range;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::AUTOCLEAR_RAW_DATA_FILE;
use crate::formats::qcow2::header::Header;
use crate::harness::Walker;
use crate::harness::engine::{Engine, EngineError};
use crate::harness::files::chain::{Chain, ChainFile};
use crate::harness::oracles::qcow2::{self, kept};
use crate::harness::oracles::written::{self, BeyondEdges, Moment, WrittenBuffers};
use crate::harness::oracles::{self, OracleResult, SetAside, Violation};
use crate::images::entropy::Entropy;

use super::guest::{ChangedDisk, Cut, FlushedDisk};
use super::judge::WriterJudge;
use super::state::{BuiltDisks, DiskState, GuestChange};

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
            | GuestChange::Unknown => Ok(()),
        })
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
        qcow2::check_raw_length(file, size_bytes..=most_bytes).or_else(&mut *set_aside)?;
        qcow2::check_written_raw(file, &guest.over(built), Moment::Closed, bytes, set_aside)
    }

    /// Judges the data file after a cut that has left a disk of `size_bytes`.
    pub(super) fn raw_data_file_after_cut(
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
    pub(super) fn snapshots_after_cut(
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
    pub(super) fn kept_after_cut(&self, cut: &Cut, set_aside: &mut SetAside) -> OracleResult {
        let Some(before) = &self.before else { return Ok(()) };
        let snapshots = &cut.guest.snapshots;
        let kept = snapshots.is_settled().then(|| snapshots.kept()).into_iter().flatten();
        kept::check(before.image(), cut.files.image(), kept, set_aside)
    }
}

/// Returns the clusters that have bytes of a range.
fn whole_clusters(range: &Range<u64>, cluster_bytes: u64) -> Range<u64> {
    let end = range.end.div_ceil(cluster_bytes).saturating_mul(cluster_bytes);
    range.start / cluster_bytes * cluster_bytes..end
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
fn count_of(chain: &Chain) -> Result<usize, Box<Violation>> {
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
    /// The active disk.
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
        match is_cut {
            true => {
                let disk = FlushedDisk::new(disk, built);
                written::check(read, &disk, Moment::Cut, beyond, bytes, set_aside)
            }
            false => written::check(read, &disk, Moment::Closed, beyond, bytes, set_aside),
        }
    }
}
