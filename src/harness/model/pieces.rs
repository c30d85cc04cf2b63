//! The pieces of a layer, and the parts of a disk that a guest sees.

use crate::base::file_parts::FilePart;
use crate::disk::clusters::ClusterSize;
use crate::disk::extent::Mapping;
use crate::disk::image_format::ImageFormat;
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

/// A part of the disk that a guest sees, with its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Visible {
    /// The first guest byte.
    pub start: u64,
    /// The byte past the last.
    pub end: u64,
    /// The depth of the layer that the part comes from, 0 for the top.
    pub depth: u32,
    /// The piece of that layer, which may begin before this part.
    pub piece: ModelPiece,
    /// The byte past the last of that piece, which may lie past the end of the disk.
    pub piece_end: u64,
    /// The cluster size of that layer.
    pub cluster_size: ClusterSize,
    /// The smallest unit of mapping of that layer in bytes: a cluster, or a subcluster.
    pub cell_bytes: u64,
    /// The exact size of that layer in bytes. In the last sector, the bytes past a raw file's end are zeros.
    pub size_bytes: u64,
    /// The format of that layer.
    pub format: ImageFormat,
    /// The part of that layer's disk whose data lie in the same file.
    pub part: FilePart,
    /// The layer is a raw file that stores only data.
    pub has_holes: bool,
}

impl Visible {
    /// Returns the state of the part.
    pub fn state(&self) -> PieceState {
        match self.piece.state {
            // Without backing files, a block that the file does not store reads as zeros.
            PieceState::Unallocated
                if self.format != ImageFormat::Raw && !self.format.facts().has_backing_files =>
            {
                PieceState::ZeroPlain
            }
            // A reader does not learn where the file has room for a block of zeros.
            PieceState::ZeroAllocated(_) if self.format.facts().hides_place_of_zeros => {
                PieceState::ZeroPlain
            }
            state => state.advanced(self.start - self.piece.start),
        }
    }

    /// Returns the mapping that `qemu-img map` prints for the part.
    pub(super) fn mapping(&self) -> Mapping {
        let here = self.part.flat_at.map(|at| at + (self.start - self.part.start));
        let has_data = !self.has_holes
            || matches!(self.piece.state, PieceState::Normal(..) | PieceState::Compressed(..));
        let state = match here {
            Some(here) if has_data && self.start < self.size_bytes => {
                PieceState::Normal(here, WriteNumber(0))
            }
            // A hole, or the part of a raw file's last sector past its end.
            Some(here) => PieceState::ZeroAllocated(here),
            None => self.state(),
        };
        Mapping { depth: self.depth, ..state.mapping() }
    }
}
