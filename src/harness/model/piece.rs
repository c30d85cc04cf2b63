//! The pieces of a layer.

use crate::disk::extent::Mapping;
use crate::disk::offsets::HostOffset;
use crate::images::content::{CompressedContent, WriteNumber};

/// The state of a piece of the disk. Host offsets are those of the piece's first byte.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PieceState {
    /// Unallocated.
    Unallocated,
    /// Unallocated, in a cluster that has a host cluster.
    UnallocatedInside(HostOffset),
    /// Zeros, without an allocation.
    ZeroPlain,
    /// Zeros, with an allocation.
    ZeroAllocated(HostOffset),
    /// The data of a write.
    Normal(HostOffset, WriteNumber),
    /// The data of a write, compressed.
    Compressed(WriteNumber, CompressedContent),
}

impl PieceState {
    /// Returns the state of the same piece without its first `delta_bytes`.
    pub(super) fn advanced(self, delta_bytes: u64) -> Self {
        let on = |host: HostOffset| host + delta_bytes;
        match self {
            Self::UnallocatedInside(host) => Self::UnallocatedInside(on(host)),
            Self::ZeroAllocated(host) => Self::ZeroAllocated(on(host)),
            Self::Normal(host, write) => Self::Normal(on(host), write),
            Self::Unallocated | Self::ZeroPlain | Self::Compressed(..) => self,
        }
    }

    /// Returns the state after the cluster around the piece has moved; `host` is the new host offset of the piece.
    pub(super) fn moved_to(self, host: HostOffset) -> Self {
        match self {
            Self::Unallocated | Self::UnallocatedInside(_) => Self::UnallocatedInside(host),
            Self::ZeroPlain | Self::ZeroAllocated(_) => Self::ZeroAllocated(host),
            Self::Normal(_, write) => Self::Normal(host, write),
            Self::Compressed(..) => self,
        }
    }

    /// Returns the mapping that `qemu-img map` prints for this state.
    pub(super) fn mapping(self) -> Mapping {
        let (present, data, compressed, offset) = match self {
            Self::Unallocated => (false, false, false, None),
            Self::UnallocatedInside(host) => (false, false, false, Some(host)),
            Self::ZeroPlain => (true, false, false, None),
            Self::ZeroAllocated(host) => (true, false, false, Some(host)),
            Self::Normal(host, _) => (true, true, false, Some(host)),
            Self::Compressed(..) => (true, true, true, None),
        };
        Mapping { depth: 0, present, zero: !data, data, compressed, offset }
    }
}

/// A piece of the disk: from `start` to the start of the next one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelPiece {
    /// The first guest byte.
    pub start: u64,
    /// The state of the piece.
    pub state: PieceState,
}
