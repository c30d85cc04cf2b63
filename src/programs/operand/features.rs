//! Features of an image, in the bits of one byte.

use std::fmt;

use bytes::{Buf, BufMut};

use super::encoding::{Operand, parse_bits, print_bits};
use super::kind::OperandKind;

/// Optional features of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageFeatures(u8);

impl ImageFeatures {
    /// L2 entries with subcluster bitmaps.
    pub const EXTENDED_L2: Self = Self(1);
    /// Compression by zstd.
    pub const ZSTD: Self = Self(2);
    /// The lazy refcounts bit.
    pub const LAZY_REFCOUNTS: Self = Self(4);
    /// The compression type field, present even if the type is zlib.
    pub const COMPRESSION_FIELD: Self = Self(8);
    /// The feature name table.
    pub const FEATURE_NAMES: Self = Self(16);
    /// A header extension of an unknown type.
    pub const UNKNOWN_EXTENSION: Self = Self(32);
    const NAMES: [&'static str; 6] = [
        "extended_l2",
        "zstd",
        "lazy_refcounts",
        "compression_field",
        "feature_names",
        "unknown_extension",
    ];
    const ALL: u8 = 63;

    /// Reports whether all features of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of `self` and `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the features of `self` that `other` lacks.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl Operand for ImageFeatures {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "none, or names with commas: extended_l2, zstd, lazy_refcounts, \
                                    compression_field, feature_names, unknown_extension";
    const KIND: OperandKind = OperandKind::Other;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u8() & Self::ALL)
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_bits(u16::from(self.0), &Self::NAMES, f)
    }
    fn parse(text: &str) -> Option<Self> {
        Some(Self(u8::try_from(parse_bits(text, &Self::NAMES)?).ok()?))
    }
}
