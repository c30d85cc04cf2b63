//! Buffers of a walk.

use crate::disk::storage::PIECE_BYTES;

use super::qcow2::Inflater;
use super::vmdk::ZlibInflater;

/// The number of bytes of a table that an open reads at once. Its buffer is new at each open, so that it is smaller
/// than those of a walk.
pub(super) const OPEN_PIECE_BYTES: usize = 8 << 10;

/// The buffers of a walk, which can be reused from walk to walk.
#[derive(Debug, Default)]
pub struct WalkScratch {
    pub(super) layers: Vec<TablePieces>,
    pub(super) inflater: Inflater,
    pub(super) zlib: ZlibInflater,
}

/// Pieces of the tables of one layer, of one at the first level and one at the second, each of [`PIECE_BYTES`].
#[derive(Debug)]
pub(super) struct TablePieces {
    pub(super) first: Vec<u8>,
    pub(super) second: Vec<u8>,
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
        self.inflater.forget();
    }

    pub(super) fn for_layers(&mut self, count: usize) -> &mut [TablePieces] {
        let new = || TablePieces { first: vec![0; PIECE_BYTES], second: vec![0; PIECE_BYTES] };
        if self.layers.len() < count {
            self.layers.resize_with(count, new);
        }
        &mut self.layers
    }
}
