//! The choices about a header: those of a program, and the names of other files, which the caller chooses.

use crate::disk::image_format::ImageFormat;
use crate::images::content::entropy::Entropy;

/// The parts of the header beyond the geometry. A version 2 header has none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderOptions {
    /// The compatible feature bit for lazy refcounts. The counts are up to date all the same.
    pub lazy_refcounts: bool,
    /// The header contains the compression type field even if the type is zlib.
    pub compression_field: bool,
    /// The header has a feature name table.
    pub feature_names: bool,
    /// The header has an extension of an unknown type.
    pub unknown_extension: bool,
}

/// The form of the header, on top of [`HeaderOptions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderStyle {
    /// The length of the fixed part.
    pub length: HeaderLength,
    /// The number of a permutation of the extensions. 0 keeps their order.
    pub order: u8,
    /// The number of unknown extensions, at most [`HeaderStyle::MAX_UNKNOWN`].
    pub unknown: u8,
    /// The length of the first unknown extension. Each next one is 11 bytes longer, modulo 256.
    pub unknown_bytes: u8,
    /// The optional parts.
    pub flags: HeaderFlags,
}

impl HeaderStyle {
    /// The largest number of unknown extensions.
    pub const MAX_UNKNOWN: u8 = 7;

    /// Returns a stream of random numbers for this style.
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

/// The length of the fixed part of a version 3 header. A version 2 header has a fixed length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderLength {
    /// As short as the requested fields allow.
    #[default]
    Shortest,
    /// This many bytes above 104, modulo the number of possible lengths.
    Above(u16),
    /// This many bytes below the cluster size, modulo the same number.
    Below(u16),
}

/// The optional parts of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderFlags(pub(crate) u16);

impl HeaderFlags {
    /// The dirty bit. The counts are up to date all the same.
    pub const DIRTY: Self = Self(1);
    /// The corrupt bit. The image is sound all the same.
    pub const CORRUPT: Self = Self(1 << 1);
    /// Some counts are out of date, as lazy refcounts leave them. The dirty bit and the bit for lazy refcounts are
    /// set.
    pub const OUT_OF_DATE: Self = Self(1 << 2);
    /// Unknown compatible feature bits.
    pub const COMPATIBLE_BITS: Self = Self(1 << 3);
    /// Unknown autoclear feature bits.
    pub const AUTOCLEAR_BITS: Self = Self(1 << 4);
    /// A feature name table.
    pub const FEATURE_NAMES: Self = Self(1 << 5);
    /// A feature name table with unknown features.
    pub const UNKNOWN_NAMES: Self = Self(1 << 6);
    /// Bytes that readers ignore are not zero: unknown header fields, and the padding of unknown extensions.
    pub const JUNK: Self = Self(1 << 7);
    /// No extension marks the end: the extensions fill their area, or the backing file's name ends it.
    pub const NO_END: Self = Self(1 << 8);
    /// The backing file's name lies at the very end of the first cluster instead of right after the extensions.
    pub const NAME_AT_END: Self = Self(1 << 9);
    /// An image without a backing file has a name of no bytes, which readers treat as no name.
    pub const EMPTY_NAME: Self = Self(1 << 10);
    /// No extension names the format of the backing file, so a reader must probe it.
    pub const NO_FORMAT: Self = Self(1 << 11);
    /// The words of all flags, in the order of the bits.
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

    /// Reports whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these flags and those of `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the flags of `self` that `other` lacks.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The backing file of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackingPlan {
    /// The format of the backing file.
    pub format: ImageFormat,
    /// When an extension names the format. If none does, a reader must probe it.
    pub names_format: NamesFormat,
}

/// When an image names the format of its backing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamesFormat {
    /// Never.
    #[default]
    Never,
    /// Unless the header leaves it out.
    Usually,
    /// Always: a reader that probes the file finds another format.
    Always,
}

/// The external data file of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataFilePlan {
    /// The data file is a raw image of the disk, and the feature bit for that is set.
    pub raw: bool,
}

/// The names of other files. The caller chooses them when it writes the image; the program does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// The name of the backing file.
    pub backing: &'a [u8],
    /// The name of the external data file.
    pub data_file: &'a [u8],
}

impl Default for Names<'_> {
    fn default() -> Self {
        Self { backing: b"backing", data_file: b"data" }
    }
}

/// The names of files do not fit into an image's first cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesTooLong {
    /// The format does not allow a name of this length.
    #[error("the name of the backing file has {length_bytes} bytes, at most 1023 are allowed")]
    Backing {
        /// The length of the name.
        length_bytes: u64,
    },
    /// The first cluster is too small.
    #[error(
        "the names of other files take {needed_bytes} bytes of the first cluster, which has room for {room_bytes}"
    )]
    Header {
        /// The bytes that the names and necessary extensions need.
        needed_bytes: u64,
        /// The bytes after the shortest header.
        room_bytes: u64,
    },
}
