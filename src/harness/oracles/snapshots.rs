//! A snapshot is the disk as it was when the program took the snapshot: its size, its extents, the data at the edges of
//! its pieces, and the inside of the data as far as `inside` checks it. One snapshot of each image is opened. Does not
//! check more than one window and two look-ups in it.

use crate::disk::extent::{Extent, Window};
use crate::harness::chain::Chain;
use crate::harness::engine::{Engine, OpenDisk};
use crate::harness::idle::{QuestionKind, Unanswered};
use crate::harness::model::Model;
use crate::images::entropy::Entropy;

use super::collector::Collector;
use super::data::DataBuffers;
use super::data::inside::{self, Share};
use super::{Oracle, OracleResult, bounds, data, lookup, model, unexpected_error, window};

const ORACLE: Oracle = Oracle::drawn("snapshots");

/// The buffers, reused from snapshot to snapshot.
#[derive(Debug, Default)]
pub struct SnapshotBuffers {
    expected: Vec<Extent>,
    actual: Vec<Extent>,
    other: Vec<Extent>,
    bytes: DataBuffers,
    /// Selects the bytes that are compared.
    pub entropy: Entropy,
}

/// Opens the snapshot at `index` and compares it with the model, which becomes the snapshot's disk. `table_bytes`
/// counts the tables of all snapshots and of the layers below.
pub fn check<E: Engine>(
    engine: &mut E,
    chain: &Chain,
    index: usize,
    model: &mut Model,
    table_bytes: u64,
    unanswered: Unanswered,
    buffers: &mut SnapshotBuffers,
) -> OracleResult {
    model.become_snapshot(index);
    model.extents(&mut buffers.expected);
    let fuel = bounds::fuel(table_bytes);
    check_disk(engine, chain, index, model, fuel, unanswered, buffers).map_err(|found| {
        let mut found = found.attributed_to(ORACLE);
        found.detail = format!("snapshot {index} of the table\n{}", found.detail);
        found
    })
}

fn check_disk<E: Engine>(
    engine: &mut E,
    chain: &Chain,
    index: usize,
    model: &Model,
    fuel: u64,
    unanswered: Unanswered,
    buffers: &mut SnapshotBuffers,
) -> OracleResult {
    let SnapshotBuffers { expected, actual, other, bytes, entropy } = buffers;
    // A table has 65,536 snapshots at most. A number past 32 bits is that of no snapshot, which is a violation below.
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let disk = &mut match engine.open_snapshot(chain, number) {
        Ok(disk) => disk,
        Err(error) => return Err(unexpected_error(ORACLE, "open", &error)),
    };
    model::check_size(model.virtual_size_bytes(), disk.virtual_size_bytes())?;
    let maps = !unanswered.has(QuestionKind::Map);
    if maps {
        if let Err(error) = disk.map(Window::ALL, &mut Collector::new(actual, fuel)) {
            return Err(unexpected_error(ORACLE, "walk", &error));
        }
        model::check(expected, actual)?;
    } else {
        actual.clone_from(expected);
    }
    // One extent is checked more closely. The index in the table chooses it.
    let Some(extent) = actual.get(index % actual.len().max(1)).copied() else { return Ok(()) };
    if !unanswered.has(QuestionKind::Status) {
        lookup::check(disk, actual, |one| *one == extent)?;
    }
    if maps {
        // Inside the extent.
        let start = extent.start.saturating_add(extent.length_bytes / 2);
        let some = Window { start, length_bytes: extent.length_bytes };
        window::check(disk, some, actual, fuel, other)?;
    }
    if unanswered.has(QuestionKind::Read) {
        return Ok(());
    }
    data::check(&mut |guest, into| disk.read(guest, into), model, |_| true)?;
    let share = if maps { Share::Drawn } else { Share::All };
    inside::check(disk, model, share, entropy, bytes)
}
