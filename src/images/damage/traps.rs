//! Traps: bytes that change during reads, and reads that fail.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::images::files::LayerFile;

/// Bytes that change after a number of reads.
#[derive(Clone, Debug)]
pub(super) struct Trap {
    pub(super) depth: usize,
    /// The file of the layer.
    pub(super) file: LayerFile,
    /// The host offsets of the bytes.
    pub(super) range: Range<HostOffset>,
    /// The new values: the last bytes of this array, as many as the range has.
    pub(super) bytes: [u8; 8],
    pub(super) reads: u8,
}

impl Trap {
    /// Reports whether the bytes overlap `from..until`.
    pub(super) fn meets(&self, from: HostOffset, until: HostOffset) -> bool {
        self.range.start < until && from < self.range.end
    }
}

/// A part whose reads fail in one file.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    pub(super) depth: usize,
    /// The file of the layer.
    pub(super) file: LayerFile,
    /// The host offsets of the part's elements, sorted.
    pub(super) ranges: Vec<Range<HostOffset>>,
    pub(super) reads: u8,
}
