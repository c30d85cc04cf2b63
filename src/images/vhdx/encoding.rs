//! The bytes of VHDX structures, as the build writes them (\[MS-VHDX\], "Virtual Hard Disk v2 (VHDX) File Format"), and
//! their checksums in changed files. All numbers are little-endian. The walker and the oracles decode the structures
//! with `formats::vhdx`, which shares with this file only constants and the arithmetic of CRC-32C.

use crate::disk::crc32c_zeros::append_zeros;
use crate::formats::anatomy::{ByteOrder, SealKind, StructureField};
use crate::formats::vhdx::constants::{
    BAT_REGION, FILE_PARAMETERS, FILE_SIGNATURE, GUEST_SECTOR_BYTES, Guid, HEADER_SIGNATURE,
    LOG_ENTRY_SIGNATURE, LOG_HEADER_BYTES, LOG_SECTOR_BYTES, LOGICAL_SECTOR_SIZE,
    METADATA_ENTRIES_AT, METADATA_ENTRY_BYTES, METADATA_REGION, METADATA_REQUIRED,
    METADATA_SIGNATURE, METADATA_TABLE_BYTES, OFFSET_UNIT_BYTES, PAGE_83, PHYSICAL_SECTOR_SIZE,
    REGION_ENTRIES_AT, REGION_ENTRY_BYTES, REGION_REQUIRED, REGION_TABLE_BYTES,
    REGION_TABLE_OFFSETS, REGION_TABLE_SIGNATURE, VHDX_HEADER_BYTES, VHDX_HEADER_FIELD_BYTES,
    VHDX_HEADER_OFFSETS, VHDX_VERSION, VIRTUAL_DISK_SIZE, header, log_entry, metadata_item,
    metadata_table, region, region_table,
};
use crate::images::format::{part, put_fields, seal, size_in};

use super::form::{RegionOffsets, VhdxForm};

/// The identifier of the file, with the name of its creator in UTF-16.
pub const FILE_IDENTIFIER: &[u8] = b"vhdxfileq\0c\0o\0w\0f\0u\0z\0z\0";
/// The offset of the first metadata item in its region.
const FIRST_ITEM: u32 = METADATA_TABLE_BYTES as u32;

/// The identifiers of a region and of metadata items that no reader knows.
const UNKNOWN_IDS: [Guid; 3] = [[0xA1; 16], [0xB2; 16], [0xC3; 16]];

/// The flags of metadata items beside [`METADATA_REQUIRED`]: of a user, of the disk.
const USER: u32 = 1;
const OF_DISK: u32 = 2;

/// A header.
#[derive(Clone, Copy, Debug)]
pub struct HeaderPlan {
    /// The header with the larger number counts.
    pub sequence: u64,
    /// Fills the identifiers of the file and of its data.
    pub decoration: u16,
    /// Fills the identifier of the log; 0 if the log is empty.
    pub log_id: u8,
    /// The offset of the log, which has 1 MiB.
    pub log_offset: u64,
}

impl HeaderPlan {
    /// Returns the fields of the header.
    pub fn encode(&self) -> [u8; VHDX_HEADER_FIELD_BYTES] {
        let mut bytes = [0; VHDX_HEADER_FIELD_BYTES];
        let log_id = u64::from_ne_bytes([self.log_id; 8]);
        let numbers = [
            (header::SIGNATURE, u32::from_le_bytes(HEADER_SIGNATURE).into()),
            (header::SEQUENCE_NUMBER, self.sequence),
            (header::FILE_WRITE_GUID, 1),
            (header::FILE_WRITE_GUID_END, self.decoration.into()),
            (header::DATA_WRITE_GUID, 2),
            (header::DATA_WRITE_GUID_END, self.decoration.into()),
            (header::LOG_GUID, log_id),
            (header::LOG_GUID_END, log_id),
            (header::LOG_VERSION, 0),
            (header::VERSION, VHDX_VERSION.into()),
            (header::LOG_LENGTH, OFFSET_UNIT_BYTES),
            (header::LOG_OFFSET, self.log_offset),
        ];
        put_fields(&mut bytes, ByteOrder::LittleEndian, &numbers);
        put_checksum(&mut bytes, header::CHECKSUM, VHDX_HEADER_BYTES);
        bytes
    }
}

/// The longest region table.
pub const MAX_REGION_TABLE_BYTES: usize = REGION_ENTRIES_AT + 3 * REGION_ENTRY_BYTES;

/// Returns the bytes of the region table, with zeros at their end. The region of the block allocation table has
/// `table_bytes`.
pub fn region_table(
    form: VhdxForm,
    places: &RegionOffsets,
    table_bytes: u64,
) -> [u8; MAX_REGION_TABLE_BYTES] {
    let mut regions = [
        Some((BAT_REGION, (places.table, table_bytes), REGION_REQUIRED)),
        Some((METADATA_REGION, (places.metadata, OFFSET_UNIT_BYTES), REGION_REQUIRED)),
        places.unknown.map(|offset| (UNKNOWN_IDS[0], (offset, OFFSET_UNIT_BYTES), 0)),
    ];
    if form.is_reversed() {
        regions.reverse();
    }
    let mut bytes = [0; MAX_REGION_TABLE_BYTES];
    let count = regions.iter().flatten().count() as u64;
    let head = [
        (region_table::SIGNATURE, u32::from_le_bytes(REGION_TABLE_SIGNATURE).into()),
        (region_table::ENTRY_COUNT, count),
    ];
    put_fields(&mut bytes, ByteOrder::LittleEndian, &head);
    let entries = bytes[REGION_ENTRIES_AT..].chunks_exact_mut(REGION_ENTRY_BYTES);
    for ((id, (offset, length), required), entry) in regions.into_iter().flatten().zip(entries) {
        let [low, high] = halves(id);
        let numbers = [
            (region::GUID, low),
            (region::GUID_END, high),
            (region::FILE_OFFSET, offset),
            (region::LENGTH, length),
            (region::REQUIRED, required.into()),
        ];
        put_fields(entry, ByteOrder::LittleEndian, &numbers);
    }
    put_checksum(&mut bytes, region_table::CHECKSUM, REGION_TABLE_BYTES);
    bytes
}

/// Returns the numbers in the two halves of an identifier.
fn halves(id: Guid) -> [u64; 2] {
    let number = u128::from_le_bytes(id);
    [number as u64, (number >> 64) as u64]
}

/// The values of the metadata.
#[derive(Clone, Copy, Debug)]
pub struct MetadataPlan {
    /// The variety of the image.
    pub form: VhdxForm,
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The size of the disk in bytes, whole sectors.
    pub size_bytes: u64,
}

/// An item: its identifier, its flags, its bytes as two numbers, and its length. Bytes past the length do not belong to
/// the item.
type Item = (Guid, u32, (u64, u64), u32);

impl MetadataPlan {
    fn items(&self) -> [Option<Item>; 7] {
        let parameters = u64::from(self.block_bytes) | u64::from(self.form.is_fixed()) << 32;
        let sector = |bytes: u32| (u64::from(bytes), 0);
        let unknown = |item| Some(item).filter(|_| self.form.has_unknown());
        [
            Some((FILE_PARAMETERS, METADATA_REQUIRED, (parameters, 0), 8)),
            unknown((UNKNOWN_IDS[1], USER, (u64::MAX, 0), 9)),
            Some((VIRTUAL_DISK_SIZE, OF_DISK | METADATA_REQUIRED, (self.size_bytes, 0), 8)),
            Some((
                PAGE_83,
                OF_DISK | METADATA_REQUIRED,
                (u64::from(self.form.decoration()), 1),
                16,
            )),
            Some((LOGICAL_SECTOR_SIZE, OF_DISK | METADATA_REQUIRED, sector(GUEST_SECTOR_BYTES), 4)),
            Some((
                PHYSICAL_SECTOR_SIZE,
                OF_DISK | METADATA_REQUIRED,
                sector(self.form.physical_sector_bytes()),
                4,
            )),
            // An item without bytes has no offset.
            unknown((UNKNOWN_IDS[2], OF_DISK, (0, 0), 0)),
        ]
    }

    /// Calls `write` with the offset in the region and the bytes of each structure: the items, and the table.
    pub fn encode(&self, mut write: impl FnMut(u64, &[u8])) {
        let mut next = FIRST_ITEM;
        let mut entries = self.items().map(|item| {
            let (id, flags, (low, high), length) = item?;
            let offset = if length == 0 { 0 } else { next };
            let bytes = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
            write(offset.into(), bytes.get(..length as usize).unwrap_or(&bytes));
            next = next.saturating_add(length).saturating_add(self.form.item_gap_bytes());
            Some((id, offset, length, flags))
        });
        // The items themselves keep their order.
        if self.form.is_reversed() {
            entries.reverse();
        }
        let mut bytes = [0; METADATA_ENTRIES_AT + 7 * METADATA_ENTRY_BYTES];
        let count = entries.iter().flatten().count() as u64;
        let head = [
            (metadata_table::SIGNATURE, u64::from_le_bytes(METADATA_SIGNATURE)),
            (metadata_table::ENTRY_COUNT, count),
        ];
        put_fields(&mut bytes, ByteOrder::LittleEndian, &head);
        let places = bytes[METADATA_ENTRIES_AT..].chunks_exact_mut(METADATA_ENTRY_BYTES);
        for ((id, offset, length, flags), entry) in entries.into_iter().flatten().zip(places) {
            let [low, high] = halves(id);
            let numbers = [
                (metadata_item::ITEM_ID, low),
                (metadata_item::ITEM_ID_END, high),
                (metadata_item::OFFSET, offset.into()),
                (metadata_item::LENGTH, length.into()),
                (metadata_item::FLAGS, flags.into()),
            ];
            put_fields(entry, ByteOrder::LittleEndian, &numbers);
        }
        write(0, &bytes);
    }
}

/// Returns the beginning of a log entry from a time when the log was not empty.
pub fn old_log_entry() -> [u8; LOG_HEADER_BYTES] {
    let mut bytes = [0; LOG_HEADER_BYTES];
    let log_id = u64::from_ne_bytes([OLD_LOG_ID; 8]);
    let numbers = [
        (log_entry::LOG_SIGNATURE, u32::from_le_bytes(LOG_ENTRY_SIGNATURE).into()),
        (log_entry::ENTRY_LENGTH, LOG_SECTOR_BYTES),
        (log_entry::SEQUENCE_NUMBER, 1),
        (log_entry::LOG_GUID, log_id),
        (log_entry::LOG_GUID_END, log_id),
        (log_entry::FLUSHED_FILE_OFFSET, OFFSET_UNIT_BYTES),
        (log_entry::LAST_FILE_OFFSET, OFFSET_UNIT_BYTES),
    ];
    put_fields(&mut bytes, ByteOrder::LittleEndian, &numbers);
    put_checksum(&mut bytes, log_entry::LOG_CHECKSUM, LOG_SECTOR_BYTES as usize);
    bytes
}

/// Fills the identifier of the log at a time when it was not empty.
pub const OLD_LOG_ID: u8 = 0xD4;

/// Writes the CRC-32C of a structure of `length_bytes`, whose bytes behind `structure` are zeros, to its field.
fn put_checksum(structure: &mut [u8], field: StructureField, length_bytes: usize) {
    let zeros = length_bytes.saturating_sub(structure.len());
    let checksum = append_zeros(crc32c::crc32c(structure), zeros as u64);
    put_fields(structure, ByteOrder::LittleEndian, &[(field, checksum.into())]);
}

/// Corrects both headers, both region tables, and the first entry of the log of each header.
pub fn correct(file: &mut [u8]) {
    if !file.starts_with(&FILE_SIGNATURE) {
        return;
    }
    for at in VHDX_HEADER_OFFSETS {
        let Ok(at) = usize::try_from(at) else { continue };
        let Some(header) = part(file, at, VHDX_HEADER_BYTES) else { continue };
        if !header.starts_with(&HEADER_SIGNATURE) {
            continue;
        }
        let log = size_in(header, ByteOrder::LittleEndian, header::LOG_OFFSET);
        if let Some(log) = log {
            correct_log_entry(file, log);
        }
        if let Some(header) = part(file, at, VHDX_HEADER_BYTES) {
            seal(header, header::CHECKSUM.at, SealKind::Crc32c);
        }
    }
    for at in REGION_TABLE_OFFSETS {
        let Ok(at) = usize::try_from(at) else { continue };
        if let Some(table) = part(file, at, REGION_TABLE_BYTES)
            && table.starts_with(&REGION_TABLE_SIGNATURE)
        {
            seal(table, region_table::CHECKSUM.at, SealKind::Crc32c);
        }
    }
}

fn correct_log_entry(file: &mut [u8], at: usize) {
    let Some(rest) = file.get_mut(at..) else { return };
    if !rest.starts_with(&LOG_ENTRY_SIGNATURE) {
        return;
    }
    let length = size_in(rest, ByteOrder::LittleEndian, log_entry::ENTRY_LENGTH);
    if let Some(entry) = length.and_then(|length| rest.get_mut(..length)) {
        seal(entry, log_entry::LOG_CHECKSUM.at, SealKind::Crc32c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_readers_expect() {
        let mut vhdx = vec![0; 320 << 10];
        vhdx[..8].copy_from_slice(&FILE_SIGNATURE);
        vhdx[64 << 10..][..4].copy_from_slice(&HEADER_SIGNATURE);
        vhdx[192 << 10..][..4].copy_from_slice(&REGION_TABLE_SIGNATURE);
        // A log in the reserved bytes, with an entry of one sector.
        vhdx[(64 << 10) + header::LOG_OFFSET.at + 1] = 0x10;
        vhdx[4096..4100].copy_from_slice(&LOG_ENTRY_SIGNATURE);
        vhdx[4096 + log_entry::ENTRY_LENGTH.at + 1] = 0x10;
        correct(&mut vhdx);
        for (at, length) in [(64 << 10, 4096), (192 << 10, 64 << 10), (4096, 4096)] {
            let mut structure = vhdx[at..at + length].to_vec();
            let stored = u32::from_le_bytes(structure[4..8].try_into().unwrap());
            structure[4..8].fill(0);
            assert_eq!(stored, crc32c::crc32c(&structure), "the structure at {at}");
        }
        // Files that are cut anywhere do not panic.
        for length in 0..vhdx.len() / 1000 {
            correct(&mut vhdx[..length * 1000]);
        }
    }
}
