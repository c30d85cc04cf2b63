//! The anatomy of an image: the offset and the length of each field and each table entry, and the guest range that it
//! maps. It is read from the bytes alone, so attacks can change everything that a reader reads. Each format has a file
//! of its own that reads its images.
//!
//! # Arithmetic
//! The guest range of an entry that would pass 2^64 ends there: no disk is as long. No byte of an element lies past the
//! end of its file, unless its first one does.

mod fields;
mod seal;

use std::ops::{ControlFlow, Range};

use crate::disk::clusters::ClusterSize;
use crate::disk::limits::MAX_ELEMENTS;
use crate::disk::offsets::HostOffset;
use crate::formats::Tables as GrainTables;

pub use fields::{ByteOrder, Part, StructureField, feature_names, with_reserved};
pub(in crate::formats) use fields::{field_in_words, fields, text_in_words};
pub(crate) use seal::crc32c_without;
pub use seal::{Seal, SealKind, complement_of_sum};

/// The place of a structure in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure {
    /// The part to which its fields and entries belong.
    pub part: Part,
    /// Its byte range. The range reaches past the end of the file only if the file is malformed.
    pub bytes: Range<u64>,
    /// A walk reads the structure: it is a table or a directory of the disk, and no copy.
    pub is_walked: bool,
}

/// The fields and the entries of an image, without table entries that are zero. The buffers are reused for the next
/// image.
#[derive(Debug, Default)]
pub struct Anatomy {
    /// The elements of each part, in the order in which they were found. Many anatomies live on a stack.
    elements: Box<[Vec<Element>; Part::ALL.len()]>,
    count: usize,
    /// Structures are kept, and no elements.
    omits_elements: bool,
    pub(super) cluster_size: Option<ClusterSize>,
    structures: Vec<Structure>,
    /// The tables of an extent of grains.
    pub(super) grain_tables: Option<GrainTables>,
    /// The tables of the active disk, while an image of qcow2 is read.
    pub(super) active: Vec<HostOffset>,
}

impl Anatomy {
    /// Creates an anatomy that keeps the structures of images, and no elements.
    pub fn of_structures() -> Self {
        Self { omits_elements: true, ..Self::default() }
    }

    /// Removes all elements and structures.
    pub fn clear(&mut self) {
        for elements in &mut *self.elements {
            elements.clear();
            // Sixteen buffers of the largest images would take much more memory than one image needs.
            elements.shrink_to(MAX_ELEMENTS / Part::ALL.len());
        }
        self.count = 0;
        self.active.clear();
        self.structures.clear();
        self.cluster_size = None;
        self.grain_tables = None;
    }

    /// Returns the elements of a part, in the order in which a reader reads them.
    pub fn of(&self, part: Part) -> &[Element] {
        &self.elements[part.index()]
    }

    /// Returns the structures and the stored blocks of an image whose format is not qcow2, in no order: at most
    /// [`MAX_ELEMENTS`].
    pub fn structures(&self) -> &[Structure] {
        &self.structures
    }

    /// Adds a structure.
    pub(super) fn add_structure(&mut self, part: Part, start: HostOffset, length_bytes: u64) {
        self.structure(part, start, length_bytes, false);
    }

    /// Adds a table or a directory that a walk reads.
    pub(super) fn add_table(&mut self, part: Part, start: HostOffset, length_bytes: u64) {
        self.structure(part, start, length_bytes, true);
    }

    fn structure(&mut self, part: Part, start: HostOffset, length_bytes: u64, is_walked: bool) {
        if self.structures.len() < MAX_ELEMENTS {
            let bytes = start.get()..start.get().saturating_add(length_bytes);
            self.structures.push(Structure { part, bytes, is_walked });
        }
    }

    /// Reports whether the anatomy keeps elements, and not only structures.
    pub(super) fn keeps_elements(&self) -> bool {
        !self.omits_elements
    }

    /// Returns all elements, sorted by part.
    pub fn elements(&self) -> impl Iterator<Item = &Element> {
        self.elements.iter().flatten()
    }

    /// Returns the number of all elements, at most `MAX_ELEMENTS`.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the tables of an extent of grains, which give its entries their meaning.
    pub fn grain_tables(&self) -> Option<&GrainTables> {
        self.grain_tables.as_ref()
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

    /// Adds the fields of a structure.
    pub(super) fn add_fields(&mut self, group: FieldGroup, fields: &'static [StructureField]) {
        if !self.omits_elements {
            group.elements(fields).for_each(|element| self.push(element));
        }
    }

    /// Breaks if there is no room for more elements or structures.
    pub(super) fn room(&self) -> ControlFlow<()> {
        match self.count.max(self.structures.len()) < MAX_ELEMENTS {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    pub(super) fn push(&mut self, element: Element) {
        if self.count < MAX_ELEMENTS && !self.omits_elements {
            self.elements[element.part.index()].push(element);
            self.count += 1;
        }
    }
}

/// The whole disk: the guest range of a field in the header.
pub const EVERYTHING: Range<u64> = 0..u64::MAX;
/// An empty guest range.
pub(in crate::formats) const NOTHING: Range<u64> = 0..0;

/// A field or an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The part that the element belongs to.
    pub part: Part,
    /// The field's name in the specification. An entry has no name, except for those of sector bitmaps.
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

/// The properties that the fields of a structure share.
#[derive(Clone, Copy, Debug)]
pub(in crate::formats) struct FieldGroup {
    /// The part that they belong to.
    pub part: Part,
    /// The offset of the structure.
    pub start: HostOffset,
    /// The order of the bytes.
    pub order: ByteOrder,
    /// The unit of offsets.
    pub unit: OffsetUnit,
    /// The checksum over the structure.
    pub seal: Option<Seal>,
}

impl FieldGroup {
    /// Returns the group of a structure without a checksum.
    pub fn new(part: Part, start: HostOffset, order: ByteOrder, unit: OffsetUnit) -> Self {
        Self { part, start, order, unit, seal: None }
    }

    /// Returns the fields of the structure.
    pub fn elements(
        self,
        fields: impl IntoIterator<Item = &'static StructureField>,
    ) -> impl Iterator<Item = Element> {
        fields.into_iter().map(move |field| self.element(field))
    }

    fn element(self, field: &'static StructureField) -> Element {
        let guest = if field.maps { EVERYTHING } else { NOTHING };
        let place = self.start + field.at as u64;
        // A field is shorter than 9 bytes.
        let width_bytes = field.width_bytes as u8;
        let element = Element::field(self.part, field.name, place, width_bytes, guest);
        // A checksum that is changed must stay wrong.
        let seal = self.seal.filter(|seal| seal.place() != place);
        Element { order: self.order, unit: self.unit, seal, ..element }
    }
}
