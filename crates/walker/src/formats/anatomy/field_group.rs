//! The fields of a structure.

use crate::disk::offsets::HostOffset;
use crate::formats::structure_field::StructureField;

use super::element::{ByteOrder, EVERYTHING, Element, NOTHING, OffsetUnit};
use super::part::Part;
use super::seal::Seal;

/// A field: its name in the specification, its offset in the structure, its width in bytes, and whether the mapping
/// depends on it.
pub(in crate::formats) type FieldLayout = (&'static str, u64, u8, bool);

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

    /// Returns the declared fields of the structure.
    pub fn declared(
        self,
        fields: impl IntoIterator<Item = &'static StructureField>,
    ) -> impl Iterator<Item = Element> {
        fields.into_iter().map(move |field| {
            // A structure is shorter than 2^16 bytes, and a field than 9.
            self.element(field.name, field.at as u64, field.width_bytes as u8, field.maps)
        })
    }

    /// Returns the fields of the structure.
    pub fn elements(self, fields: &'static [FieldLayout]) -> impl Iterator<Item = Element> {
        fields.iter().map(move |(name, at, width, maps)| self.element(name, *at, *width, *maps))
    }

    fn element(self, name: &'static str, at: u64, width_bytes: u8, maps: bool) -> Element {
        let guest = if maps { EVERYTHING } else { NOTHING };
        let place = self.start + at;
        let field = Element::field(self.part, name, place, width_bytes, guest);
        // A checksum that is changed must stay wrong.
        let seal = self.seal.filter(|seal| seal.place() != place);
        Element { order: self.order, unit: self.unit, seal, ..field }
    }
}
