//! The bytes that a program passes to later operations.

use std::ops::Range;

use crate::programs::operand::{BytesKind, Length};
use crate::programs::operation::OPERATION_BYTES;

use super::{Effect, Vm};

/// The bytes of a program that wait for an operation with a use for them. Of each kind, the last ones wait.
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

    /// Removes the bytes of a kind, which have been used.
    pub(super) fn use_up(&mut self, kind: BytesKind) {
        self.waiting.get_mut(kind as usize).into_iter().for_each(|waiting| *waiting = None);
    }
}

impl Vm {
    /// Begins the bytes of an operation. They replace those of their kind that wait.
    pub(super) fn begin_bytes(&mut self, kind: BytesKind, length: Length) -> Effect {
        let GivenBytes { bytes, waiting, open } = &mut self.given;
        if let Some(place) = waiting.get_mut(kind as usize) {
            *place = Some(bytes.len()..bytes.len());
        }
        *open = Some((kind, usize::from(length.get())));
        Effect::Changed
    }

    /// Adds a record to the bytes that an operation has begun.
    pub(super) fn add_data(&mut self, data: [u8; OPERATION_BYTES]) -> Effect {
        let GivenBytes { bytes, waiting, open } = &mut self.given;
        let Some((kind, missing)) = open else { return Effect::None };
        let Some(Some(place)) = waiting.get_mut(*kind as usize) else { return Effect::None };
        let added = data.get(..*missing).unwrap_or(&data);
        bytes.extend_from_slice(added);
        (place.end, *missing) = (bytes.len(), *missing - added.len());
        Effect::Changed
    }
}
