//! The cost of a walk is bounded by its tables: bytes read, steps and extents. Does not check the memory of a walk: a
//! test with a counting allocator does (`tests/memory.rs`).

use crate::base::limits::{FUEL_BASE, FUEL_PER_UNIT};
use crate::disk::extent::Extent;
use crate::disk::image_format::ImageFormat;
use crate::images::list::drawer;

use super::{OracleResult, violation};

const ORACLE: &str = "bounds";

/// Returns the number of bytes that a walk may read of a layer in this format, with this many bytes of tables in
/// `files` files beside it: each byte of a table twice, and some bytes of other structures, as many as those have.
pub fn layer_bytes(format: ImageFormat, table_bytes: u64, files: usize) -> u64 {
    let structures = drawer(format).structure_bytes(files);
    table_bytes.saturating_mul(2).saturating_add(structures)
}

/// The number of bytes that a walk may read of a layer for each extent that a layer above leaves to it: an entry of
/// each table, with its neighbours.
const ASKED_BYTES: u64 = 128;

/// Returns the number of steps that a walk may take with `table_bytes` of L1 and L2 tables.
pub fn fuel(table_bytes: u64) -> u64 {
    FUEL_BASE.saturating_add(table_bytes.saturating_mul(FUEL_PER_UNIT))
}

/// Bytes of tables in a chain, without holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableBytes {
    /// The tables of the active disk.
    pub active: u64,
    /// The tables of the disk if any snapshot of the image at the top is opened.
    pub of_a_snapshot: u64,
    /// The number of bytes that a walk of the active disk may read of all layers, each by itself ([`layer_bytes`]).
    pub walk: u64,
}

/// The cost of one walk of a whole disk.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The number of layers.
    pub layers: usize,
    /// The bytes of tables, without holes, and the bytes that they allow a walk to read.
    pub tables: TableBytes,
    /// The bytes that the engine read.
    pub read_bytes: u64,
    /// The walk ran out of fuel.
    pub exhausted: bool,
}

/// Checks one walk of a whole disk.
///
/// `cell_bytes` is the smallest unit of mapping in any layer.
pub fn check(cost: &Cost, extents: &[Extent], size_bytes: u64, cell_bytes: u64) -> OracleResult {
    check_steps(cost.exhausted, fuel(cost.tables.active))?;
    let (layers, asked) = (cost.layers as u64, extents.len() as u64);
    let allowed = cost
        .tables
        .walk
        .saturating_add(asked.saturating_mul(ASKED_BYTES).saturating_mul(layers.saturating_sub(1)));
    if cost.read_bytes > allowed {
        return violation(ORACLE, "bytes read", ("within bounds", "more"), || {
            format!("{} bytes were read, {allowed} allowed", cost.read_bytes)
        });
    }
    // The end of a layer below can cut a cell in two, and so can the end of a raw file.
    let cells = size_bytes.div_ceil(cell_bytes).saturating_add(layers.saturating_sub(1) * 2);
    if extents.len() as u64 > cells {
        return violation(ORACLE, "extents", ("within bounds", "more"), || {
            format!("{} extents of {cells} cells", extents.len())
        });
    }
    Ok(())
}

/// Checks that a walk did not run out of its `fuel`. A walk that does counts as endless.
pub fn check_steps(exhausted: bool, fuel: u64) -> OracleResult {
    if !exhausted {
        return Ok(());
    }
    violation(ORACLE, "steps", ("an end", "out of fuel"), || format!("{fuel} steps were made"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_a_bound_for_the_bytes_of_a_walk() {
        let tables = 1000;
        let alone = ImageFormat::ALL.map(|format| (format, 0));
        for (format, files) in alone.into_iter().chain([(ImageFormat::Vmdk, 3)]) {
            let most = 2 * tables + drawer(format).structure_bytes(files);
            let walk = layer_bytes(format, tables, files);
            let tables = TableBytes { active: tables, walk, ..TableBytes::default() };
            let judged = |read_bytes| {
                let cost = Cost { layers: 1, tables, read_bytes, exhausted: false };
                check(&cost, &[], 1 << 20, 512).is_ok()
            };
            assert!(judged(most) && !judged(most + 1), "{format:?}");
        }
    }
}
