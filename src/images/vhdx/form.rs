//! The variety of VHDX images. The bits of a program's `form` select it; without any bit, it is a plain dynamic disk.
//! Every variety follows the specification, and QEMU opens it.

use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::formats::vhdx::constants::{BAT_ENTRY_BYTES, GUEST_SECTOR_BYTES, OFFSET_UNIT_BYTES};
use crate::images::format::file_plan::{BlockPlaces, FilePlan, TableReach};

/// The variety of a VHDX image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VhdxForm {
    bits: u16,
    reach: TableReach,
}

/// The largest numbers of blocks in a table. Readers check each of them when they open an image.
const MAX_BLOCKS: u64 = 1 << 14;
const MAX_LARGE_BLOCKS: u64 = 1 << 20;
/// The size of the largest disk: 64 TiB (specification, section 2.6.2.3).
const MAX_VHDX_BYTES: u64 = 64 << 40;
/// The same for a fixed disk, whose file is as long: file systems can hold it.
const MAX_FIXED_VHDX_BYTES: u64 = 8 << 40;
/// The distance between two regions if there is one, in bytes.
const GAP_BYTES: u64 = OFFSET_UNIT_BYTES;
/// The length of the part of the file before all regions and blocks.
const HEADER_SECTION_BYTES: u64 = OFFSET_UNIT_BYTES;
/// The number of bytes that follow the last structure in a file that is longer than necessary.
pub const SPARE_FILE_BYTES: u64 = 3 * OFFSET_UNIT_BYTES;
/// The end of the host offsets that a block may have. The block allocation table could name larger ones, but files end
/// before 2^63.
const MAX_HOST_BYTES: u64 = (1 << 56) - (1 << 40);

/// The largest block has 256 MiB.
const MAX_BLOCK_BITS: u32 = 28;
/// The number of bits by which the smallest block, 1 MiB, is larger than the smallest cluster of qcow2.
const MORE_BLOCK_BITS: u32 = 11;

/// The orders of the log, the block allocation table and the metadata in the file.
const ORDERS: [[RegionKind; 3]; 8] = {
    use RegionKind::{Log, Metadata, Table};
    [
        [Log, Metadata, Table],
        [Log, Table, Metadata],
        [Metadata, Log, Table],
        [Metadata, Table, Log],
        [Table, Log, Metadata],
        [Table, Metadata, Log],
        [Log, Metadata, Table],
        [Metadata, Table, Log],
    ]
};

/// A part of the file that lies anywhere after the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionKind {
    Log,
    Table,
    Metadata,
    Unknown,
}

/// The state of a block in its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// The file does not define the content.
    NotPresent = 0,
    /// The content may be anything.
    Undefined = 1,
    /// The content is zeros.
    Zero = 2,
    /// The guest discarded the block.
    Unmapped = 3,
    /// The file stores the block.
    Present = 6,
}

/// The content of the header that does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherHeader {
    /// The header of an earlier state.
    Older,
    /// A header with the highest sequence number, whose checksum is wrong.
    Broken,
    /// Zeros.
    Zeros,
    /// The header of an earlier state in which the log was elsewhere, and not empty.
    OtherLog,
}

/// The offsets of the log and of the regions, each of 1 MiB except for the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionOffsets {
    /// The log.
    pub log: u64,
    /// The block allocation table.
    pub table: u64,
    /// The metadata.
    pub metadata: u64,
    /// A region that no reader knows, if there is one.
    pub unknown: Option<u64>,
    /// The byte behind all of them.
    pub end: u64,
}

/// Returns the size of a block, from the bits of a qcow2 cluster.
pub fn block_size(cluster_bits: u32) -> ClusterSize {
    let bits = cluster_bits.saturating_add(MORE_BLOCK_BITS).min(MAX_BLOCK_BITS);
    ClusterSize::from_bits(bits).unwrap_or(ClusterSize::SMALLEST)
}

impl VhdxForm {
    /// The bit of fixed disks.
    pub const FIXED_BIT: u32 = 13;

    /// Returns the variety that the bits of `form` select, with tables of this reach.
    pub const fn new(form: u16, reach: TableReach) -> Self {
        Self { bits: form, reach }
    }

    /// Returns the variety of a file.
    pub const fn of(file: &FilePlan) -> Self {
        Self::new(file.form, file.reach)
    }

    /// Returns the length in bytes of the longest region of the block allocation table. The table itself is shorter: by
    /// 3 MiB, or by 7 MiB if it is large.
    const fn max_table_bytes(self) -> u64 {
        match self.reach {
            TableReach::Small => 4 * OFFSET_UNIT_BYTES,
            TableReach::Large => 16 * OFFSET_UNIT_BYTES,
        }
    }

    /// Returns the length in bytes of the table's region if the table has `entries`.
    pub fn table_bytes(self, entries: u64) -> u64 {
        let bytes = entries.saturating_mul(BAT_ENTRY_BYTES as u64).clamp(1, self.max_table_bytes());
        bytes.next_multiple_of(OFFSET_UNIT_BYTES)
    }

    /// Returns the number of bytes for the log, the regions, and a gap before each of them.
    pub const fn max_regions_bytes(self) -> u64 {
        self.max_table_bytes() + 3 * OFFSET_UNIT_BYTES + 4 * GAP_BYTES
    }

    const fn bits(self, first: u32, count: u32) -> u16 {
        self.bits >> first & ((1 << count) - 1)
    }

    const fn has(self, bit: u32) -> bool {
        self.bits(bit, 1) != 0
    }

    /// Reports whether the second header counts.
    pub const fn second_header_counts(self) -> bool {
        self.has(0)
    }

    /// Returns the content of the other header.
    pub const fn other_header(self) -> OtherHeader {
        match self.bits(1, 2) {
            0 => OtherHeader::Older,
            1 => OtherHeader::Broken,
            2 => OtherHeader::Zeros,
            _ => OtherHeader::OtherLog,
        }
    }

    const fn has_regions_behind_blocks(self) -> bool {
        self.has(6)
    }

    const fn has_gaps(self) -> bool {
        self.has(7)
    }

    /// Reports whether there are a region and metadata items that no reader knows.
    pub const fn has_unknown(self) -> bool {
        self.has(8)
    }

    /// Reports whether the entries of the region table and of the metadata table have the reverse order.
    pub const fn is_reversed(self) -> bool {
        self.has(9)
    }

    /// Returns the number of bytes between two metadata items.
    pub const fn item_gap_bytes(self) -> u32 {
        if self.has_gaps() { 3 } else { 0 }
    }

    /// Reports whether the file is longer than necessary.
    pub const fn has_tail(self) -> bool {
        self.has(10)
    }

    /// Reports whether the log, which is empty, contains an old entry.
    pub const fn has_old_log(self) -> bool {
        self.has(11)
    }

    /// Returns the size of a physical sector in bytes.
    pub const fn physical_sector_bytes(self) -> u32 {
        if self.has(12) { 4096 } else { 512 }
    }

    /// Reports whether the disk is fixed: the file never becomes shorter.
    pub const fn is_fixed(self) -> bool {
        self.has(Self::FIXED_BIT)
    }

    /// Returns the state of a block that the builder left unallocated, from the index of its entry. All of these states
    /// read as zeros in QEMU.
    pub const fn absent_state(self, index: u64) -> EntryState {
        const MIXED: [EntryState; 3] =
            [EntryState::NotPresent, EntryState::Undefined, EntryState::Unmapped];
        match self.bits(14, 2) {
            0 => EntryState::NotPresent,
            1 => EntryState::Undefined,
            2 => EntryState::Unmapped,
            _ => MIXED[(index % MIXED.len() as u64) as usize],
        }
    }

    /// Returns a number that differs between most varieties, for the fields that no reader needs.
    pub const fn decoration(self) -> u16 {
        self.bits
    }

    /// Returns the places of the regions if all blocks, used or not, end at `blocks_end`.
    pub fn regions(self, blocks_end: u64, table_bytes: u64) -> RegionOffsets {
        let gap = if self.has_gaps() { GAP_BYTES } else { 0 };
        let behind = self.has_regions_behind_blocks();
        let mut regions = RegionOffsets::default();
        let mut at = if behind { blocks_end } else { HEADER_SECTION_BYTES };
        let unknown = self.has_unknown().then_some(RegionKind::Unknown);
        for part in ORDERS[self.bits(3, 3) as usize].into_iter().chain(unknown) {
            let start = at.saturating_add(gap);
            let length = if part == RegionKind::Table { table_bytes } else { OFFSET_UNIT_BYTES };
            match part {
                RegionKind::Log => regions.log = start,
                RegionKind::Table => regions.table = start,
                RegionKind::Metadata => regions.metadata = start,
                RegionKind::Unknown => regions.unknown = Some(start),
            }
            at = start.saturating_add(length);
        }
        regions.end = at;
        regions
    }

    /// Returns the plan of the file.
    pub fn plan(self, block: ClusterSize) -> FilePlan {
        let regions = if self.has_regions_behind_blocks() { 0 } else { self.max_regions_bytes() };
        let first_bytes = HEADER_SECTION_BYTES + regions;
        let guest_clusters = match self.reach {
            TableReach::Small => MAX_BLOCKS,
            TableReach::Large if self.is_fixed() => {
                MAX_LARGE_BLOCKS.min(MAX_FIXED_VHDX_BYTES / block.bytes())
            }
            TableReach::Large => MAX_LARGE_BLOCKS.min(MAX_VHDX_BYTES / block.bytes()),
        };
        let places = BlockPlaces {
            first_bytes,
            stride_bytes: block.bytes(),
            lead_bytes: 0,
            guest_clusters,
            host_clusters: (MAX_HOST_BYTES - first_bytes) / block.bytes(),
        };
        FilePlan {
            format: ImageFormat::Vhdx,
            form: self.bits,
            reach: self.reach,
            places: Some(places),
            // QEMU opens no disk without blocks, unless its table has room for 2^32 of them.
            min_size_bytes: u64::from(GUEST_SECTOR_BYTES),
            ..FilePlan::default()
        }
    }
}
