//! A walk costs what its tables cost: bytes read, steps and extents are bounded. Does not check the
//! memory of a walk: a test with a counting allocator does (`tests/memory.rs`).
//!
//! # Arithmetic
//! A bound that saturates allows everything. That is right, because no walk reaches 2^64 bytes or steps.

use crate::disk::extent::Extent;
use crate::disk::limits::{FUEL_BASE, FUEL_PER_UNIT};

use super::{Verdict, violation};

const ORACLE: &str = "bounds";

/// What a walk may read of any layer, whatever the tables.
const BASE_BYTES: u64 = 64 << 10;
/// What a walk may read of a layer for each extent in a layer above that leaves its bytes to it: an
/// entry of each table, with what lies beside it.
const ASKED_BYTES: u64 = 128;

/// The steps that a walk may make when `table_bytes` of L1 and L2 tables are there.
pub fn fuel(table_bytes: u64) -> u64 {
    FUEL_BASE.saturating_add(table_bytes.saturating_mul(FUEL_PER_UNIT))
}

/// Bytes of L1 and L2 tables in a chain, holes not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableBytes {
    /// The tables of the active disk.
    pub active: u64,
    /// The tables of the disk if the image at the top is any of its snapshots.
    pub of_a_snapshot: u64,
}

/// What one walk of a whole disk did.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// How many layers there are.
    pub layers: usize,
    /// Bytes of L1 and L2 tables that are there, holes not counted.
    pub table_bytes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Whether the fuel ran out.
    pub exhausted: bool,
}

/// Checks one walk of a whole disk.
///
/// `cell_bytes` is the smallest unit of mapping in any layer.
pub fn check(cost: &Cost, extents: &[Extent], size_bytes: u64, cell_bytes: u64) -> Verdict {
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
    // A cell may be cut where a layer below ends, and where the bytes of a raw file do.
    let cells = size_bytes.div_ceil(cell_bytes).saturating_add(layers.saturating_sub(1) * 2);
    if extents.len() as u64 > cells {
        return violation(ORACLE, "extents", ("within bounds", "more"), || {
            format!("{} extents of {cells} cells", extents.len())
        });
    }
    Ok(())
}

/// A walk that ran out of its `fuel` hangs.
pub fn check_steps(exhausted: bool, fuel: u64) -> Verdict {
    if !exhausted {
        return Ok(());
    }
    violation(ORACLE, "steps", ("an end", "out of fuel"), || format!("{fuel} steps were made"))
}
