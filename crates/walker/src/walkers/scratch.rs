//! Buffers of a walk.

use crate::formats::{Buffers, TablePieces};

/// The buffers of a walk, which can be reused from walk to walk.
#[derive(Debug, Default)]
pub struct WalkScratch {
    layers: Vec<TablePieces>,
    pub(super) buffers: Buffers,
}

impl WalkScratch {
    /// Creates empty buffers. They grow with the layers of the disks that are walked, and with the compressed clusters
    /// that are read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the last compressed clusters that were read. No answer depends on them; inflating them again only takes
    /// time. A fuzzer calls this between inputs, so that the coverage of a run depends on its input alone.
    pub fn forget(&mut self) {
        self.buffers.forget();
    }

    pub(super) fn for_layers(&mut self, count: usize) -> &mut [TablePieces] {
        if self.layers.len() < count {
            self.layers.resize_with(count, TablePieces::default);
        }
        &mut self.layers
    }
}
