//! The cost of a walk is bounded by its tables: bytes read, steps and extents. Does not check the memory of a walk: a
//! test with a counting allocator does (`tests/memory.rs`).
//!
//! # Arithmetic
//! A bound that saturates allows everything. That is right, because no walk reaches 2^64 bytes or steps.

use crate::disk::extent::Extent;
use crate::disk::limits::{FUEL_BASE, FUEL_PER_UNIT};

use super::{OracleResult, violation};

const ORACLE: &str = "bounds";

/// The number of bytes that a walk may read of each layer, with any tables.
const BASE_BYTES: u64 = 64 << 10;
/// The number of bytes that a walk may read of a layer for each extent that a layer above leaves to it: an entry of
/// each table, with its neighbours.
const ASKED_BYTES: u64 = 128;

/// Returns the number of steps that a walk may take with `table_bytes` of L1 and L2 tables.
pub fn fuel(table_bytes: u64) -> u64 {
    FUEL_BASE.saturating_add(table_bytes.saturating_mul(FUEL_PER_UNIT))
}

/// Bytes of L1 and L2 tables in a chain, without holes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableBytes {
    /// The tables of the active disk.
    pub active: u64,
    /// The tables of the disk if any snapshot of the image at the top is opened.
    pub of_a_snapshot: u64,
}

/// The cost of one walk of a whole disk.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The number of layers.
    pub layers: usize,
    /// The bytes of L1 and L2 tables, without holes.
    pub table_bytes: u64,
    /// The bytes that the engine read.
    pub read_bytes: u64,
    /// The walk ran out of fuel.
    pub exhausted: bool,
}

/// Checks one walk of a whole disk.
///
/// `cell_bytes` is the smallest unit of mapping in any layer.
pub fn check(cost: &Cost, extents: &[Extent], size_bytes: u64, cell_bytes: u64) -> OracleResult {
    check_steps(cost.exhausted, fuel(cost.table_bytes))?;
    let (layers, asked) = (cost.layers as u64, extents.len() as u64);
    let allowed = BASE_BYTES
        .saturating_mul(layers)
        .saturating_add(cost.table_bytes.saturating_mul(2))
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
