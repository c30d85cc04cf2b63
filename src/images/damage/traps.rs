//! What happens to files while a reader reads them: bytes that change, and reads that fail.

use std::ops::Range;

use crate::disk::offsets::HostOffset;

/// Bytes that change when they have been read.
#[derive(Clone, Debug)]
pub(super) struct Trap {
    pub(super) depth: usize,
    /// Where they lie.
    pub(super) range: Range<HostOffset>,
    /// Their new values: the last bytes of this array, as many as the range is long.
    pub(super) bytes: [u8; 8],
    pub(super) reads: u8,
}

impl Trap {
    /// Whether it lies in `from..until`, or some of it does.
    pub(super) fn meets(&self, from: HostOffset, until: HostOffset) -> bool {
        self.range.start < until && from < self.range.end
    }
}

/// A read that fails.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) depth: usize,
    /// Where the part's elements lie, sorted.
    pub(super) ranges: Vec<Range<HostOffset>>,
    pub(super) reads: u8,
}
