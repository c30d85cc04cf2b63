//! The anatomy of an image: the offset and the length of each field and each table entry, and the guest range that it
//! maps. It is read from the bytes alone, so attacks can change everything that a reader reads. Each format has a file
//! of its own that reads its images.

mod element;
mod field_group;
mod part;
mod seal;

use std::ops::{ControlFlow, Range};

use crate::disk::clusters::ClusterSize;
use crate::disk::limits::MAX_ELEMENTS;
use crate::disk::offsets::HostOffset;
use crate::formats::vmdk::tables::Tables;

pub(in crate::formats) use element::NOTHING;
pub use element::{ByteOrder, EVERYTHING, Element, OffsetUnit};
pub(in crate::formats) use field_group::{FieldGroup, FieldLayout};
pub use part::Part;
pub use seal::{Seal, SealKind};

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
    /// The elements of each part, in the order in which they were found. Many anatomies live on a stack.
    elements: Box<[Vec<Element>; Part::ALL.len()]>,
    count: usize,
    pub(super) cluster_size: Option<ClusterSize>,
    structures: Vec<Structure>,
    /// The tables of a VMDK image.
    pub(super) grain_tables: Option<Tables>,
    /// The tables of the active disk, while an image of qcow2 is read.
    pub(super) active: Vec<HostOffset>,
}

impl Anatomy {
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
    pub fn elements(&self) -> impl Iterator<Item = &Element> {
        self.elements.iter().flatten()
    }

    /// Returns the number of all elements, at most `MAX_ELEMENTS`.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the tables of a VMDK image, which give its entries their meaning.
    pub fn grain_tables(&self) -> Option<&Tables> {
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
    pub(super) fn add_fields(&mut self, group: FieldGroup, fields: &'static [FieldLayout]) {
        group.elements(fields).for_each(|element| self.push(element));
    }

    /// Breaks if there is no room for more elements.
    pub(super) fn room(&self) -> ControlFlow<()> {
        match self.count < MAX_ELEMENTS {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }

    pub(super) fn push(&mut self, element: Element) {
        if self.count < MAX_ELEMENTS {
            self.elements[element.part.index()].push(element);
            self.count += 1;
        }
    }
}
