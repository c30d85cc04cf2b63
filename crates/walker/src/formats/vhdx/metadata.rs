//! The metadata: the size of the disk and of its blocks.

use std::ops::ControlFlow;

use super::constants::{
    FILE_PARAMETERS, GUEST_SECTOR_BYTES, Guid, HAS_PARENT, LARGE_GUEST_SECTOR_BYTES,
    LOGICAL_SECTOR_SIZE, MAX_LENGTH_BYTES, MAX_METADATA_ENTRIES, MAX_VHDX_BLOCK_BYTES,
    METADATA_ENTRIES_AT, METADATA_ENTRY_BYTES, METADATA_REQUIRED, METADATA_SIGNATURE,
    METADATA_TABLE_BYTES, MIN_VHDX_BLOCK_BYTES, PAGE_83, PARENT_LOCATOR, PHYSICAL_SECTOR_SIZE,
    VIRTUAL_DISK_SIZE, content, metadata_item, metadata_table,
};
use super::header::not_vhdx;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, read_array};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};

/// The number of bytes that are read at once.
const METADATA_PIECE_BYTES: usize = 1 << 10;

/// The items that QEMU knows, in the order of the offsets in [`MetadataTable::read`].
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
    /// Reads the table at the beginning of a region, and checks it as QEMU does (`block/vhdx.c`,
    /// `vhdx_parse_metadata`).
    ///
    /// # Errors
    /// The region lies past 2^63, a read fails, the signature or the number of items is wrong, an item is missing or
    /// occurs twice, readers must know an item that is unknown, or the disk names a parent.
    pub fn read<S: Storage + ?Sized>(file: &S, region: HostOffset) -> Result<Self, MapError> {
        let end = region.checked_add(METADATA_TABLE_BYTES as u64).map_or(u64::MAX, HostOffset::get);
        if end > MAX_LENGTH_BYTES {
            let (field, expected) = ("end of the metadata table", "a table that QEMU can read");
            return Err(MapError::Header { field, found: end, expected });
        }
        let mut head = [0; METADATA_ENTRIES_AT];
        file.read_at(region, &mut head)?;
        if !head.starts_with(&METADATA_SIGNATURE) {
            return Err(not_vhdx("no metadata in their region"));
        }
        let count = metadata_table::ENTRY_COUNT.little(&head);
        if count > MAX_METADATA_ENTRIES.into() {
            let field = "number of metadata items";
            return Err(MapError::Header { field, found: count, expected: "at most 2047" });
        }
        let mut offsets = [None; ITEMS.len()];
        let table = region + head.len() as u64;
        let mut scratch = [0; METADATA_PIECE_BYTES];
        let _ = each_entries(file, table, 0..count, &mut scratch, |entries| -> Flow {
            // An entry of zeros is that of an unknown item.
            if let Entries::Read(_, entries) = entries {
                entries.iter().try_for_each(|entry| note(entry, &mut offsets))?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
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

    /// Reads the items of the region at `region`, which begins with this table.
    ///
    /// # Errors
    /// A read fails, or as for [`Metadata::parse`].
    pub fn values<S: Storage + ?Sized>(
        &self,
        file: &S,
        region: HostOffset,
    ) -> Result<Metadata, MapError> {
        let item = |offset: u32| region + offset.into();
        Metadata::parse(
            read_array(file, item(self.file_parameters))?,
            read_array(file, item(self.virtual_disk_size))?,
            read_array(file, item(self.logical_sector_size))?,
        )
    }
}

/// Notes the offset of the item that an entry names.
fn note(
    entry: &[u8; METADATA_ENTRY_BYTES],
    offsets: &mut [Option<u32>; ITEMS.len()],
) -> Result<(), MapError> {
    let offset = metadata_item::OFFSET.little_32(entry);
    let flags = metadata_item::FLAGS.little_32(entry);
    match ITEMS.iter().zip(offsets).find(|(item, _)| entry.starts_with(*item)) {
        Some((_, Some(_))) => Err(not_vhdx("an item of the metadata occurs twice")),
        Some((_, place)) => {
            *place = Some(offset);
            Ok(())
        }
        None if flags & METADATA_REQUIRED != 0 => {
            Err(MapError::Unsupported("unknown item of the metadata that a reader must know"))
        }
        None => Ok(()),
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
    /// The parameters name a parent that no item locates, or QEMU refuses the size of the blocks or sectors. A disk
    /// with sectors of 4 KiB is well-formed, and unsupported.
    pub fn parse(parameters: [u8; 8], size: [u8; 8], sector: [u8; 4]) -> Result<Self, MapError> {
        let block_bytes = content::BLOCK_SIZE.little_32(&parameters);
        if content::FILE_PARAMETERS.little_32(&parameters) & HAS_PARENT != 0 {
            // Items with a locator of the parent were refused before, as unsupported.
            let expected = "0 without a parent locator";
            return Err(MapError::Header { field: "has-parent flag", found: 1, expected });
        }
        let sizes = MIN_VHDX_BLOCK_BYTES..=MAX_VHDX_BLOCK_BYTES;
        if !sizes.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            let expected = "a power of two from 1 MiB to 256 MiB";
            let found = block_bytes.into();
            return Err(MapError::Header { field: "block size", found, expected });
        }
        let sector_bytes = u32::from_le_bytes(sector);
        if sector_bytes == LARGE_GUEST_SECTOR_BYTES {
            return Err(MapError::Unsupported("disk with logical sectors of 4096 bytes"));
        }
        if sector_bytes != GUEST_SECTOR_BYTES {
            let found = sector_bytes.into();
            return Err(MapError::Header { field: "logical sector size", found, expected: "512" });
        }
        Ok(Self { block_bytes, stored_size_bytes: u64::from_le_bytes(size) })
    }
}
