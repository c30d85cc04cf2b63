//! The interface between the walk of one layer and the walk of the chain.

use std::ops::{ControlFlow, Range};

use crate::disk::extent::Mapping;
use crate::disk::observer::Observer;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::formats::error::Flow;

/// Returns from the walk if a receiver has ended it.
macro_rules! go_on {
    ($flow:expr) => {
        if $flow.is_break() {
            return Ok(::std::ops::ControlFlow::Break(()));
        }
    };
}
pub(super) use go_on;

/// One of the files that hold the data of a layer. Data of two files are never one extent, even if their host offsets
/// are consecutive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HoldingFile(usize);

impl HoldingFile {
    /// Returns the identity of an open file.
    pub(super) fn of<S: ?Sized>(file: &S) -> Self {
        Self(std::ptr::from_ref(file).addr())
    }
}

/// The receiver of a layer's walk. It covers the guest bytes of a window, front to back, with mappings. Where the layer
/// has nothing, it goes on in the layer below.
pub(super) trait Cover {
    /// The observer of the walk.
    type Observer: Observer;

    /// Returns the observer.
    fn observer(&self) -> &Self::Observer;

    /// Returns the first guest byte that is not covered.
    fn position(&self) -> GuestOffset;

    /// Returns the end of the window, at most the end of the layer.
    fn end(&self) -> GuestOffset;

    /// Reports one step to the visitor.
    fn step(&mut self) -> ControlFlow<()>;

    /// Covers the part of `start..end` that lies in the window and is not covered. `mapping` is the mapping of `start`,
    /// which is not past the position.
    fn cover(&mut self, start: GuestOffset, end: GuestOffset, mapping: Mapping) -> Flow;

    /// Covers the guest bytes from the position to `end`, which this layer allocates, and which lies in the window.
    /// `mapping` is the mapping of the position.
    fn put(&mut self, end: GuestOffset, mapping: Mapping) -> ControlFlow<()>;

    /// Sets the file that holds the data of this layer from the position on. Without a call, all data lie in one file.
    fn set_file(&mut self, file: HoldingFile);

    /// Covers the guest bytes up to `until` as a hole, if they are not covered.
    #[inline]
    fn hole_until(&mut self, until: GuestOffset) -> Flow {
        if until <= self.position() {
            return Ok(ControlFlow::Continue(()));
        }
        self.cover(self.position(), until, Mapping::HOLE)
    }
}

/// Returns the indices of the entries of a table that map the bytes from `start` to `end`, both counted from the first
/// byte that the table maps. Each entry maps `1 << span_bits` bytes.
pub(super) fn entries_of(start: u64, end: u64, span_bits: u32) -> Range<u64> {
    // Neither is past 2^63, so that the sum fits.
    start >> span_bits..(end + ((1 << span_bits) - 1)) >> span_bits
}

/// Returns the mapping with its depth set.
#[inline]
pub(super) fn at_depth(mapping: Mapping, depth: usize) -> Mapping {
    Mapping { depth: u32::try_from(depth).unwrap_or(u32::MAX), ..mapping }
}

/// Returns the host offset of a guest byte that lies at the same offset of a file.
pub(super) fn in_place(guest: GuestOffset) -> HostOffset {
    HostOffset::new(guest.get())
}
