//! The attacks that a hostile program can make on its image.

use crate::formats::qcow2::anatomy::Part;

/// An element of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// What it belongs to.
    pub part: Part,
    /// How many layers down, counted over those that there are.
    pub depth: u8,
    /// Which element; see [`Anatomy::element`](crate::formats::qcow2::anatomy::Anatomy::element).
    pub nth: u16,
}

/// How an element is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transform {
    /// One bit is flipped: the one with the value's number, counted over the element's bits.
    #[default]
    Flip,
    /// It becomes one of the values at which readers go wrong: the value's number says which.
    Boundary,
    /// The value is added, as a signed number.
    Add,
    /// So many clusters are added.
    AddClusters,
    /// It points at another element's cluster: the one with the value's number, over all parts.
    Structure,
    /// It points at the cluster that it lies in.
    Own,
    /// It points past the end of the file, by so many clusters.
    PastEnd,
    /// What it points at is moved off its boundary, by so many sectors.
    Misalign,
    /// It is exchanged with the next element of its part; in a trap, it becomes the value.
    Swap,
    /// It becomes the value.
    Set,
}

impl Transform {
    /// All of them, in order.
    pub const ALL: [Self; 10] = [
        Self::Flip,
        Self::Boundary,
        Self::Add,
        Self::AddClusters,
        Self::Structure,
        Self::Own,
        Self::PastEnd,
        Self::Misalign,
        Self::Swap,
        Self::Set,
    ];
}

/// One thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// An element is changed.
    Patch {
        /// Which.
        spot: Spot,
        /// How.
        transform: Transform,
        /// With what.
        value: u16,
    },
    /// An element is changed when it has been read.
    Trap {
        /// Which.
        spot: Spot,
        /// How.
        transform: Transform,
        /// With what.
        value: u16,
        /// How many reads see it as it was.
        reads: u8,
    },
    /// A read of a part fails.
    FailRead {
        /// Which part.
        part: Part,
        /// Of which layer.
        depth: u8,
        /// How many reads of it go well before.
        reads: u8,
    },
    /// Bytes are cut off the end of the file.
    Truncate {
        /// Of which layer.
        depth: u8,
        /// How many.
        bytes: u64,
    },
}
