//! The anatomy of an image: the offset and the length of each field and each table entry, and the guest range that it
//! maps. It is read from the bytes alone, so attacks can change everything that a reader reads. Each format has a file
//! of its own that reads its images.

use std::ops::Range;

use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::limits::MAX_ELEMENTS;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::vhdx::checksum::Checksum;
use crate::formats::vpc::footer::checksums;

/// The part of an image that a field or an entry belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Entries of the active disk's L2 tables.
    #[default]
    L2,
    /// Subcluster bitmaps of these entries, under extended L2.
    Bitmap,
    /// Entries of the active L1 table.
    L1,
    /// Fields of the header.
    Header,
    /// Header extensions: types, lengths and contents. Also the first byte of the backing file's name.
    Extension,
    /// Entries of the refcount table.
    RefcountTable,
    /// Refcounts. If these have less than eight bits, bytes of refcounts.
    RefcountBlock,
    /// Fields of the snapshot table.
    Snapshot,
    /// Entries of L2 tables that only snapshots use.
    SnapshotTable,
    /// Fields of the bitmap directory.
    BitmapDirectory,
    /// Entries of bitmap tables.
    BitmapTable,
    /// First bytes of compressed clusters.
    Payload,
    /// Entries of the table that names the blocks of a VHD image.
    Table,
    /// The bytes before the data of a block: the bitmap of VHD.
    BlockFront,
}

impl Part {
    /// The number of parts that a qcow2 image has. They are the first ones.
    pub const OF_QCOW2: usize = 12;

    /// All parts, in order.
    pub const ALL: [Self; 14] = [
        Self::L2,
        Self::Bitmap,
        Self::L1,
        Self::Header,
        Self::Extension,
        Self::RefcountTable,
        Self::RefcountBlock,
        Self::Snapshot,
        Self::SnapshotTable,
        Self::BitmapDirectory,
        Self::BitmapTable,
        Self::Payload,
        Self::Table,
        Self::BlockFront,
    ];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::L2 => "L2 table",
            Self::Bitmap => "subcluster bitmap",
            Self::L1 => "L1 table",
            Self::Header => "header",
            Self::Extension => "header extension",
            Self::RefcountTable => "refcount table",
            Self::RefcountBlock => "refcount block",
            Self::Snapshot => "snapshot",
            Self::SnapshotTable => "table of a snapshot",
            Self::BitmapDirectory => "bitmap directory",
            Self::BitmapTable => "bitmap table",
            Self::Payload => "payload",
            Self::Table => "block table",
            Self::BlockFront => "front of a block",
        }
    }
}

/// The whole disk: the guest range of a field in the header.
pub const EVERYTHING: Range<u64> = 0..u64::MAX;
/// An empty guest range.
pub(super) const NOTHING: Range<u64> = 0..0;

/// A field or an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The part that the element belongs to.
    pub part: Part,
    /// The field's name in the specification. An entry has no name.
    pub name: &'static str,
    /// The first byte.
    pub at: HostOffset,
    /// The number of bytes: 1, 2, 4 or 8. They are big-endian.
    pub width_bytes: u8,
    /// The guest bytes whose mapping can change if the element changes and the image still opens.
    pub guest: Range<u64>,
    /// The checksum over the structure that holds the field.
    pub seal: Option<Seal>,
    /// The distance to the next entry of the table; 0 for a field.
    pub(super) stride_bytes: u64,
    /// The end of the table.
    pub(super) end: HostOffset,
}

/// A checksum over a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The first byte of the structure.
    pub start: HostOffset,
    /// The length of the structure.
    pub length_bytes: usize,
    /// The offset of the checksum in it.
    pub inside: usize,
    /// How it is computed.
    pub kind: SealKind,
}

/// How a checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealKind {
    /// VHD: the one's complement of the sum of all other bytes, big-endian.
    ComplementOfSum,
    /// VHDX: CRC-32C, little-endian. The checksum itself counts as zeros.
    Crc32c,
}

impl SealKind {
    /// Returns the bytes of the checksum of `structure`, which lies at `inside`.
    pub fn of(self, structure: &[u8], inside: usize) -> [u8; 4] {
        match self {
            Self::ComplementOfSum => checksums(structure, inside).0.to_be_bytes(),
            Self::Crc32c => Checksum::of_structure(structure).get().to_le_bytes(),
        }
    }
}

impl Element {
    pub(super) fn field(
        part: Part,
        name: &'static str,
        at: HostOffset,
        width_bytes: u8,
        guest: Range<u64>,
    ) -> Self {
        Self { part, name, at, width_bytes, guest, seal: None, stride_bytes: 0, end: at }
    }

    /// Returns the host offsets of the element's bytes.
    pub fn range(&self) -> Range<HostOffset> {
        self.at..self.at.saturating_add(u64::from(self.width_bytes))
    }

    /// Returns the entry right after this one, even if it is zero. Returns `None` if the table has no such entry.
    fn beside(&self) -> Option<Self> {
        let at = self.at.checked_add(self.stride_bytes)?;
        let inside = self.stride_bytes > 0 && at < self.end;
        let span = self.guest.end.saturating_sub(self.guest.start);
        let guest = self.guest.end..self.guest.end.saturating_add(span);
        inside.then(|| Self { at, guest, ..self.clone() })
    }
}

/// The place of a structure in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure {
    /// The part to which its fields and entries belong.
    pub part: Part,
    /// Its bytes. Only a malformed file ends before them.
    pub bytes: Range<u64>,
}

/// The fields and the entries of an image, without table entries that are zero. The buffers are reused for the next
/// image.
#[derive(Debug, Default)]
pub struct Anatomy {
    elements: Vec<Element>,
    pub(super) cluster_size: Option<ClusterSize>,
    structures: Vec<Structure>,
    /// The tables of the active disk, while an image of qcow2 is read.
    pub(super) active: Vec<HostOffset>,
}

impl Anatomy {
    /// Takes an image of `format` apart, up to `MAX_ELEMENTS` elements. A raw file has none.
    ///
    /// # Errors
    /// A structure that names others is malformed, or a read fails. The elements that were found before stay.
    pub fn read<S: Storage + ?Sized>(
        &mut self,
        format: ImageFormat,
        storage: &S,
    ) -> Result<(), MapError> {
        self.elements.clear();
        self.active.clear();
        self.structures.clear();
        self.cluster_size = None;
        let read = match format {
            ImageFormat::Qcow2 => self.read_qcow2(storage),
            ImageFormat::Vpc => self.read_vpc(storage),
            ImageFormat::Raw | ImageFormat::Vhdx | ImageFormat::Vmdk => Ok(()),
        };
        // The sort is stable: the elements of a part keep the order in which they were found.
        self.elements.sort_by_key(|element| element.part);
        read
    }

    /// Returns the elements of a part, in the order in which a reader reads them.
    pub fn of(&self, part: Part) -> &[Element] {
        let first = self.elements.partition_point(|element| element.part < part);
        let end = self.elements.partition_point(|element| element.part <= part);
        &self.elements[first..end]
    }

    /// Returns the structures of an image whose format is not qcow2, in no order.
    pub fn structures(&self) -> &[Structure] {
        &self.structures
    }

    /// Adds a structure.
    pub(super) fn add_structure(&mut self, part: Part, start: HostOffset, length_bytes: u64) {
        if self.structures.len() < MAX_ELEMENTS {
            let bytes = start.get()..start.get().saturating_add(length_bytes);
            self.structures.push(Structure { part, bytes });
        }
    }

    /// Returns all elements, sorted by part.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// Returns the size of the image's clusters, or `None` if the image has no valid header.
    pub fn cluster_size(&self) -> Option<ClusterSize> {
        self.cluster_size
    }

    /// Returns an element of `part`. `nth / 2` is its index, modulo the number of elements. If `nth` is odd, this
    /// returns the entry right after it, even if that is zero. Without such an entry, it returns the element itself:
    /// without its checksum if `nth` is even, so that an odd `nth` keeps the checksum right.
    pub fn element(&self, part: Part, nth: u16) -> Option<Element> {
        let all = self.of(part);
        let one = all.get(usize::from(nth / 2).checked_rem(all.len())?)?;
        match nth % 2 {
            1 => Some(one.beside().unwrap_or_else(|| one.clone())),
            _ => Some(Element { seal: None, ..one.clone() }),
        }
    }

    pub(super) fn push(&mut self, element: Element) {
        if self.elements.len() < MAX_ELEMENTS {
            self.elements.push(element);
        }
    }
}
