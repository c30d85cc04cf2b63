//! The kinds of operands that the minimizer and the mutators treat differently, and where an operand lies.

use std::ops::Range;

/// What the values of an operand stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A cluster of the disk: an anchor in a byte, then steps in 16 bits.
    Position,
    /// The size of a disk: a shift in a byte, then units and a signed tail in 16 bits each.
    Size,
    /// A distance or a length: units and a shift in a byte each.
    Gap,
    /// The number of clusters that an operation is about.
    Count,
    /// A count or an index of few things: subclusters, snapshots, bitmaps.
    Few,
    /// A byte whose canonical values are listed from the plainest on.
    Ranked(&'static [u8]),
    /// What data or structures are, and not where they are.
    Content,
    /// Anything else: a number, flags, a choice.
    Other,
}

/// An operand in the record of an operation, or in the prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What its values stand for.
    pub kind: Kind,
    /// Its first byte.
    pub start: usize,
    /// How many bytes it takes.
    pub length_bytes: usize,
}

impl Place {
    /// Its bytes.
    pub const fn bytes(&self) -> Range<usize> {
        self.start..self.start + self.length_bytes
    }

    /// Returns the places of operands that lie one behind the other from `start` on, from their kinds and lengths.
    pub(in crate::programs) const fn in_a_row<const N: usize>(
        mut start: usize,
        operands: [(Kind, usize); N],
    ) -> [Self; N] {
        let mut places = [Self { kind: Kind::Other, start, length_bytes: 0 }; N];
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
