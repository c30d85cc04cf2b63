//! The requests of a program to an engine that writes.

use crate::programs::operand::Few;
use crate::programs::request::WriteRequest;

/// A snapshot of the image during the writing.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritingSnapshot {
    /// Its number in requests.
    pub(super) number: u32,
    /// The size of its disk in bytes.
    pub(super) size_bytes: u64,
    /// Its index in the image that the program has built, if it is there.
    pub(super) built_index: Option<usize>,
}

/// A bitmap of the image during the writing.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritingBitmap {
    /// Its number in requests.
    pub(super) number: u32,
    /// log2 of the guest bytes per bit.
    pub(super) granularity_bits: u8,
    /// The bitmap was not saved correctly. QEMU only removes it, and does not resize the disk before.
    pub(super) in_use: bool,
}

/// Returns the snapshot or the bitmap that `index` selects, modulo their number.
pub(super) fn selected<T: Copy>(all: &[T], index: Few<0, 15>) -> Option<T> {
    all.get(usize::from(index.get()) % all.len().max(1)).copied()
}

/// The requests of a program.
#[derive(Debug, Default)]
pub(super) struct Writing {
    pub(super) requests: Vec<WriteRequest>,
    /// The size of the disk after all requests; `None` before the writing.
    pub(super) size_bytes: Option<u64>,
    /// The number of bytes that requests may still change.
    pub(super) changeable_bytes: u64,
    /// The number of these bytes that requests may still write.
    pub(super) writable_bytes: u64,
    /// The snapshots after all requests.
    pub(super) snapshots: Vec<WritingSnapshot>,
    /// The number of the next snapshot.
    pub(super) next_snapshot: u32,
    /// The bitmaps after all requests.
    pub(super) bitmaps: Vec<WritingBitmap>,
    /// The number of the next bitmap.
    pub(super) next_bitmap: u32,
    /// The engine creates the image: the program has built nothing before the writing.
    pub(super) is_created: bool,
}

impl Writing {
    /// Begins a program.
    pub(super) fn begin(&mut self, changeable_bytes: u64) {
        self.requests.clear();
        (self.size_bytes, self.changeable_bytes) = (None, changeable_bytes);
        self.writable_bytes = changeable_bytes / 16;
        self.snapshots.clear();
        self.bitmaps.clear();
        self.next_bitmap = 0;
        (self.next_snapshot, self.is_created) = (0, false);
    }
}
