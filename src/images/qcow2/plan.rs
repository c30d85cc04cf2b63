//! The choices of a program about an image and its header: the settings that it fixes before its first operation, the
//! form of the header, and the names of other files, which the caller chooses.

use crate::disk::image_format::ImageFormat;
use crate::formats::qcow2::geometry::{Geometry, Version};
use crate::images::content::entropy::Entropy;
use crate::images::format::file_plan::FilePlan;

use super::refcounts::RefcountPlacement;
use super::state::GivenString;

/// The size of the largest disk: whole sectors, less than 2^63 bytes.
pub const MAX_SIZE_BYTES: u64 = (1 << 63) - 512;

/// The settings that a program fixes before its first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// Version, cluster size, refcount width, extended L2 and compression type.
    pub geometry: Geometry,
    /// The size of the disk as the header stores it.
    pub size_bytes: u64,
    /// The other parts of the header.
    pub header: HeaderOptions,
    /// The form of the header, if the program selects one.
    pub style: Option<HeaderStyle>,
    /// The body of the first unknown extension of that form, if the program gives it.
    pub extension_body: Option<GivenString>,
    /// The backing file.
    pub backing: Option<BackingPlan>,
    /// The external data file.
    pub data_file: Option<DataFilePlan>,
    /// The placement of the refcount structures.
    pub refcounts: RefcountPlacement,
    /// The seed of all random placement.
    pub rng_seed: u64,
    /// The file: qcow2, or another format that follows the decisions of this builder.
    pub file: FilePlan,
}

impl ImagePlan {
    /// Returns the size of the disk in whole sectors, as readers see it.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes & !511
    }

    /// Reports whether the image has an external data file that is a raw image of the disk.
    pub(super) fn has_raw_data_file(&self) -> bool {
        self.data_file.is_some_and(|data_file| data_file.raw)
    }

    /// Reports whether the image is meant to have the dirty bit.
    pub(super) fn is_dirty(&self) -> bool {
        self.has(HeaderFlags::DIRTY) || self.has(HeaderFlags::OUT_OF_DATE)
    }

    /// Reports whether the image is meant to have the bit for lazy refcounts.
    pub(super) fn has_lazy_refcounts(&self) -> bool {
        self.header.lazy_refcounts || self.has(HeaderFlags::OUT_OF_DATE)
    }

    /// Reports whether an extension is meant to name the format of the backing file.
    pub(super) fn names_backing_format(&self) -> bool {
        self.backing.is_some_and(|backing| match backing.names_format {
            NamesFormat::Never => false,
            NamesFormat::Usually => !self.has(HeaderFlags::NO_FORMAT),
            NamesFormat::Always => true,
        })
    }

    /// Creates a plain image in one file. Clusters are appended to its end.
    pub fn new(geometry: Geometry, size_bytes: u64) -> Self {
        Self {
            geometry,
            size_bytes,
            header: HeaderOptions::default(),
            style: None,
            extension_body: None,
            backing: None,
            data_file: None,
            refcounts: RefcountPlacement::default(),
            rng_seed: 0,
            file: FilePlan::default(),
        }
    }

    /// Reports whether the program sets this flag. Feature bits and unknown fields need version 3.
    pub(super) fn has(&self, flag: HeaderFlags) -> bool {
        const ANY_VERSION: HeaderFlags = HeaderFlags::FEATURE_NAMES
            .with(HeaderFlags::UNKNOWN_NAMES)
            .with(HeaderFlags::JUNK)
            .with(HeaderFlags::NO_END)
            .with(HeaderFlags::NAME_AT_END)
            .with(HeaderFlags::EMPTY_NAME)
            .with(HeaderFlags::NO_FORMAT);
        let possible = self.geometry.version == Version::V3 || ANY_VERSION.has(flag);
        possible && self.style.is_some_and(|style| style.flags.has(flag))
    }
}

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
