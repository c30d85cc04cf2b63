//! What a program decides about a header.

use crate::formats::qcow2::geometry::ImageFormat;
use crate::images::entropy::Entropy;

/// What the header says beyond the geometry. A version 2 header has room for none of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderOptions {
    /// The compatible feature bit; the counts are kept up to date all the same.
    pub lazy_refcounts: bool,
    /// The compression type field is there also where it says zlib.
    pub compression_field: bool,
    /// A feature name table.
    pub feature_names: bool,
    /// An extension of a type that no reader knows.
    pub unknown_extension: bool,
}

/// How the header is written, where a program decides that: on top of what [`HeaderOptions`] say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderStyle {
    /// How long its fixed part is.
    pub length: HeaderLength,
    /// The number of a permutation of the extensions; 0 for the order in which they are listed.
    pub order: u8,
    /// How many extensions of types that no reader knows, at most [`HeaderStyle::MAX_UNKNOWN`].
    pub unknown: u8,
    /// The length of the first of them; each next one is 11 bytes longer, modulo 256.
    pub unknown_bytes: u8,
    /// Everything that is there or not.
    pub flags: HeaderFlags,
}

impl HeaderStyle {
    /// The most extensions of types that no reader knows.
    pub const MAX_UNKNOWN: u8 = 7;

    /// Numbers that are this style's own.
    pub fn entropy(&self) -> Entropy {
        let Self { length, order, unknown, unknown_bytes, flags } = *self;
        let length = match length {
            HeaderLength::Shortest => 0,
            HeaderLength::Above(steps) => u64::from(steps) * 2 + 1,
            HeaderLength::Below(steps) => u64::from(steps) * 2 + 2,
        };
        let rest = u64::from(u32::from_be_bytes([0, order, unknown, unknown_bytes]));
        Entropy::new(length << 40 | u64::from(flags.0) << 24 | rest)
    }
}

/// How long the fixed part of a version 3 header is; version 2 has no choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderLength {
    /// As short as the fields that are wanted.
    #[default]
    Shortest,
    /// So many bytes above 104, modulo what the first cluster has room for.
    Above(u16),
    /// So many bytes below the cluster size, modulo the same.
    Below(u16),
}

/// What is there in a header or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderFlags(pub(crate) u16);

impl HeaderFlags {
    /// The dirty bit. The counts are up to date all the same.
    pub const DIRTY: Self = Self(1);
    /// The corrupt bit. Nothing is.
    pub const CORRUPT: Self = Self(1 << 1);
    /// Some counts are out of date, as lazy refcounts leave them; the dirty bit and the one for lazy
    /// refcounts say so.
    pub const OUT_OF_DATE: Self = Self(1 << 2);
    /// Compatible feature bits that nobody knows.
    pub const COMPATIBLE_BITS: Self = Self(1 << 3);
    /// Autoclear feature bits that nobody knows.
    pub const AUTOCLEAR_BITS: Self = Self(1 << 4);
    /// A feature name table.
    pub const FEATURE_NAMES: Self = Self(1 << 5);
    /// A feature name table with features that nobody knows.
    pub const UNKNOWN_NAMES: Self = Self(1 << 6);
    /// What nobody looks at is not zero: unknown header fields, the padding of unknown extensions.
    pub const JUNK: Self = Self(1 << 7);
    /// Nothing marks the end of the extensions: they fill their area, or the backing file's name cuts
    /// it off.
    pub const NO_END: Self = Self(1 << 8);
    /// The backing file's name lies at the very end of the first cluster, not behind the extensions.
    pub const NAME_AT_END: Self = Self(1 << 9);
    /// Without a backing file there is a name of no bytes, which is none.
    pub const EMPTY_NAME: Self = Self(1 << 10);
    /// No extension says the format of the backing file: a reader must guess.
    pub const NO_FORMAT: Self = Self(1 << 11);
    /// All of them, as their words in the order of the bits.
    pub(crate) const WORDS: [&str; 12] = [
        "dirty",
        "corrupt",
        "out_of_date",
        "compatible_bits",
        "autoclear_bits",
        "feature_names",
        "unknown_names",
        "junk",
        "no_end",
        "name_at_end",
        "empty_name",
        "no_format",
    ];

    /// Whether all of `other` are there.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The backing file of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingPlan {
    /// Its format.
    pub format: ImageFormat,
    /// Whether an extension says so; a reader must guess where none does.
    pub told: bool,
}

/// The external data file of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataFilePlan {
    /// The feature bit for data files that are the disk, byte for byte.
    pub raw: bool,
}
