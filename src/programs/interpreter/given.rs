//! The bytes that a program passes to later operations.

use std::ops::Range;

use crate::programs::operand::{BytesKind, Length};
use crate::programs::operation::OPERATION_BYTES;

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
