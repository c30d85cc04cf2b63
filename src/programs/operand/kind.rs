//! The kinds of operands that the minimizer and the mutators treat differently, and where an operand lies.

use std::ops::Range;

/// The kind of an operand's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandKind {
    /// A cluster of the disk: an anchor in a byte, then steps in 16 bits.
    Position,
    /// The size of a disk: a shift in a byte, then units and a signed tail in 16 bits each.
    Size,
    /// A distance or a length: units and a shift in a byte each.
    Gap,
    /// A distance in clusters of any magnitude: units and a shift in a byte each.
    FarGap,
    /// The number of clusters of an operation.
    Count,
    /// A small count or index, for subclusters, snapshots and bitmaps.
    Few,
    /// A byte whose canonical values are listed, the plainest first.
    Ranked(&'static [u8]),
    /// The content of data or structures, not their position.
    Content,
    /// Anything else: a number, flags, a choice.
    Other,
}

/// An operand in the record of an operation, or in the prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperandPlace {
    /// The kind of its values.
    pub kind: OperandKind,
    /// Its first byte.
    pub start: usize,
    /// Its length in bytes.
    pub length_bytes: usize,
}

impl OperandPlace {
    /// Returns the range of its bytes.
    pub const fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.length_bytes
    }

    /// Returns the places of consecutive operands that begin at `start`, from their kinds and lengths.
    pub(in crate::programs) const fn in_a_row<const N: usize>(
        mut start: usize,
        operands: [(OperandKind, usize); N],
    ) -> [Self; N] {
        let mut places = [Self { kind: OperandKind::Other, start, length_bytes: 0 }; N];
        let mut at = 0;
        while at < N {
            let (kind, length_bytes) = operands[at];
            places[at] = Self { kind, start, length_bytes };
            start += length_bytes;
            at += 1;
        }
        places
    }
}
