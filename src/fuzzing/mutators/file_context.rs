//! The context of a mutation of a file: random numbers, another file.

use std::ops::Range;

use crate::harness::cases::tracer::TraceRun;
use crate::images::entropy::Entropy;

/// The parameters of a mutation, except the file.
pub(super) struct FileContext<'c> {
    pub(super) entropy: Entropy,
    /// A file from which the child may take bytes.
    pub(super) other: &'c [u8],
    /// The highest number of bytes of the child, at least that of its parent.
    pub(super) max_bytes: usize,
    /// The file is unchanged since a run that found nothing, so a mutation may run it.
    pub(super) sound: bool,
    /// Runs that file again with the engine under test.
    pub(super) trace: &'c mut TraceRun<'c>,
}

impl FileContext<'_> {
    /// Returns a random index into a list of `length` elements; 0 if the list is empty.
    pub(super) fn index(&mut self, length: usize) -> usize {
        self.entropy.below(length as u64) as usize
    }

    /// Returns a random range of a file of `length_bytes`: of 1 to 64 KiB, mostly small, and empty only if the file is.
    /// Long ranges begin at a sector.
    pub(super) fn range(&mut self, length_bytes: usize) -> Range<usize> {
        let wanted = 1 << self.entropy.below(MAX_RANGE_BITS + 1);
        let start = self.index(length_bytes);
        let start =
            if wanted < FIRST_SECTOR_BYTES { start } else { start & !(FIRST_SECTOR_BYTES - 1) };
        start..(start + wanted).min(length_bytes)
    }

    /// Returns a random byte of a file that is not empty. Half of them lie in its first sector, where headers are.
    pub(super) fn place(&mut self, length_bytes: usize) -> usize {
        let first = if self.entropy.one_in(2) { FIRST_SECTOR_BYTES } else { length_bytes };
        self.index(first.min(length_bytes))
    }
}

/// log2 of the length of the longest range.
const MAX_RANGE_BITS: u64 = 16;
const FIRST_SECTOR_BYTES: usize = 512;
