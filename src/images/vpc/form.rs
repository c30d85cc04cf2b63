//! The variety of VHD images, which the bits of a program's `form` select. If all bits are 0, the image is as QEMU
//! writes it, except for its size, which QEMU would round up.

use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::images::file_plan::{BlockPlaces, FilePlan, TableReach};

use crate::images::block_table::BLOCK_ENTRY_BYTES;

use super::encoding::{DYNAMIC_HEADER_BYTES, FOOTER_BYTES, SECTOR_BYTES};

/// The variety of a VHD image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VpcForm {
    bits: u16,
    reach: TableReach,
}

/// The largest numbers of entries in a table. Readers check each of them when they open an image.
const MAX_BLOCK_ENTRIES: u64 = 1 << 14;
const MAX_LARGE_BLOCK_ENTRIES: u64 = 1 << 20;
/// The size of the largest disk: 2040 GiB (QEMU, `block/vpc.c`, `VHD_MAX_SECTORS`).
const MAX_VHD_BYTES: u64 = 0xff00_0000 * SECTOR_BYTES;
/// The largest distance of a table from the structure before it, in bytes.
const MAX_TABLE_GAP_BYTES: u64 = 3 * SECTOR_BYTES;
/// The largest distance of the dynamic header from the footer's copy, in bytes.
const MAX_HEADER_GAP_BYTES: u64 = 3 * SECTOR_BYTES;

/// The creators of images: the first ones state the size of the disk in bytes, the last two by its geometry.
const CREATORS: [[u8; 4]; 8] =
    [*b"qem2", *b"win ", *b"d2v ", *b"tap\0", *b"CTXS", *b"wa\0\0", *b"qemu", *b"vpc "];
/// The number of creators that state the size by the geometry.
const GEOMETRY_CREATORS: usize = 2;

impl VpcForm {
    /// The image that QEMU writes.
    pub const PLAIN: Self = Self::new(0, TableReach::Small);

    /// Returns the variety that the bits of `form` select, with tables of this reach.
    pub const fn new(form: u16, reach: TableReach) -> Self {
        Self { bits: form, reach }
    }

    /// Returns the variety of a file.
    pub const fn of(file: &FilePlan) -> Self {
        Self::new(file.form, file.reach)
    }

    const fn bits(self, first: u32, count: u32) -> u64 {
        (self.bits >> first & ((1 << count) - 1)) as u64
    }

    /// Returns the program that is said to have created the image.
    pub fn creator(self) -> [u8; 4] {
        CREATORS[self.bits(0, 3) as usize]
    }

    /// Reports whether the size of the disk is that of its geometry.
    pub fn states_geometry(self) -> bool {
        self.bits(0, 3) as usize >= CREATORS.len() - GEOMETRY_CREATORS
    }

    /// Reports whether the disk is fixed: its data, then a footer.
    pub const fn is_fixed(self) -> bool {
        self.bits(3, 1) != 0
    }

    /// Reports whether a dynamic disk has a footer at its end, too.
    pub const fn has_footer_at_end(self) -> bool {
        self.bits(4, 1) == 0
    }

    /// Returns the offset of the dynamic header.
    pub const fn header_offset(self) -> u64 {
        FOOTER_BYTES as u64 + self.bits(5, 2) * SECTOR_BYTES
    }

    /// Reports whether the table lies behind the blocks.
    pub const fn has_table_at_end(self) -> bool {
        self.bits(7, 1) != 0
    }

    /// Returns the offset of the table if the blocks end at `blocks_end`.
    pub const fn table_offset(self, blocks_end: u64) -> u64 {
        let before = match self.has_table_at_end() {
            true => blocks_end,
            false => self.header_offset() + DYNAMIC_HEADER_BYTES as u64,
        };
        before + self.bits(8, 2) * SECTOR_BYTES
    }

    /// Returns a byte for the fields that no reader needs.
    pub const fn decoration(self) -> u8 {
        self.bits(10, 6) as u8
    }

    /// Returns the largest number of entries in a table. Their bytes are whole sectors.
    fn max_entries(self, block: ClusterSize) -> u64 {
        match self.reach {
            TableReach::Small => MAX_BLOCK_ENTRIES,
            TableReach::Large => MAX_LARGE_BLOCK_ENTRIES.min(MAX_VHD_BYTES / block.bytes()),
        }
    }

    /// Returns the plan of the file.
    pub fn plan(self, block: ClusterSize) -> FilePlan {
        let lead_bytes = bitmap_bytes(block.bytes());
        let stride_bytes = lead_bytes + block.bytes();
        let before = MAX_HEADER_GAP_BYTES + MAX_TABLE_GAP_BYTES;
        let structures = FOOTER_BYTES as u64 + DYNAMIC_HEADER_BYTES as u64 + before;
        let guest_clusters = self.max_entries(block);
        let table = if self.has_table_at_end() { 0 } else { guest_clusters * BLOCK_ENTRY_BYTES };
        let places = BlockPlaces {
            first_bytes: structures + table,
            stride_bytes,
            lead_bytes,
            guest_clusters,
            // Entries count sectors in 32 bits, and the last value has a meaning of its own.
            host_clusters: (u64::from(u32::MAX) * SECTOR_BYTES - structures - table) / stride_bytes,
        };
        let (format, form) = (ImageFormat::Vpc, self.bits);
        FilePlan {
            format,
            form,
            reach: self.reach,
            places: Some(places),
            flat_at: self.is_fixed().then_some(HostOffset::ZERO),
            ..FilePlan::default()
        }
    }
}

/// Returns the length of the bitmap before the data of a block. QEMU rounds the number of its bytes down before it
/// rounds it up to a sector, so that blocks below 4 KiB have none (`block/vpc.c`, `vpc_open`).
pub const fn bitmap_bytes(block_bytes: u64) -> u64 {
    (block_bytes / (8 * SECTOR_BYTES)).next_multiple_of(SECTOR_BYTES)
}
