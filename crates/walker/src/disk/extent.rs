//! Extents: runs of guest bytes that share one mapping status. The walker, the reference model and `qemu-img map` all
//! answer with extents.

use std::fmt;
use std::ops::{ControlFlow, Range};

use super::offsets::{GuestOffset, HostOffset};
use crate::disk::observer::Event;

/// The mapping status of guest bytes, in the terms of `qemu-img map --output=json` (QEMU
/// `qapi/block-core.json`, `MapEntry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The number of the layer that the bytes come from, counted down the backing chain. 0 is the image itself.
    pub depth: u32,
    /// The layer at `depth` allocates the bytes. If this is false, no layer has them.
    pub present: bool,
    /// The bytes read as zeros.
    pub zero: bool,
    /// The bytes are stored as data.
    pub data: bool,
    /// The data is compressed.
    pub compressed: bool,
    /// The host offset of the first byte, if the file stores the bytes uncompressed and the format reports it.
    pub offset: Option<HostOffset>,
}

impl Mapping {
    /// The status of bytes that no layer allocates. They read as zeros.
    pub const HOLE: Self =
        Self { depth: 0, present: false, zero: true, data: false, compressed: false, offset: None };

    /// Returns the status of the byte that lies `delta_bytes` further on in the same run. Returns `None` if the host
    /// offset would exceed 64 bits.
    pub fn advanced(self, delta_bytes: u64) -> Option<Self> {
        match self.offset {
            None => Some(self),
            Some(offset) => Some(Self { offset: Some(offset.checked_add(delta_bytes)?), ..self }),
        }
    }

    /// Returns the status that the flags stand for.
    pub fn status(&self) -> MappingStatus {
        let Self { depth: _, present, zero, data, compressed, offset } = *self;
        match (present, zero, data, compressed, offset.is_some()) {
            (false, true, false, false, false) => MappingStatus::Unallocated,
            (false, true, false, false, true) => MappingStatus::UnallocatedSubcluster,
            (true, true, false, false, false) => MappingStatus::ZeroPlain,
            (true, true, false, false, true) => MappingStatus::ZeroAllocated,
            (true, false, true, false, true) => MappingStatus::Normal,
            (true, false, true, true, false) => MappingStatus::Compressed,
            (true, true, true, false, true) => MappingStatus::HostHole,
            _ => MappingStatus::Impossible,
        }
    }

    /// Returns the name of the status, as the specification spells it.
    pub fn kind(&self) -> &'static str {
        self.status().name()
    }

    /// Returns the event that reports a run of this kind.
    #[inline(always)]
    pub fn event(&self) -> Event {
        match (self.compressed, self.data, self.present, self.offset.is_some()) {
            (true, ..) => Event::Compressed,
            (false, true, ..) => Event::Normal,
            (false, false, true, true) => Event::ZeroAllocated,
            (false, false, true, false) => Event::ZeroPlain,
            (false, false, false, true) => Event::UnallocatedSubclusters,
            (false, false, false, false) => Event::Unallocated,
        }
    }

    /// Reports whether bytes with status `next` that begin `length_bytes` after these belong to the same extent. All
    /// flags must be equal, and host offsets, if any, must be contiguous.
    pub fn continues_as(&self, length_bytes: u64, next: &Self) -> bool {
        let contiguous = match (self.offset, next.offset) {
            (None, None) => true,
            (Some(here), Some(there)) => here.checked_add(length_bytes) == Some(there),
            _ => false,
        };
        contiguous
            && self.depth == next.depth
            && self.present == next.present
            && self.zero == next.zero
            && self.data == next.data
            && self.compressed == next.compressed
    }
}

/// The status that the flags of a [`Mapping`] stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingStatus {
    /// No layer has the bytes.
    Unallocated,
    /// No layer has the bytes, but the cluster around them has a host cluster.
    UnallocatedSubcluster,
    /// Zeros without an allocation.
    ZeroPlain,
    /// Zeros with an allocation.
    ZeroAllocated,
    /// A data cluster.
    Normal,
    /// A compressed cluster.
    Compressed,
    /// Data in a hole of the host file, which read as zeros. Only
    /// [`Disk::with_host_holes`](crate::walkers::Disk::with_host_holes) asks for holes.
    HostHole,
    /// No qcow2 image has bytes with these flags.
    Impossible,
}

impl MappingStatus {
    /// Returns the name, as the specification spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unallocated => "unallocated",
            Self::UnallocatedSubcluster => "unallocated subcluster",
            Self::ZeroPlain => "zero-plain",
            Self::ZeroAllocated => "zero-allocated",
            Self::Normal => "normal",
            Self::Compressed => "compressed",
            Self::HostHole => "host hole",
            Self::Impossible => "impossible",
        }
    }
}

/// A maximal run of guest bytes with one mapping status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first guest byte.
    pub start: GuestOffset,
    /// The number of bytes; never 0.
    pub length_bytes: u64,
    /// The status of the bytes; its `offset` is that of the first byte.
    pub mapping: Mapping,
}

impl Extent {
    /// Returns the guest offset just past the extent, or `None` if it exceeds 64 bits.
    pub fn end(&self) -> Option<GuestOffset> {
        self.start.checked_add(self.length_bytes)
    }
}

/// Prints the cluster type, the host offset and, if it is not 0, the depth.
impl fmt::Display for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { depth, present, zero, data, compressed, offset } = self;
        match self.status() {
            MappingStatus::Impossible => {
                write!(f, "present {present}, zero {zero}, data {data}, compressed {compressed}")?;
            }
            status => f.write_str(status.name())?,
        }
        offset.iter().try_for_each(|offset| write!(f, " at {offset:#x}"))?;
        if *depth == 0 { Ok(()) } else { write!(f, ", {depth} down") }
    }
}

/// Prints the first guest byte, the length and the mapping.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x} {}", self.start, self.length_bytes, self.mapping)
    }
}

/// A range of guest bytes that a question is about. It may lie anywhere, even past the end of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first guest byte.
    pub start: GuestOffset,
    /// The number of bytes, from 0 up.
    pub length_bytes: u64,
}

impl Window {
    /// A window that contains every disk.
    pub const ALL: Self = Self { start: GuestOffset::ZERO, length_bytes: u64::MAX };

    /// Returns the part of the window that lies on a disk of `virtual_size_bytes`. The range is empty if the window
    /// is empty or lies past the end.
    pub fn clipped(&self, virtual_size_bytes: u64) -> Range<GuestOffset> {
        let end = GuestOffset::new(virtual_size_bytes);
        let start = self.start.min(end);
        // A window that passes 2^64 ends with the disk.
        start..(start + self.length_bytes).min(end)
    }
}

/// The receiver of a walk. The walk calls it once for each extent, and once for each step of its work.
///
/// Every closure that takes an extent is a visitor; it sets no limit on the steps.
pub trait Visitor {
    /// Receives the next extent. The walk ends if this breaks.
    fn extent(&mut self, extent: Extent) -> ControlFlow<()>;

    /// Receives one step. The walk calls this at least once for each piece of a table that it reads, so that a
    /// visitor can end a walk that would not end by itself. The walk ends if this breaks.
    fn step(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(Extent) -> ControlFlow<()>> Visitor for F {
    fn extent(&mut self, extent: Extent) -> ControlFlow<()> {
        self(extent)
    }
}
