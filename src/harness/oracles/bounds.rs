//! The work of an engine is bounded.
//!
//! `bounds`: the cost of a walk is bounded by its tables: bytes read, steps and extents. The collector counts the
//! steps, and ends the walk. Does not check the memory of a walk: `memory` does, and a test with a counting allocator
//!
//! `memory`: opening, walking and reading allocate no more bytes at a time than the policy of the engine allows. The
//! process counts them if [`PeakAlloc`] is its global allocator; otherwise, this oracle is idle. The buffers of the
//! harness, which are small and reused, are included. Does not check memory that no allocator of Rust counts.

use std::ops::ControlFlow;

use peak_alloc::PeakAlloc;

use crate::base::limits::{FUEL_BASE, FUEL_PER_UNIT};
use crate::disk::extent::{Extent, Visitor};
use crate::disk::image_format::ImageFormat;
use crate::harness::engine::claims::MemoryPolicy;
use crate::images::format::list::drawer;

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

const MEMORY: &str = "memory";
const MIB_BYTES: u64 = 1 << 20;

/// The memory of this process when an engine begins to work.
#[derive(Clone, Copy, Debug)]
pub struct MemoryMeter {
    before: usize,
}

impl MemoryMeter {
    /// Begins to measure.
    pub fn begin() -> Self {
        PeakAlloc.reset_peak_usage();
        Self { before: PeakAlloc.current_usage() }
    }

    /// Checks the highest number of bytes that were allocated at a time since the beginning. The harness itself keeps
    /// up to `kept_bytes` of them, which the engine has written to its files.
    pub fn check(self, policy: MemoryPolicy, kept_bytes: u64) -> OracleResult {
        let MemoryPolicy::AtMost(allowed) = policy else { return Ok(()) };
        let allowed = allowed.saturating_add(kept_bytes);
        let allocated = PeakAlloc.peak_usage().saturating_sub(self.before) as u64;
        if allocated <= allowed {
            return Ok(());
        }
        violation(MEMORY, "peak", ("within bounds", "more"), || {
            // Whole units: two runs of one input differ by some bytes, and must report the same.
            let [allocated, allowed] = [allocated, allowed].map(|bytes| bytes.div_ceil(MIB_BYTES));
            format!("{allocated} MiB were allocated at a time, {allowed} MiB allowed")
        })
    }
}

/// The bound on the steps of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fuel {
    pub(super) steps: u64,
    /// A walk that takes more steps is a violation. If false, the oracle stops it and goes on.
    pub(super) enough: bool,
}

/// Collects the extents of one walk.
#[derive(Debug)]
pub struct Collector<'e> {
    extents: &'e mut Vec<Extent>,
    /// The number of extents after which the collector stops the walk.
    stop_after: usize,
    fuel: u64,
}

impl<'e> Collector<'e> {
    /// Creates a collector that empties `extents`, collects into it, and stops the walk after `fuel` steps.
    pub fn new(extents: &'e mut Vec<Extent>, fuel: u64) -> Self {
        extents.clear();
        Self { extents, stop_after: usize::MAX, fuel }
    }

    /// Stops the walk after `extents` extents, at least 1.
    pub fn stopping_after(self, extents: usize) -> Self {
        Self { stop_after: extents, ..self }
    }

    /// Reports whether the collector stopped the walk because it took too many steps.
    pub fn exhausted(&self) -> bool {
        self.fuel == 0
    }

    /// Reports whether the collector has asked the walk to stop.
    pub fn is_stopped(&self) -> bool {
        self.exhausted() || self.extents.len() >= self.stop_after
    }

    #[inline]
    fn burn(&mut self) -> ControlFlow<()> {
        // Fuel that has run out stays so: an engine may go on calling.
        self.fuel = self.fuel.saturating_sub(1);
        if self.fuel == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Visitor for Collector<'_> {
    #[inline]
    fn extent(&mut self, extent: Extent) -> ControlFlow<()> {
        self.extents.push(extent);
        if self.extents.len() >= self.stop_after {
            return ControlFlow::Break(());
        }
        self.burn()
    }

    #[inline]
    fn step(&mut self) -> ControlFlow<()> {
        self.burn()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_has_a_bound_for_the_bytes_of_a_walk() {
        let tables = 1000;
        let alone = ImageFormat::ALL.map(|format| (format, 0));
        for (format, files) in
            alone.into_iter().chain(ImageFormat::with_extents().map(|it| (it, 3)))
        {
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
