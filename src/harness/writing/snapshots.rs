//! Reads with our own walker the snapshots of a file that an engine has left, and compares them with those that the
//! requests have left.

use crate::formats::qcow2::header::Header;
use crate::harness::Walker;
use crate::harness::engine::{Engine, EngineError};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::written::{self, BeyondEdges, Moment, WrittenBuffers};
use crate::harness::oracles::{self, OracleResult, SetAside, Violation};
use crate::images::entropy::Entropy;

use super::cut::Cut;
use super::guest::{ChangedDisk, FlushedDisk};
use super::judge::WriterJudge;
use super::state::{BuiltDisks, DiskState};

impl WriterJudge {
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
        oracles::model::check_size(state.size_bytes, disk.virtual_size_bytes())?;
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
