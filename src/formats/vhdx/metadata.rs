//! The metadata: the size of the disk and of its blocks.

use bytes::Buf;

use super::constants::{
    FILE_PARAMETERS, GUEST_SECTOR_BYTES, Guid, HAS_PARENT, LOGICAL_SECTOR_SIZE,
    MAX_METADATA_ENTRIES, MAX_VHDX_BLOCK_BYTES, METADATA_ENTRIES_AT, METADATA_ENTRY_BYTES,
    METADATA_REQUIRED, METADATA_SIGNATURE, METADATA_TABLE_BYTES, MIN_VHDX_BLOCK_BYTES, PAGE_83,
    PARENT_LOCATOR, PHYSICAL_SECTOR_SIZE, VIRTUAL_DISK_SIZE,
};
use crate::formats::error::MapError;

/// The items that QEMU knows, in the order of the offsets in [`MetadataTable::parse`].
const ITEMS: [Guid; 6] = [
    FILE_PARAMETERS,
    VIRTUAL_DISK_SIZE,
    LOGICAL_SECTOR_SIZE,
    PHYSICAL_SECTOR_SIZE,
    PAGE_83,
    PARENT_LOCATOR,
];

/// The places of the items that a reader needs. They are counted in bytes from the beginning of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataTable {
    /// The offset of the file parameters.
    pub file_parameters: u32,
    /// The offset of the size of the disk.
    pub virtual_disk_size: u32,
    /// The offset of the size of a guest's sector.
    pub logical_sector_size: u32,
}

impl MetadataTable {
    /// Parses the table, and checks it as QEMU does (`block/vhdx.c`, `vhdx_parse_metadata`).
    ///
    /// # Errors
    /// The signature or the number of items is wrong, an item is missing or occurs twice, readers must know an item
    /// that is unknown, or the disk names a parent.
    pub fn parse(bytes: &[u8; METADATA_TABLE_BYTES]) -> Result<Self, MapError> {
        let not_vhdx = |what| Err(MapError::NotImage { format: "vhdx", what });
        let (head, entries) = bytes.split_at(METADATA_ENTRIES_AT);
        if !head.starts_with(&METADATA_SIGNATURE) {
            return not_vhdx("no metadata in their region");
        }
        let count = head.get(10..).map_or(0, |mut rest| rest.get_u16_le());
        let (entries, _) = entries.as_chunks::<METADATA_ENTRY_BYTES>();
        let Some(entries) = entries.get(..count.into()).filter(|_| count <= MAX_METADATA_ENTRIES)
        else {
            let field = "number of metadata items";
            return Err(MapError::Header { field, found: count.into(), expected: "at most 2047" });
        };
        let mut offsets = [None; ITEMS.len()];
        for entry in entries {
            let (guid, mut rest) = entry.split_at(16);
            // Offset, length, flags.
            let (offset, _, flags) = (rest.get_u32_le(), rest.get_u32_le(), rest.get_u32_le());
            let known = ITEMS.iter().zip(&mut offsets).find(|(item, _)| item.as_slice() == guid);
            match known {
                Some((_, Some(_))) => return not_vhdx("an item of the metadata occurs twice"),
                Some((_, place)) => *place = Some(offset),
                None if flags & METADATA_REQUIRED != 0 => {
                    let what = "unknown item of the metadata that a reader must know";
                    return Err(MapError::Unsupported(what));
                }
                None => {}
            }
        }
        match offsets {
            [Some(parameters), Some(size), Some(logical), Some(_), Some(_), None] => Ok(Self {
                file_parameters: parameters,
                virtual_disk_size: size,
                logical_sector_size: logical,
            }),
            [.., Some(_)] => Err(MapError::Unsupported("disk with a parent")),
            _ => Err(MapError::Unsupported("metadata without an item that every disk has")),
        }
    }
}

/// The values of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The number of guest bytes in a block: a power of two.
    pub block_bytes: u32,
    /// The size of the disk as stored.
    pub stored_size_bytes: u64,
}

impl Metadata {
    /// Parses the file parameters, the size of the disk and the size of a guest's sector, and checks them as QEMU does
    /// (`block/vhdx.c`, `vhdx_parse_metadata`).
    ///
    /// # Errors
    /// The disk has a parent, or QEMU refuses the size of its blocks or sectors.
    pub fn parse(parameters: [u8; 8], size: [u8; 8], sector: [u8; 4]) -> Result<Self, MapError> {
        let mut rest = parameters.as_slice();
        let (block_bytes, flags) = (rest.get_u32_le(), rest.get_u32_le());
        if flags & HAS_PARENT != 0 {
            return Err(MapError::Unsupported("disk with a parent"));
        }
        let sizes = MIN_VHDX_BLOCK_BYTES..=MAX_VHDX_BLOCK_BYTES;
        if !sizes.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            let expected = "a power of two from 1 MiB to 256 MiB";
            let found = block_bytes.into();
            return Err(MapError::Header { field: "block size", found, expected });
        }
        let sector_bytes = u32::from_le_bytes(sector);
        if sector_bytes != GUEST_SECTOR_BYTES {
            let found = sector_bytes.into();
            return Err(MapError::Header { field: "logical sector size", found, expected: "512" });
        }
        Ok(Self { block_bytes, stored_size_bytes: u64::from_le_bytes(size) })
    }
}
