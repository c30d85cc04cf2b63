//! The declaration of the fields of an on-disk structure.

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

    /// Returns the big-endian number in a structure; 0 if the structure ends before it.
    #[inline]
    pub fn big(self, structure: &[u8]) -> u64 {
        self.bytes_of(structure).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Returns the big-endian number of a field of up to 4 bytes.
    #[inline]
    pub fn big_32(self, structure: &[u8]) -> u32 {
        u32::try_from(self.big(structure)).unwrap_or(u32::MAX)
    }

    /// Returns the big-endian number of a field of up to 2 bytes.
    #[inline]
    pub fn big_16(self, structure: &[u8]) -> u16 {
        u16::try_from(self.big(structure)).unwrap_or(u16::MAX)
    }

    /// Returns the offset of the first byte behind the field, in bytes.
    pub const fn end(self) -> usize {
        self.at + self.width_bytes
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
            pub const $constant: $crate::formats::structure_field::StructureField =
                $crate::formats::structure_field::StructureField {
                    name: $name,
                    at: $at,
                    width_bytes: $width,
                    maps: !stringify!($($maps)?).is_empty(),
                };
        )*
        /// All fields, in order.
        pub const FIELDS: &[$crate::formats::structure_field::StructureField] = &[$($constant),*];
    };
}
pub(in crate::formats) use fields;
