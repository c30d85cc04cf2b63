//! The state of the virtual machine besides its builders: the questions of a program, the bytes that wait for an
//! operation, and the requests to an engine that writes.

use std::ops::Range;

use crate::disk::extent::Window;
use crate::disk::offsets::GuestOffset;
use crate::programs::operand::{BytesKind, Few, Length};
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::request::WriteRequest;

/// A question of the program about the image that it built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The extents of a window.
    Walk(Window),
    /// The mapping of a byte.
    Lookup(GuestOffset),
    /// The data of a range.
    Read {
        /// The first byte of the range.
        start: GuestOffset,
        /// The length of the range, which may reach past the end of the disk.
        length_bytes: u16,
    },
}

/// The bytes of a program that wait for an operation with a use for them: the last ones of each kind.
#[derive(Debug, Default)]
pub(super) struct GivenBytes {
    bytes: Vec<u8>,
    waiting: [Option<Range<usize>>; BytesKind::ALL.len()],
    /// The kind of the bytes to which records of data are added, and the number of bytes that are missing.
    open: Option<(BytesKind, usize)>,
}

impl GivenBytes {
    /// Begins a program.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.waiting.fill(None);
        self.open = None;
    }

    /// Returns the bytes of a kind that wait for their use.
    pub(super) fn waiting(&self, kind: BytesKind) -> Option<&[u8]> {
        let range = self.waiting.get(kind as usize)?.clone()?;
        self.bytes.get(range)
    }

    /// Begins the bytes of an operation. They replace those of their kind that wait.
    pub(super) fn begin(&mut self, kind: BytesKind, length: Length) {
        if let Some(place) = self.waiting.get_mut(kind as usize) {
            *place = Some(self.bytes.len()..self.bytes.len());
        }
        self.open = Some((kind, usize::from(length.get())));
    }

    /// Adds a record to the bytes that an operation has begun. Returns false if none has.
    pub(super) fn add(&mut self, data: [u8; OPERATION_BYTES]) -> bool {
        let Some((kind, missing)) = &mut self.open else { return false };
        let Some(Some(place)) = self.waiting.get_mut(*kind as usize) else { return false };
        let added = data.get(..*missing).unwrap_or(&data);
        self.bytes.extend_from_slice(added);
        (place.end, *missing) = (self.bytes.len(), *missing - added.len());
        true
    }

    /// Removes the bytes of a kind, which have been used.
    pub(super) fn use_up(&mut self, kind: BytesKind) {
        self.waiting.get_mut(kind as usize).into_iter().for_each(|waiting| *waiting = None);
    }
}

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
