//! The header of an image: its fixed part, the fields that no reader knows, the extensions, and the
//! name of the backing file.
//!
//! All of it lies in the first cluster, which may have 512 bytes. Where not all of what is wanted fits,
//! the layout is cut to what does, in this order, each step as far as it must go and no further:
//! unknown extensions are left out, the last first; then the feature name table's rows of features
//! that nobody knows; then the whole table; then the header becomes shorter; then the backing file's
//! name goes right behind the extensions. What a reader needs (names, formats, directories) is never
//! left out while the rest still can be: see [`Builder::check_names`].

mod extensions;
mod layout;

use crate::entropy::Entropy;
use crate::image::Image;
use crate::qcow2::header::{
    AUTOCLEAR_RAW_DATA_FILE, COMPATIBLE_LAZY_REFCOUNTS, Compression, Header,
    INCOMPATIBLE_COMPRESSION, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DATA_FILE, INCOMPATIBLE_DIRTY,
    INCOMPATIBLE_EXTENDED_L2, ImageFormat, PARSED_BYTES, Version,
};
use crate::qcow2::units::HostOffset;

use super::Builder;
use super::refcounts::Refcounts;

use layout::Layout;

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
    pub(super) fn entropy(&self) -> Entropy {
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

/// What other files are called: where an image goes decides that, not the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// The backing file.
    pub backing: &'a [u8],
    /// The external data file.
    pub data_file: &'a [u8],
}

impl Default for Names<'_> {
    fn default() -> Self {
        Self { backing: b"backing", data_file: b"data" }
    }
}

/// Names of files do not fit into an image's first cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesTooLong {
    /// The format allows no name of that length.
    #[error("the name of the backing file has {length_bytes} bytes, at most 1023 are allowed")]
    Backing {
        /// Its length.
        length_bytes: u64,
    },
    /// The first cluster is too small.
    #[error(
        "the names of other files take {needed_bytes} bytes of the first cluster, which has room for {room_bytes}"
    )]
    Header {
        /// What they need.
        needed_bytes: u64,
        /// What there is behind the shortest header.
        room_bytes: u64,
    },
}

/// How many bytes of what nobody looks at are written at each end of it: a header may be as long as a
/// cluster.
const JUNK_BYTES: u64 = 24;

impl Builder {
    /// Decides how the header is written from now on; of a version 2 header there is less to decide.
    /// False where it was to be written like that already.
    pub fn set_header(&mut self, style: HeaderStyle) -> bool {
        self.plan.style.replace(style) != Some(style)
    }

    /// Whether an image with these names can be built. One that cannot has no names.
    ///
    /// # Errors
    /// They do not fit, with everything left out that can be.
    pub fn check_names(&self, names: &Names) -> Result<(), NamesTooLong> {
        Layout::new(&self.plan, self.bitmaps_extension(), names).map(drop)
    }

    pub(super) fn write_header(&self, names: &Names, image: &mut Image, refcounts: &Refcounts) {
        let nameless = Names { backing: b"", data_file: b"" };
        let (names, layout) = match Layout::new(&self.plan, self.bitmaps_extension(), names) {
            Ok(layout) => (names, layout),
            // What is left is less than 300 bytes.
            Err(_) => (
                &nameless,
                Layout::new(&self.plan, self.bitmaps_extension(), &nameless).unwrap_or_default(),
            ),
        };
        let header = self.header(refcounts, &layout, names);
        let length = u64::from(layout.header_bytes);
        let known = length.min(PARSED_BYTES as u64);
        header.write(image.place(HostOffset::ZERO, known as usize));
        if self.plan.has(HeaderFlags::JUNK) && length > known {
            let front = (length - known).min(JUNK_BYTES);
            let back = (length - known - front).min(JUNK_BYTES);
            image.place(HostOffset::new(known), front as usize).fill(0x5A);
            if back > 0 {
                image.place(HostOffset::new(length - back), back as usize).fill(0x5A);
            }
        }
        let mut at = HostOffset::new(length);
        for extension in layout.extensions() {
            at = extension.write(image, at, names, self.plan.has(HeaderFlags::JUNK));
        }
        if layout.end {
            image.place(at, 8);
        }
        if layout.name_bytes > 0 {
            image.write(HostOffset::new(layout.name_offset), names.backing);
        }
    }

    fn header(&self, refcounts: &Refcounts, layout: &Layout, names: &Names) -> Header {
        let Self { plan, active, .. } = self;
        let geometry = plan.geometry;
        let (table, table_clusters) = refcounts.table();
        let [incompatible, compatible, autoclear] = self.features();
        let backing_file_bytes = if layout.name_bytes > 0 { names.backing.len() } else { 0 };
        Header {
            geometry,
            size_bytes: plan.size_bytes,
            l1_entries: u32::try_from(active.entries).unwrap_or(u32::MAX),
            l1_offset: self.l1_offset(active),
            refcount_table_offset: geometry.cluster_size.host_offset(table),
            refcount_table_clusters: u32::try_from(table_clusters).unwrap_or(u32::MAX),
            snapshots: self.snapshot_count() as u32,
            snapshots_offset: self.snapshot_table(),
            backing_file_offset: HostOffset::new(layout.name_offset),
            backing_file_bytes: u32::try_from(backing_file_bytes).unwrap_or(u32::MAX),
            incompatible,
            compatible,
            autoclear,
            header_length_bytes: layout.header_bytes,
        }
    }

    /// The incompatible, compatible and autoclear feature bits.
    fn features(&self) -> [u64; 3] {
        let Self { plan, .. } = self;
        let bit = |there: bool, bit: u64| if there { bit } else { 0 };
        let stale = plan.has(HeaderFlags::OUT_OF_DATE);
        let zstd = plan.geometry.compression == Compression::Zstd;
        let incompatible = bit(zstd, INCOMPATIBLE_COMPRESSION)
            | bit(plan.geometry.extended_l2, INCOMPATIBLE_EXTENDED_L2)
            | bit(plan.data_file.is_some(), INCOMPATIBLE_DATA_FILE)
            | bit(stale || plan.has(HeaderFlags::DIRTY), INCOMPATIBLE_DIRTY)
            | bit(plan.has(HeaderFlags::CORRUPT), INCOMPATIBLE_CORRUPT);
        let mut entropy = plan.style.unwrap_or_default().entropy();
        // Those that nobody knows: the lowest, the highest, and any between.
        let mut unknown = |lowest: u32| entropy.next_u64() << lowest | 1 << lowest | 1 << 63;
        let compatible = bit(plan.header.lazy_refcounts || stale, COMPATIBLE_LAZY_REFCOUNTS)
            | bit(plan.has(HeaderFlags::COMPATIBLE_BITS), unknown(1));
        let autoclear = bit(plan.has_raw_data_file(), AUTOCLEAR_RAW_DATA_FILE)
            | bit(plan.has(HeaderFlags::AUTOCLEAR_BITS), unknown(2))
            | self.bitmaps_autoclear();
        [incompatible, compatible, autoclear]
    }
}

impl super::Plan {
    /// Whether the program wants this of the header. Feature bits and unknown fields need version 3.
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
