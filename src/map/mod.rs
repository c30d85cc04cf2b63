//! The walker: `map_extents` and its companions, for use by anyone who wants to know what a qcow2
//! image maps where.
//!
//! It reads any [`Storage`], in bounded memory: table by table, in pieces, skipping holes. Nothing
//! that an image holds makes it panic, or work in proportion to more than the tables that its L1 entries
//! name (one that is named twice is walked twice). Where qemu-img and the specification leave room, it
//! answers as `qemu-img map` does.
//!
//! [`Storage`]: crate::storage::Storage

mod disk;
mod inflate;
mod latest;
mod lookup;
mod read;
mod walk;

pub use crate::qcow2::error::MapError;
pub use disk::Disk;
pub use lookup::lookup;
pub use read::read;
pub use walk::map_extents;

use crate::storage::PIECE_BYTES;

use inflate::Inflater;

/// Buffers of a walk, to be reused from walk to walk.
#[derive(Debug, Default)]
pub struct Scratch {
    layers: Vec<Tables>,
    inflater: Inflater,
}

/// Pieces of the tables of one layer, each of [`PIECE_BYTES`].
#[derive(Debug)]
struct Tables {
    l1: Vec<u8>,
    l2: Vec<u8>,
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

    fn for_layers(&mut self, count: usize) -> &mut [Tables] {
        let new = || Tables { l1: vec![0; PIECE_BYTES], l2: vec![0; PIECE_BYTES] };
        if self.layers.len() < count {
            self.layers.resize_with(count, new);
        }
        &mut self.layers
    }
}
