//! Buffers of a walk.

use crate::disk::storage::PIECE_BYTES;

use super::inflate::Inflater;

/// Buffers of a walk, to be reused from walk to walk.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) layers: Vec<Tables>,
    pub(super) inflater: Inflater,
}

/// Pieces of the tables of one layer, each of [`PIECE_BYTES`].
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) l1: Vec<u8>,
    pub(super) l2: Vec<u8>,
}

impl Scratch {
    /// Empty buffers; they grow with the layers of the disks that are walked, and with the compressed
    /// clusters that are read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the compressed clusters that were read last. No answer depends on them: it only takes time to inflate
    /// them again. A fuzzer calls this between inputs, so that the coverage of a run is that of its input.
    pub fn forget(&mut self) {
        self.inflater.forget();
    }

    pub(super) fn for_layers(&mut self, count: usize) -> &mut [Tables] {
        let new = || Tables { l1: vec![0; PIECE_BYTES], l2: vec![0; PIECE_BYTES] };
        if self.layers.len() < count {
            self.layers.resize_with(count, new);
        }
        &mut self.layers
    }
}
