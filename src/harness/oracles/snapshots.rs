//! A snapshot is the disk as it was when the program took the snapshot: its size, its extents, the data at the edges of
//! its pieces, and the inside of the data as far as `inside` checks it. One snapshot of each image is opened. Does not
//! check more than one window and two look-ups in it.

use crate::disk::extent::{Extent, Window};
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::engine::{EngineError, EngineQuestion};
use crate::harness::files::chain::Chain;
use crate::harness::model::Model;
use crate::images::content::entropy::Entropy;

use super::bounds::{self, Collector};
use super::data::inside::{self, Share};
use super::data::{self, DataBuffers};
use super::extents::window::WholeWalk;
use super::extents::{lookup, model};
use super::{Oracle, OracleResult, SetAside, Violation, unexpected_error};

const ORACLE: Oracle = Oracle::drawn("snapshots");

/// The buffers, reused from snapshot to snapshot.
#[derive(Debug, Default)]
pub struct SnapshotBuffers {
    expected: Vec<Extent>,
    actual: Vec<Extent>,
    other: Vec<Extent>,
    clipped: [Vec<Extent>; 2],
    bytes: DataBuffers,
    /// Selects the bytes that are compared.
    pub entropy: Entropy,
}

/// Opens the snapshot at `index` and compares it with the model, which becomes the snapshot's disk. `table_bytes`
/// counts the tables of all snapshots and of the layers below.
pub fn check(
    engine: &mut TestedEngine,
    chain: &Chain,
    index: usize,
    model: &mut Model,
    table_bytes: u64,
    buffers: &mut SnapshotBuffers,
    set_aside: &mut SetAside,
) -> OracleResult {
    model.become_snapshot(index);
    model.extents(&mut buffers.expected);
    let fuel = bounds::fuel(table_bytes);
    let set_aside = &mut |found: Box<Violation>| {
        let mut found = found.attributed_to(ORACLE);
        found.detail = format!("snapshot {index} of the table\n{}", found.detail);
        set_aside(found)
    };
    // A table has 65,536 snapshots at most. A number past 32 bits is that of no snapshot, which is a violation below.
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let mut disk = match engine.open_snapshot(chain, number) {
        Ok(disk) => disk,
        Err(EngineError::NoAnswer) => return Ok(()),
        Err(error) => return set_aside(unexpected_error(ORACLE, "open", &error)),
    };
    check_disk(&mut disk, index, model, fuel, buffers, set_aside)
}

fn check_disk(
    disk: &mut TestedDisk,
    index: usize,
    model: &Model,
    fuel: u64,
    buffers: &mut SnapshotBuffers,
    set_aside: &mut SetAside,
) -> OracleResult {
    let SnapshotBuffers { expected, actual, other, clipped, bytes, entropy } = buffers;
    let sized = model::check_size(model.virtual_size_bytes(), disk.virtual_size_bytes());
    sized.or_else(&mut *set_aside)?;
    let walked = match disk.map(Window::ALL, &mut Collector::new(actual, fuel)) {
        Ok(()) => {
            model::check_all(expected, actual, clipped, set_aside)?;
            true
        }
        Err(EngineError::NoAnswer) => false,
        Err(error) => {
            set_aside(unexpected_error(ORACLE, "walk", &error))?;
            false
        }
    };
    if !walked {
        actual.clone_from(expected);
    }
    // One extent is checked more closely.
    if let Some(extent) = chosen_extent(actual, index) {
        lookup::check(disk, actual, |one| *one == extent, set_aside)?;
        if walked {
            let some = inside_of(&extent);
            let whole = WholeWalk::complete(actual);
            whole.check(disk, some, fuel, other).or_else(&mut *set_aside)?;
        }
    }
    data::edges::check(&mut |at, into| disk.read(at, into), model, |_| true, set_aside)?;
    let share = if walked { Share::Drawn } else { Share::All };
    inside::check(disk, model, share, entropy, bytes, set_aside)
}

/// Returns the extent that is checked more closely: the index of the snapshot in the table chooses it.
fn chosen_extent(extents: &[Extent], index: usize) -> Option<Extent> {
    extents.get(index % extents.len().max(1)).copied()
}

fn inside_of(extent: &Extent) -> Window {
    let start = extent.start + extent.length_bytes / 2;
    Window { start, length_bytes: extent.length_bytes }
}

/// Adds the questions of [`check`] to `plan`, as an engine that gives the right answers gets them.
pub fn plan(index: usize, model: &mut Model, entropy: &Entropy, plan: &mut Vec<EngineQuestion>) {
    model.become_snapshot(index);
    let mut expected = Vec::new();
    model.extents(&mut expected);
    plan.push(EngineQuestion::OpenSnapshot(u32::try_from(index).unwrap_or(u32::MAX)));
    plan.push(EngineQuestion::Map(Window::ALL));
    if let Some(extent) = chosen_extent(&expected, index) {
        plan.extend(
            lookup::edges(&expected, |one| *one == extent)
                .map(|(at, _)| EngineQuestion::Status(at)),
        );
        plan.push(EngineQuestion::Map(inside_of(&extent)));
    }
    data::edges::plan(model, |_| true, plan);
    data::inside::plan(model, Share::Drawn, &mut entropy.clone(), plan);
}
