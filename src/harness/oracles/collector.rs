//! The visitor of the oracles, and the bound on a walk. It keeps extents, and counts steps against the fuel.

use std::ops::ControlFlow;

use crate::disk::extent::{Extent, Visitor};

/// The bound on the steps of a walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fuel {
    /// The number of steps.
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

    /// Returns the number of steps that the walk may still take.
    pub fn fuel_left(&self) -> u64 {
        self.fuel
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
