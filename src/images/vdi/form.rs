//! The variety of VDI images, which the bits of a program's `form` select. If all bits are 0, the image is as QEMU
//! writes it, except for the room that the block map has.

use crate::disk::clusters::ClusterSize;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::images::block_table::BLOCK_ENTRY_BYTES;
use crate::images::file_plan::{BlockPlaces, FilePlan, TableReach};

/// The number of bytes of a header, with room for later versions.
pub const VDI_HEADER_BYTES: usize = 512;
/// The unit of offsets in bytes.
pub const VDI_SECTOR_BYTES: u64 = 512;
/// The length of a block in bytes: QEMU opens no other.
pub const VDI_BLOCK_BYTES: u64 = 1 << 20;
/// The largest numbers of entries in the block map.
pub const MAX_MAP_ENTRIES: u64 = 1 << 14;
const MAX_LARGE_MAP_ENTRIES: u64 = 1 << 20;

/// The variety of a VDI image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VdiForm {
    bits: u16,
    reach: TableReach,
}

impl VdiForm {
    /// Returns the variety that the bits of `form` select, with tables of this reach.
    pub const fn new(form: u16, reach: TableReach) -> Self {
        Self { bits: form, reach }
    }

    const fn bits(self, first: u32, count: u32) -> u64 {
        (self.bits >> first & ((1 << count) - 1)) as u64
    }

    /// Reports whether the image is static: it stores all blocks, in the order of the disk.
    pub const fn is_static(self) -> bool {
        self.bits(0, 1) != 0
    }

    /// Returns the host offset of the block map.
    pub const fn map_offset(self) -> u64 {
        VDI_HEADER_BYTES as u64 + self.bits(1, 2) * VDI_SECTOR_BYTES
    }

    /// Returns the host offset of block 0.
    pub const fn data_offset(self) -> u64 {
        let map = self.max_entries() * BLOCK_ENTRY_BYTES;
        self.map_offset() + map + self.bits(3, 2) * VDI_SECTOR_BYTES
    }

    /// Returns the number of the text at the beginning of the file, from 0 to 3.
    pub const fn text(self) -> usize {
        self.bits(5, 2) as usize
    }

    /// Reports whether the header has the fields that later versions of VirtualBox add at its end.
    pub const fn has_long_header(self) -> bool {
        self.bits(7, 1) != 0
    }

    /// Returns a byte for the fields that no reader needs.
    pub const fn decoration(self) -> u8 {
        self.bits(8, 8) as u8
    }

    /// Returns the largest number of entries. A static image has all of them in its file.
    const fn max_entries(self) -> u64 {
        match self.reach {
            TableReach::Large if !self.is_static() => MAX_LARGE_MAP_ENTRIES,
            _ => MAX_MAP_ENTRIES,
        }
    }

    /// Returns the plan of the file.
    pub fn plan(self) -> FilePlan {
        let places = BlockPlaces {
            first_bytes: self.data_offset(),
            stride_bytes: VDI_BLOCK_BYTES,
            lead_bytes: 0,
            guest_clusters: self.max_entries(),
            // The number of a block in the file must be less than the number of entries.
            host_clusters: self.max_entries(),
        };
        FilePlan {
            format: ImageFormat::Vdi,
            form: self.bits,
            reach: self.reach,
            places: Some(places),
            flat_at: self.is_static().then_some(HostOffset::new(self.data_offset())),
            ..FilePlan::default()
        }
    }

    /// Returns the size of a block.
    pub fn block_size() -> ClusterSize {
        ClusterSize::from_bits(VDI_BLOCK_BYTES.ilog2()).unwrap_or(ClusterSize::SMALLEST)
    }
}
