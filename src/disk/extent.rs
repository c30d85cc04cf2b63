//! What the walker, the reference model and `qemu-img map` all answer with: a run of guest bytes
//! that share one mapping status.

use std::fmt;
use std::ops::{ControlFlow, Range};

use super::offsets::{GuestOffset, HostOffset};
use crate::disk::observer::Event;

/// The mapping status of guest bytes, in the terms of `qemu-img map --output=json` (QEMU
/// `qapi/block-core.json`, `MapEntry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// How many backing files down the bytes were found; 0 is the image itself.
    pub depth: u32,
    /// The bytes are allocated in the layer at `depth`, and not by the absence of any layer.
    pub present: bool,
    /// The bytes read as zeros.
    pub zero: bool,
    /// The bytes are stored as data.
    pub data: bool,
    /// The data is compressed.
    pub compressed: bool,
    /// The host offset of the first byte, where the bytes lie in the file uncompressed.
    pub offset: Option<HostOffset>,
}

impl Mapping {
    /// Nothing is allocated: the bytes read as zeros because no layer has them.
    pub const HOLE: Self =
        Self { depth: 0, present: false, zero: true, data: false, compressed: false, offset: None };

    /// The same status, `delta_bytes` further on in the same run. `None` where the host offset
    /// leaves 64 bits.
    pub fn advanced(self, delta_bytes: u64) -> Option<Self> {
        match self.offset {
            None => Some(self),
            Some(offset) => Some(Self { offset: Some(offset.checked_add(delta_bytes)?), ..self }),
        }
    }

    /// The status that the flags stand for.
    pub fn status(&self) -> MappingStatus {
        let Self { depth: _, present, zero, data, compressed, offset } = *self;
        match (present, zero, data, compressed, offset.is_some()) {
            (false, true, false, false, false) => MappingStatus::Unallocated,
            (false, true, false, false, true) => MappingStatus::UnallocatedSubcluster,
            (true, true, false, false, false) => MappingStatus::ZeroPlain,
            (true, true, false, false, true) => MappingStatus::ZeroAllocated,
            (true, false, true, false, true) => MappingStatus::Normal,
            (true, false, true, true, false) => MappingStatus::Compressed,
            _ => MappingStatus::Impossible,
        }
    }

    /// The name of its status, in the words of the specification.
    pub fn kind(&self) -> &'static str {
        self.status().name()
    }

    /// What a run of this kind is to an observer.
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

    /// Whether bytes with status `next` that begin `length_bytes` after these belong to the same
    /// extent: all flags alike and, where there is a host offset, contiguous in the file.
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

/// What the flags of a [`Mapping`] stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingStatus {
    /// No layer has the bytes.
    Unallocated,
    /// No layer has the bytes, but the cluster around them has a host cluster.
    UnallocatedSubcluster,
    /// Zeros, without an allocation.
    ZeroPlain,
    /// Zeros, with an allocation.
    ZeroAllocated,
    /// Data.
    Normal,
    /// Compressed data.
    Compressed,
    /// No image has bytes with these flags.
    Impossible,
}

impl MappingStatus {
    /// Its name, in the words of the specification.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unallocated => "unallocated",
            Self::UnallocatedSubcluster => "unallocated subcluster",
            Self::ZeroPlain => "zero-plain",
            Self::ZeroAllocated => "zero-allocated",
            Self::Normal => "normal",
            Self::Compressed => "compressed",
            Self::Impossible => "impossible",
        }
    }
}

/// A maximal run of guest bytes with one mapping status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first guest byte.
    pub start: GuestOffset,
    /// How many bytes; never 0.
    pub length_bytes: u64,
    /// Their status; its `offset` is that of the first byte.
    pub mapping: Mapping,
}

impl Extent {
    /// The guest offset just past the extent; `None` where it leaves 64 bits.
    pub fn end(&self) -> Option<GuestOffset> {
        self.start.checked_add(self.length_bytes)
    }
}

/// Its kind, where it lies, and how many layers down.
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

/// The first guest byte and how many, and their mapping.
impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x} {}", self.start, self.length_bytes, self.mapping)
    }
}

/// A range of guest bytes that is asked about. It may lie anywhere, also past the end of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first guest byte.
    pub start: GuestOffset,
    /// How many bytes, 0 and up.
    pub length_bytes: u64,
}

impl Window {
    /// The whole of any disk.
    pub const ALL: Self = Self { start: GuestOffset::ZERO, length_bytes: u64::MAX };

    /// The part of the window on a disk of `virtual_size_bytes`: first byte, and the byte past
    /// the last. Empty windows, and windows past the end, give an empty range.
    pub fn clipped(&self, virtual_size_bytes: u64) -> Range<GuestOffset> {
        let end = GuestOffset::new(virtual_size_bytes);
        let start = self.start.min(end);
        // A window that passes 2^64 ends with the disk.
        start..start.saturating_add(self.length_bytes).min(end)
    }
}

/// What a walk calls: once for each extent, and once for each step of its work.
///
/// A closure that takes an extent is a visitor that leaves the walk unlimited.
pub trait Visitor {
    /// Takes the next extent; breaking ends the walk.
    fn extent(&mut self, extent: Extent) -> ControlFlow<()>;

    /// Called at least once for every piece of a table that is looked at, so that a walk that does not
    /// end can be ended: breaking ends it.
    fn step(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(Extent) -> ControlFlow<()>> Visitor for F {
    fn extent(&mut self, extent: Extent) -> ControlFlow<()> {
        self(extent)
    }
}
