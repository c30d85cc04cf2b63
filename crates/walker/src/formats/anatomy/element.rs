//! The fields and the entries of images.
//!
//! # Arithmetic
//! The guest range of an entry that would pass 2^64 ends there: no disk is as long. No byte of an element lies past the
//! end of its file, unless its first one does.

use std::ops::Range;

use crate::disk::offsets::HostOffset;

use super::part::Part;
use super::seal::Seal;

/// The whole disk: the guest range of a field in the header.
pub const EVERYTHING: Range<u64> = 0..u64::MAX;
/// An empty guest range.
pub(in crate::formats) const NOTHING: Range<u64> = 0..0;

/// A field or an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The part that the element belongs to.
    pub part: Part,
    /// The field's name in the specification. An entry has no name, except for those of sector bitmaps in VHDX.
    pub name: &'static str,
    /// The first byte.
    pub at: HostOffset,
    /// The number of bytes: 1, 2, 4 or 8.
    pub width_bytes: u8,
    /// The number of bytes behind the element that belong to it, and that an attack may choose in its place: those of a
    /// compressed cluster.
    pub behind_bytes: u64,
    /// The order of the bytes.
    pub order: ByteOrder,
    /// The unit of offsets.
    pub unit: OffsetUnit,
    /// The guest bytes whose mapping can change if the element changes and the image still opens.
    pub guest: Range<u64>,
    /// The checksum over the structure that holds the field.
    pub seal: Option<Seal>,
    /// The offset of the next entry of the table, and the guest range that it maps. A field has none.
    pub next: Option<(HostOffset, Range<u64>)>,
}

/// The order of a number's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteOrder {
    /// The highest byte comes first, as in qcow2 and VHD.
    BigEndian,
    /// The lowest byte comes first, as in VHDX and VMDK.
    LittleEndian,
}

impl ByteOrder {
    /// Reverses the lowest `width_bytes` of a number, from 1 to 8, if its lowest byte comes first. This turns a number
    /// that was read as a big-endian one into its value, and a value into the big-endian number to write.
    pub fn in_order(self, number: u64, width_bytes: u8) -> u64 {
        match self {
            Self::BigEndian => number,
            Self::LittleEndian => {
                number.swap_bytes() >> (64 - 8 * u32::from(width_bytes.clamp(1, 8)))
            }
        }
    }
}

/// The unit of the offsets in a field or an entry. Attacks that set a pointer count in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetUnit {
    /// Bytes. Attacks point at the first byte of a cluster.
    Byte,
    /// Sectors of 512 bytes. Attacks point at any sector.
    Sector,
    /// Clusters, in a number whose four highest bits state a type, as in the entries of seSparse extents. Attacks that
    /// set a pointer keep the type.
    Typed,
}

impl Element {
    pub(in crate::formats) fn field(
        part: Part,
        name: &'static str,
        at: HostOffset,
        width_bytes: u8,
        guest: Range<u64>,
    ) -> Self {
        let (order, unit) = (ByteOrder::BigEndian, OffsetUnit::Byte);
        let behind_bytes = 0;
        Self {
            part,
            name,
            at,
            width_bytes,
            behind_bytes,
            order,
            unit,
            guest,
            seal: None,
            next: None,
        }
    }

    /// Returns the same entry in a table that ends at `end`. Each entry takes `stride_bytes`, and the next one maps as
    /// many guest bytes.
    pub(in crate::formats) fn in_table(self, stride_bytes: u64, end: HostOffset) -> Self {
        let span = self.guest.end.saturating_sub(self.guest.start);
        let guest = self.guest.end..self.guest.end.saturating_add(span);
        let next = self.at.checked_add(stride_bytes).filter(|at| *at < end);
        Self { next: next.map(|at| (at, guest)), ..self }
    }

    /// Returns the same element with the lowest byte first.
    pub(in crate::formats) fn little_endian(self) -> Self {
        Self { order: ByteOrder::LittleEndian, ..self }
    }

    /// Returns the byte `inside` of the element, which an attack chooses: modulo the number of bytes that belong to
    /// the element, up to the end of the file of `file_bytes`.
    pub fn inside(self, inside: u64, file_bytes: u64) -> Self {
        let there =
            file_bytes.saturating_sub(self.at.get()).min(self.behind_bytes.saturating_add(1));
        let skipped = inside.checked_rem(there).unwrap_or(0);
        Self { at: self.at + skipped, ..self }
    }

    /// Returns the host offsets of the element's bytes.
    pub fn range(&self) -> Range<HostOffset> {
        self.at..self.at + u64::from(self.width_bytes)
    }

    /// Returns the entry right after this one, even if it is zero. Returns `None` if the table has no such entry.
    pub(super) fn beside(&self) -> Option<Self> {
        let (at, guest) = self.next.clone()?;
        Some(Self { at, guest, next: None, ..self.clone() })
    }
}
