//! The header.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, read_array};
use crate::formats::error::MapError;
use crate::formats::layer::whole_sectors;

use super::constants::{
    MAX_VDI_BLOCKS, TYPE_STATIC, VDI_BLOCK_BYTES, VDI_HEADER_BYTES, VDI_SECTOR_BYTES,
    VDI_SIGNATURE, VDI_VERSION, header,
};

/// The fields of a header that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VdiHeader {
    /// The size of the disk in bytes, rounded up to a multiple of 512.
    pub(super) size_bytes: u64,
    /// The host offset of the block map.
    pub(super) map: HostOffset,
    /// The host offset of block 0.
    pub(super) data: HostOffset,
    /// The number of entries of the block map.
    pub(super) entries: u32,
    /// The number of stored blocks that the header states.
    pub(super) allocated: u32,
    /// The image stores all blocks.
    pub(super) is_static: bool,
}

impl VdiHeader {
    /// Reads the header, with the checks that QEMU makes, in its order (`block/vdi.c`, `vdi_open`).
    ///
    /// # Errors
    /// QEMU refuses the image, its block map reaches past the end of the file, or a read failed.
    pub(super) fn read<S: Storage + ?Sized>(image: &S) -> Result<Self, MapError> {
        let bytes: [u8; VDI_HEADER_BYTES] = read_array(image, HostOffset::ZERO)?;
        let stated_bytes = header::DISK_SIZE.little(&bytes);
        let entries = header::BLOCKS_IN_IMAGE.little_32(&bytes);
        let most_bytes = u64::from(MAX_VDI_BLOCKS) * VDI_BLOCK_BYTES;
        demand(stated_bytes <= most_bytes, "disk_size", stated_bytes, "at most 562949819203584")?;
        let size_bytes = whole_sectors(stated_bytes);
        let number = |field: crate::formats::anatomy::StructureField| field.little(&bytes);
        if number(header::SIGNATURE) != VDI_SIGNATURE.into() {
            let what = "the signature is not 0xbeda107f";
            return Err(MapError::NotImage { format: "vdi", what });
        }
        let is_sector = |offset: u64| offset.is_multiple_of(VDI_SECTOR_BYTES);
        let (map, data) = (number(header::OFFSET_BMAP), number(header::OFFSET_DATA));
        let room = u64::from(entries) * VDI_BLOCK_BYTES;
        let is_zero = |one, other| number(one) == 0 && number(other) == 0;
        let (version, block) = (number(header::VERSION), number(header::BLOCK_SIZE));
        demand(version == VDI_VERSION.into(), "version", version, "65537, which is 1.1")?;
        demand(is_sector(map), "offset_bmap", map, "a multiple of 512")?;
        demand(is_sector(data), "offset_data", data, "a multiple of 512")?;
        let sector = number(header::SECTOR_SIZE);
        demand(sector == VDI_SECTOR_BYTES, "sector_size", sector, "512")?;
        demand(block == VDI_BLOCK_BYTES, "block_size", block, "1048576")?;
        demand(size_bytes <= room, "blocks_in_image", entries.into(), "one for each block")?;
        if !is_zero(header::UUID_LINK, header::UUID_LINK_END) {
            return Err(MapError::Unsupported("VDI image with a link to another one"));
        }
        if !is_zero(header::UUID_PARENT, header::UUID_PARENT_END) {
            return Err(MapError::Unsupported("VDI image with a parent"));
        }
        let most = "at most 536870784";
        demand(entries <= MAX_VDI_BLOCKS, "blocks_in_image", entries.into(), most)?;
        let map_end = map + u64::from(entries) * 4;
        let file_end = whole_sectors(image.length_bytes());
        demand(
            map_end <= file_end,
            "end of the block map",
            map_end,
            "the end of the file at most",
        )?;
        Ok(Self {
            size_bytes,
            map: HostOffset::new(map),
            data: HostOffset::new(data),
            entries,
            allocated: header::BLOCKS_ALLOCATED.little_32(&bytes),
            is_static: number(header::IMAGE_TYPE) == TYPE_STATIC.into(),
        })
    }

    /// Returns the host offset of a block by its entry. `None` if the file does not store the block.
    pub(super) fn data_of(&self, entry: [u8; 4]) -> Option<HostOffset> {
        let entry = u32::from_le_bytes(entry);
        is_stored(entry).then(|| self.data + u64::from(entry) * VDI_BLOCK_BYTES)
    }
}

/// Reports whether an entry names a block of the file.
pub(super) fn is_stored(entry: u32) -> bool {
    entry < super::constants::VDI_DISCARDED
}

/// Returns an error unless a field has a value that QEMU accepts.
fn demand(
    is_met: bool,
    field: &'static str,
    found: u64,
    expected: &'static str,
) -> Result<(), MapError> {
    match is_met {
        true => Ok(()),
        false => Err(MapError::Header { field, found, expected }),
    }
}
