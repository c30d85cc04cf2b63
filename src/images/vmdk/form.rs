//! The variety of VMDK images, which the bits of a program's `form` select. If all bits are 0, the image has the layout
//! of those that QEMU writes.

use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::formats::vmdk::constants::{ESX_TABLE_ENTRIES, SECTOR_BYTES, STREAM_FOOTER_BYTES};
use crate::images::format::file_plan::{
    BlockPlaces, ExtentForm, ExtentPlans, FilePlan, TableReach,
};

use super::sesparse;

/// The variety of a VMDK image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmdkForm {
    bits: u16,
    reach: TableReach,
}

/// The layout of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A sparse extent with a descriptor in it.
    Sparse {
        /// A second header at the end of the file states the place of the directory.
        has_footer: bool,
        /// The storage of grains.
        storage: GrainStorage,
    },
    /// A sparse extent as ESX writes it.
    Cowd,
}

/// The storage of grains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrainStorage {
    /// As they are.
    Plain,
    /// As zlib streams.
    Compressed,
    /// As zlib streams behind markers. Markers precede tables behind the grains, too.
    Marked,
}

/// The largest numbers of grains, and of entries in a directory. Cost follows the tables that an image has. A large
/// disk has up to 1 TiB in the usual grains of 64 KiB.
const SMALL: Most = Most { grains: 1 << 14, directory_entries: 1 << 12 };
const LARGE: Most = Most { grains: 1 << 24, directory_entries: 1 << 17 };
/// The largest grain that is stored compressed. Readers inflate a whole grain to read any byte of it.
pub const MAX_COMPRESSED_BITS: u32 = 16;
/// The sectors before the tables or the grains: the header, and as many for the descriptor as QEMU reserves.
const HEAD_SECTORS: u64 = 1 + DESCRIPTOR_SECTORS;
/// The sectors of a descriptor.
pub const DESCRIPTOR_SECTORS: u64 = 20;
/// The largest number of unused sectors before the tables, and before the grains.
const MAX_GAP_SECTORS: u64 = 3;
/// The bytes of an entry.
pub const ENTRY_BYTES: u64 = 4;

/// The numbers of entries in a table. In the first two forms, the directory names all tables that the disk needs, as
/// in the images that QEMU writes. In the others it names only tables with an entry.
const TABLE_SIZE_BITS: u32 = 3;
const TABLE_ENTRIES: [u64; 8] = [512, 511, 512, 511, 16, 3, 1, 64];
/// The number of forms whose directory names all tables.
const WITH_ALL_TABLES: u64 = 2;
/// The first of the two bits of the version, and the versions that they select.
const VERSION_AT: u32 = 8;
const VERSIONS: [u32; 4] = [1, 2, COMPRESSED_VERSION, 1];
/// The version of extents with compressed grains.
pub const COMPRESSED_VERSION: u32 = 3;
/// The bit of zero grains.
const ZERO_GRAINS_BIT: u32 = 10;
/// Log2 of the largest grain that is smaller than the specification demands.
pub const MAX_SMALL_GRAIN_BITS: u32 = 12;
/// The bits that select the kind. The highest one selects compressed grains.
const KIND_AT: u32 = 3;
const KIND_BITS: u32 = 3;
/// The bits of plain kinds: with grains as they are, and with compressed ones behind markers.
const PLAIN_KIND: u16 = 0;
const COMPRESSED_KIND: u16 = 4;
/// The bit that a kind has if its compressed grains lack markers, or if its plain grains have a footer.
const WITHOUT_MARKERS_BIT: u16 = 2;
/// The bits of the kind [`Kind::Cowd`].
const COWD_KIND: u16 = 3;

/// The largest tables of an extent.
#[derive(Clone, Copy, Debug)]
struct Most {
    grains: u64,
    directory_entries: u64,
}

impl VmdkForm {
    /// Returns the variety that the bits of `form` select, with tables of this reach.
    pub const fn new(form: u16, reach: TableReach) -> Self {
        Self { bits: form, reach }
    }

    /// Returns the variety of a file.
    pub const fn of(file: &FilePlan) -> Self {
        Self::new(file.form, file.reach)
    }

    const fn most(self) -> Most {
        match self.reach {
            TableReach::Small => SMALL,
            TableReach::Large => LARGE,
        }
    }

    const fn bits(self, first: u32, count: u32) -> u64 {
        (self.bits >> first & ((1 << count) - 1)) as u64
    }

    /// Returns the bits that select the variety.
    pub const fn number(self) -> u16 {
        self.bits
    }

    /// Returns this variety, and then those that differ from it in the kind of the extent alone, the nearest first.
    pub fn of_kinds(self) -> impl Iterator<Item = Self> {
        let plainer = (self.bits(KIND_AT, KIND_BITS) as u16) & !WITHOUT_MARKERS_BIT;
        let others = [plainer, PLAIN_KIND, COMPRESSED_KIND, COWD_KIND];
        std::iter::once(self).chain(others.into_iter().map(move |kind| self.with_kind(kind)))
    }

    /// Returns this variety without zero grains.
    pub const fn without_zero_grains(self) -> Self {
        Self { bits: self.bits & !(1 << ZERO_GRAINS_BIT), ..self }
    }

    /// Returns this variety with the version of compressed extents.
    pub const fn of_compressed_version(self) -> Self {
        match self.version() < COMPRESSED_VERSION {
            true => Self { bits: self.bits & !(3 << VERSION_AT) | 2 << VERSION_AT, ..self },
            false => self,
        }
    }

    /// Returns this variety with tables of 512 entries, as the specification demands. The kind of the extent does not
    /// matter.
    pub const fn with_whole_tables(self) -> Self {
        match self.with_kind(PLAIN_KIND).has_short_tables() {
            true => Self { bits: self.bits & !((1 << TABLE_SIZE_BITS) - 1), ..self },
            false => self,
        }
    }

    /// Reports whether a table has fewer entries than the specification demands.
    pub const fn has_short_tables(self) -> bool {
        self.table_entries() < TABLE_ENTRIES[0]
    }

    const fn with_kind(self, kind: u16) -> Self {
        let others = self.bits & !(((1 << KIND_BITS) - 1) << KIND_AT);
        Self { bits: others | kind << KIND_AT, ..self }
    }

    /// Returns the layout.
    pub const fn kind(self) -> Kind {
        let (has_footer, storage) = match self.bits(KIND_AT, KIND_BITS) {
            0 | 1 => (false, GrainStorage::Plain),
            2 => (true, GrainStorage::Plain),
            // COWD_KIND.
            3 => return Kind::Cowd,
            4 => (true, GrainStorage::Marked),
            5 => (false, GrainStorage::Marked),
            6 => (true, GrainStorage::Compressed),
            _ => (false, GrainStorage::Compressed),
        };
        Kind::Sparse { has_footer, storage }
    }

    /// Returns the storage of grains.
    pub const fn storage(self) -> GrainStorage {
        match self.kind() {
            Kind::Sparse { storage, .. } => storage,
            Kind::Cowd => GrainStorage::Plain,
        }
    }

    /// Reports whether every grain is stored compressed.
    pub const fn is_compressed(self) -> bool {
        !matches!(self.storage(), GrainStorage::Plain)
    }

    /// Returns the number of entries in a table.
    pub const fn table_entries(self) -> u64 {
        match self.kind() {
            Kind::Sparse { .. } => TABLE_ENTRIES[self.bits(0, TABLE_SIZE_BITS) as usize],
            Kind::Cowd => ESX_TABLE_ENTRIES as u64,
        }
    }

    /// Reports whether a short directory names all tables that the disk needs. The many tables of a large disk are not
    /// named if each would cost a marker.
    pub const fn has_all_tables(self) -> bool {
        let are_many = matches!(self.reach, TableReach::Large) && self.table_marker_bytes() > 0;
        self.bits(0, TABLE_SIZE_BITS) < WITH_ALL_TABLES && !are_many
    }

    /// Reports whether there is a second directory, with tables of its own.
    pub const fn has_redundant_directory(self) -> bool {
        matches!(self.kind(), Kind::Sparse { .. }) && self.bits(6, 1) == 0
    }

    /// Reports whether the directories and their tables lie behind the grains.
    pub const fn has_tables_at_end(self) -> bool {
        self.bits(7, 1) != 0
    }

    /// Returns the version in the header. Images with zero grains have version 2 or a later one.
    pub const fn version(self) -> u32 {
        let version = VERSIONS[self.bits(VERSION_AT, 2) as usize];
        if self.has_zero_grains() && version < 2 { 2 } else { version }
    }

    /// Reports whether an entry can stand for a grain of zeros.
    pub const fn has_zero_grains(self) -> bool {
        matches!(self.kind(), Kind::Sparse { .. }) && self.bits(ZERO_GRAINS_BIT, 1) != 0
    }

    /// Returns the number of the disk's adapter.
    pub const fn adapter(self) -> usize {
        self.bits(11, 2) as usize
    }

    /// Reports whether the descriptor has lines that no reader needs, and another identity.
    pub const fn has_long_descriptor(self) -> bool {
        self.bits(13, 1) != 0
    }

    /// Returns the number of unused bytes before the tables, and before the grains.
    const fn gap_bytes(self) -> u64 {
        self.bits(14, 2) * SECTOR_BYTES
    }

    /// Returns the number of bytes of the marker before each table and each directory; 0 if they have none.
    pub const fn table_marker_bytes(self) -> u64 {
        match self.storage() {
            GrainStorage::Marked if self.has_tables_at_end() => SECTOR_BYTES,
            _ => 0,
        }
    }

    /// Returns the distance from a table to the next: that of whole sectors.
    pub const fn table_stride_bytes(self) -> u64 {
        self.table_marker_bytes() + padded(self.table_entries() * ENTRY_BYTES)
    }

    /// Returns the number of bytes of a directory, with its marker.
    pub const fn directory_bytes(self, entries: u64) -> u64 {
        self.table_marker_bytes() + padded(entries * ENTRY_BYTES)
    }

    /// Returns the largest number of entries that a directory has.
    pub const fn max_directory_entries(self) -> u64 {
        self.max_grains().div_ceil(self.table_entries())
    }

    const fn max_grains(self) -> u64 {
        let most = self.most();
        let named = most.directory_entries * self.table_entries();
        if named < most.grains { named } else { most.grains }
    }

    /// Returns the offset of the first directory or its first table, if the grains end at `grains_end`.
    pub const fn tables_offset(self, grains_end: u64) -> u64 {
        match self.has_tables_at_end() {
            true => grains_end + self.gap_bytes(),
            false => HEAD_SECTORS * SECTOR_BYTES + self.gap_bytes(),
        }
    }

    /// Returns the length of the largest directories with their tables.
    const fn max_tables_bytes(self) -> u64 {
        let entries = self.max_directory_entries();
        let copy = self.directory_bytes(entries) + entries * self.table_stride_bytes();
        if self.has_redundant_directory() { 2 * copy } else { copy }
    }

    /// Returns the variety of an extent beside a descriptor. It has no footer: readers look for one at the end of the
    /// descriptor.
    pub const fn of_extent(self, extent: ExtentForm) -> Self {
        match extent {
            ExtentForm::Cowd => self.with_kind(COWD_KIND),
            _ => self.with_kind(PLAIN_KIND),
        }
    }

    /// Returns the variety of images with grains of this size: large grains are never compressed.
    pub const fn with_grains_of(self, grain: ClusterSize) -> Self {
        match grain.bits() > MAX_COMPRESSED_BITS && self.is_compressed() {
            true => Self { bits: self.bits & !(1 << (KIND_AT + KIND_BITS - 1)), ..self },
            false => self,
        }
    }

    /// Returns the plan of an image in one file.
    pub fn plan(self, grain: ClusterSize) -> FilePlan {
        let form = self.with_grains_of(grain);
        FilePlan {
            format: ImageFormat::Vmdk,
            form: form.bits,
            reach: form.reach,
            places: Some(form.places(grain, form.first_grain_bytes())),
            ..FilePlan::default()
        }
    }

    /// Returns the plan of an image whose data lie in other files. All of them have room for the tables of every kind.
    pub fn plan_of_extents(self, grain: ClusterSize, extents: ExtentPlans) -> FilePlan {
        let plain = self.of_extent(ExtentForm::Sparse);
        let cowd = self.of_extent(ExtentForm::Cowd);
        let first_bytes = [plain.first_grain_bytes(), cowd.first_grain_bytes()]
            .into_iter()
            .fold(sesparse::first_grain_bytes(self.most().grains, grain), u64::max);
        let of_cowd = cowd.places(grain, first_bytes);
        let guest_clusters = plain.max_grains().min(of_cowd.guest_clusters);
        let host_clusters = of_cowd.host_clusters;
        FilePlan {
            format: ImageFormat::Vmdk,
            form: plain.bits,
            reach: plain.reach,
            places: Some(BlockPlaces {
                guest_clusters,
                host_clusters,
                ..plain.places(grain, first_bytes)
            }),
            // Readers take an image without sectors for one without extents.
            min_size_bytes: SECTOR_BYTES,
            extents,
            ..FilePlan::default()
        }
    }

    /// Returns the offset of the first grain: behind the header, the descriptor and the largest tables before grains.
    const fn first_grain_bytes(self) -> u64 {
        let before = match self.has_tables_at_end() {
            true => 0,
            false => self.max_tables_bytes() + self.gap_bytes(),
        };
        self.gap_bytes() + HEAD_SECTORS * SECTOR_BYTES + before
    }

    const fn places(self, grain: ClusterSize, first_bytes: u64) -> BlockPlaces {
        let behind = self.max_tables_bytes() + MAX_GAP_SECTORS * SECTOR_BYTES;
        let behind = behind + STREAM_FOOTER_BYTES as u64;
        // Entries count sectors in 32 bits, and the header of an ESX extent does so, too.
        let most_bytes = u32::MAX as u64 * SECTOR_BYTES;
        let guest_clusters = match self.kind() {
            Kind::Cowd if self.max_grains() > most_bytes / grain.bytes() => {
                most_bytes / grain.bytes()
            }
            _ => self.max_grains(),
        };
        BlockPlaces {
            first_bytes,
            stride_bytes: grain.bytes(),
            lead_bytes: 0,
            guest_clusters,
            host_clusters: (most_bytes - first_bytes - behind) / grain.bytes(),
        }
    }
}

/// Returns the number of bytes of whole sectors.
pub const fn padded(bytes: u64) -> u64 {
    bytes.next_multiple_of(SECTOR_BYTES)
}
