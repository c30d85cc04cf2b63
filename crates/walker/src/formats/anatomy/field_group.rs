//! The fields of a structure.

use crate::disk::offsets::HostOffset;

use super::element::{ByteOrder, EVERYTHING, Element, NOTHING, OffsetUnit};
use super::part::Part;
use super::seal::Seal;

/// The declaration of a field of a structure: the only place that knows its offset. Decoding, anatomy, the build and
/// the rules use it, each with code of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StructureField {
    /// The name in the specification.
    pub name: &'static str,
    /// The offset in the structure, in bytes.
    pub at: usize,
    /// The number of bytes: 1 to 8.
    pub width_bytes: usize,
    /// The mapping of the disk depends on the field.
    pub maps: bool,
}

impl StructureField {
    /// Returns the bytes of the field in a structure; none if the structure ends before it.
    fn bytes_of(self, structure: &[u8]) -> &[u8] {
        structure.get(self.at..self.at.saturating_add(self.width_bytes)).unwrap_or_default()
    }

    /// Returns the little-endian number in a structure; 0 if the structure ends before it.
    pub fn little(self, structure: &[u8]) -> u64 {
        self.bytes_of(structure).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Returns the little-endian number of a field of up to 4 bytes.
    pub fn little_32(self, structure: &[u8]) -> u32 {
        u32::try_from(self.little(structure)).unwrap_or(u32::MAX)
    }
}

/// Declares the fields of a structure, each as a constant, and all of them in order as `FIELDS`. The mapping depends on
/// a field with the word `maps`.
macro_rules! fields {
    ($($constant:ident = $name:literal at $at:literal, $width:literal bytes $(, $maps:ident)?;)*) => {
        $(
            #[doc = concat!("The field `", $name, "`.")]
            pub const $constant: $crate::formats::anatomy::StructureField =
                $crate::formats::anatomy::StructureField {
                    name: $name,
                    at: $at,
                    width_bytes: $width,
                    maps: !stringify!($($maps)?).is_empty(),
                };
        )*
        /// All fields, in order.
        pub const FIELDS: &[$crate::formats::anatomy::StructureField] = &[$($constant),*];
    };
}
pub(in crate::formats) use fields;

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
    pub fn declared(self, fields: &'static [StructureField]) -> impl Iterator<Item = Element> {
        fields.iter().map(move |field| {
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
