//! A snapshot is the disk as it was when it was taken: its size, its extents, the data at the edges of
//! its pieces, whatever has become of the active disk. One snapshot of each image is looked at. Does
//! not check what a snapshot holds beside the disk, nor windows and look-ups in it.

use crate::engines::{Engine, OpenDisk};
use crate::extent::{Extent, Window};
use crate::model::Model;
use crate::qcow2::header::Geometry;
use crate::storage::Storage;

use super::collector::Collector;
use super::metered::Metered;
use super::{Verdict, bounds, data, model, unexpected_error};

const ORACLE: &str = "snapshots";

/// Buffers, reused from snapshot to snapshot.
#[derive(Debug, Default)]
pub struct Buffers {
    expected: Vec<Extent>,
    actual: Vec<Extent>,
}

/// Opens the snapshot at `index` and holds it against the model, which becomes the snapshot's disk.
/// `table_bytes` are those of all snapshots' tables.
pub fn check<E: Engine, S: Storage>(
    engine: &mut E,
    storage: &Metered<'_, S>,
    index: usize,
    model: &mut Model,
    geometry: &Geometry,
    table_bytes: u64,
    buffers: &mut Buffers,
) -> Verdict {
    model.become_snapshot(index);
    model.extents(&mut buffers.expected);
    storage.restart(u64::MAX);
    let fuel = bounds::fuel(table_bytes);
    check_disk(engine, storage, index, model, geometry, fuel, buffers).map_err(|mut found| {
        found.oracle = ORACLE;
        found.detail = format!("snapshot {index} of the table\n{}", found.detail);
        found
    })
}

fn check_disk<E: Engine, S: Storage>(
    engine: &mut E,
    storage: &Metered<'_, S>,
    index: usize,
    model: &Model,
    geometry: &Geometry,
    fuel: u64,
    buffers: &mut Buffers,
) -> Verdict {
    let Buffers { expected, actual } = buffers;
    let reads = engine.capabilities().read;
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    let disk = &mut match engine.open_snapshot(storage, number) {
        Ok(disk) => disk,
        Err(error) => return Err(unexpected_error(ORACLE, "open", &error)),
    };
    model::check_size(model.virtual_size_bytes(), disk.virtual_size_bytes())?;
    actual.clear();
    if let Err(error) = disk.map(Window::ALL, &mut Collector::new(actual, fuel)) {
        return Err(unexpected_error(ORACLE, "walk", &error));
    }
    model::check(expected, actual)?;
    if reads { data::check(disk, model, geometry) } else { Ok(()) }
}
