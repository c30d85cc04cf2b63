//! The bytes of VHDX structures, as the build writes them (\[MS-VHDX\], "Virtual Hard Disk v2 (VHDX) File Format"), and
//! their checksums in changed files. All numbers are little-endian. The walker and the oracles decode the structures
//! with `formats::vhdx`, which shares with this file only constants and the arithmetic of CRC-32C.

use bytes::BufMut;

use crate::disk::crc32c_zeros::append_zeros;
use crate::formats::anatomy::SealKind;
use crate::formats::vhdx::constants::{
    CHECKSUM_AT, FILE_SIGNATURE, HEADER_SIGNATURE, LOG_ENTRY_LENGTH_AT, LOG_ENTRY_SIGNATURE,
    REGION_TABLE_BYTES, REGION_TABLE_OFFSET, REGION_TABLE_SIGNATURE, VHDX_HEADER_BYTES,
    VHDX_HEADER_OFFSETS,
};
use crate::images::format::{part, seal};

/// The unit of offsets.
pub const MIB: u64 = 1 << 20;
/// The size of a guest's sector.
pub const SECTOR_BYTES: u32 = 512;

/// The identifier of the file, with the name of its creator in UTF-16.
pub const FILE_IDENTIFIER: &[u8] = b"vhdxfileq\0c\0o\0w\0f\0u\0z\0z\0";
/// The offsets of the two headers.
pub const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
/// The offsets of the two region tables.
pub const REGION_TABLES: [u64; 2] = [192 << 10, 256 << 10];

/// The number of bytes of a header that have a meaning. Zeros follow.
pub const HEADER_FIELD_BYTES: usize = 80;
/// The offset of the first metadata item in its region.
const FIRST_ITEM: u32 = 64 << 10;

/// An identifier as stored.
type Identifier = [u8; 16];

const TABLE_REGION: Identifier = 0x6677_c22d_23f6_0042_9d64_115e_9bfd_4a08_u128.to_be_bytes();
const METADATA_REGION: Identifier = 0x06a2_7c8b_9047_9a4b_b8fe_575f_050f_886e_u128.to_be_bytes();
const FILE_PARAMETERS: Identifier = 0x3767_a1ca_36fa_434d_b3b6_33f0_aa44_e76b_u128.to_be_bytes();
const DISK_SIZE: Identifier = 0x2442_a52f_1bcd_7648_b211_5dbe_d83b_f4b8_u128.to_be_bytes();
const DISK_ID: Identifier = 0xab12_cabe_e6b2_2345_93ef_c309_e000_c746_u128.to_be_bytes();
const LOGICAL_SECTOR: Identifier = 0x1dbf_4181_6fa9_0947_ba47_f233_a8fa_ab5f_u128.to_be_bytes();
const PHYSICAL_SECTOR: Identifier = 0xc748_a3cd_5d44_7144_9cc9_e988_5251_c556_u128.to_be_bytes();
/// The identifiers of a region and of metadata items that no reader knows.
const UNKNOWN_IDS: [Identifier; 3] = [[0xA1; 16], [0xB2; 16], [0xC3; 16]];

/// The flags of metadata items: of a user, of the disk, required.
const USER: u32 = 1;
const OF_DISK: u32 = 2;
const REQUIRED: u32 = 4;

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
    pub fn encode(&self) -> [u8; HEADER_FIELD_BYTES] {
        let mut bytes = [0; HEADER_FIELD_BYTES];
        let mut out = bytes.as_mut_slice();
        out.put_slice(b"head\0\0\0\0");
        out.put_u64_le(self.sequence);
        for field in [1, 2] {
            out.put_u128_le(u128::from(self.decoration) << 64 | field);
        }
        out.put_bytes(self.log_id, 16);
        // The versions of the log and of the file.
        out.put_u16_le(0);
        out.put_u16_le(1);
        out.put_u32_le(MIB as u32);
        out.put_u64_le(self.log_offset);
        put_checksum(&mut bytes, VHDX_HEADER_BYTES);
        bytes
    }
}

/// The places of the regions.
#[derive(Clone, Copy, Debug)]
pub struct RegionTablePlan {
    /// The offset and the length of the block allocation table's region.
    pub table: (u64, u64),
    /// The offset of the metadata region, which has 1 MiB.
    pub metadata: u64,
    /// The offset of a region that no reader knows, likewise.
    pub unknown: Option<u64>,
    /// The entries have the reverse order.
    pub is_reversed: bool,
}

/// The longest region table.
pub const MAX_REGION_TABLE_BYTES: usize = 16 + 3 * 32;

impl RegionTablePlan {
    /// Returns the bytes of the table, with zeros at their end.
    pub fn encode(&self) -> [u8; MAX_REGION_TABLE_BYTES] {
        let mut regions = [
            Some((TABLE_REGION, self.table, 1)),
            Some((METADATA_REGION, (self.metadata, MIB), 1)),
            self.unknown.map(|offset| (UNKNOWN_IDS[0], (offset, MIB), 0)),
        ];
        if self.is_reversed {
            regions.reverse();
        }
        let mut bytes = [0; MAX_REGION_TABLE_BYTES];
        let mut out = bytes.as_mut_slice();
        out.put_slice(b"regi\0\0\0\0");
        out.put_u32_le(regions.iter().flatten().count() as u32);
        out.put_u32_le(0);
        for (id, (offset, length), required) in regions.into_iter().flatten() {
            out.put_slice(&id);
            out.put_u64_le(offset);
            out.put_u32_le(u32::try_from(length).unwrap_or(u32::MAX));
            out.put_u32_le(required);
        }
        put_checksum(&mut bytes, REGION_TABLE_BYTES);
        bytes
    }
}

/// The values of the metadata.
#[derive(Clone, Copy, Debug)]
pub struct MetadataPlan {
    /// The size of a block in bytes.
    pub block_bytes: u32,
    /// The disk is fixed.
    pub is_fixed: bool,
    /// The size of the disk in bytes, whole sectors.
    pub size_bytes: u64,
    /// The size of a physical sector in bytes.
    pub physical_sector_bytes: u32,
    /// Fills the identifier of the disk.
    pub decoration: u16,
    /// There are items that no reader knows.
    pub has_unknown: bool,
    /// The entries of the table have the reverse order. The items themselves do not.
    pub is_reversed: bool,
    /// The number of bytes between two items.
    pub gap_bytes: u32,
}

/// An item: its identifier, its flags, and its bytes. Only the first ones, the length, belong to the item.
type Item = (Identifier, u32, (u64, u64), u32);

impl MetadataPlan {
    fn items(&self) -> [Option<Item>; 7] {
        let parameters = u64::from(self.block_bytes) | u64::from(self.is_fixed) << 32;
        let sector = |bytes: u32| (u64::from(bytes), 0);
        let unknown = |item| Some(item).filter(|_| self.has_unknown);
        [
            Some((FILE_PARAMETERS, REQUIRED, (parameters, 0), 8)),
            unknown((UNKNOWN_IDS[1], USER, (u64::MAX, 0), 9)),
            Some((DISK_SIZE, OF_DISK | REQUIRED, (self.size_bytes, 0), 8)),
            Some((DISK_ID, OF_DISK | REQUIRED, (u64::from(self.decoration), 1), 16)),
            Some((LOGICAL_SECTOR, OF_DISK | REQUIRED, sector(SECTOR_BYTES), 4)),
            Some((PHYSICAL_SECTOR, OF_DISK | REQUIRED, sector(self.physical_sector_bytes), 4)),
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
            next = next.saturating_add(length).saturating_add(self.gap_bytes);
            Some((id, offset, length, flags))
        });
        if self.is_reversed {
            entries.reverse();
        }
        let mut bytes = [0; 32 + 7 * 32];
        let mut out = bytes.as_mut_slice();
        out.put_slice(b"metadata\0\0");
        out.put_u16_le(entries.iter().flatten().count() as u16);
        out.put_bytes(0, 20);
        for (id, offset, length, flags) in entries.into_iter().flatten() {
            out.put_slice(&id);
            out.put_u32_le(offset);
            out.put_u32_le(length);
            out.put_u64_le(flags.into());
        }
        write(0, &bytes);
    }
}

/// Returns the beginning of a log entry from a time when the log was not empty.
pub fn old_log_entry() -> [u8; 64] {
    let mut bytes = [0; 64];
    let mut out = bytes.as_mut_slice();
    out.put_slice(b"loge\0\0\0\0");
    // The length, the tail, the sequence number and the number of descriptors.
    out.put_u32_le(4 << 10);
    out.put_u32_le(0);
    out.put_u64_le(1);
    out.put_u64_le(0);
    out.put_bytes(OLD_LOG_ID, 16);
    // The lengths of the file, then and at least.
    out.put_u64_le(MIB);
    out.put_u64_le(MIB);
    put_checksum(&mut bytes, 4 << 10);
    bytes
}

/// Fills the identifier of the log at a time when it was not empty.
pub const OLD_LOG_ID: u8 = 0xD4;

/// Writes the CRC-32C of a structure of `length_bytes`, whose bytes behind `structure` are zeros, to its place.
fn put_checksum(structure: &mut [u8], length_bytes: usize) {
    let zeros = length_bytes.saturating_sub(structure.len());
    let checksum = append_zeros(crc32c::crc32c(structure), zeros as u64);
    if let Some(place) = structure.get_mut(4..8) {
        place.copy_from_slice(&checksum.to_le_bytes());
    }
}

/// The offset of the log's offset in a header.
const LOG_OFFSET_AT: usize = 72;

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
        let log = header.get(LOG_OFFSET_AT..).and_then(|rest| rest.first_chunk());
        let log = log.and_then(|offset| usize::try_from(u64::from_le_bytes(*offset)).ok());
        if let Some(log) = log {
            correct_log_entry(file, log);
        }
        if let Some(header) = part(file, at, VHDX_HEADER_BYTES) {
            seal(header, CHECKSUM_AT, SealKind::Crc32c);
        }
    }
    let table_bytes = REGION_TABLE_BYTES as u64;
    for at in [REGION_TABLE_OFFSET, REGION_TABLE_OFFSET + table_bytes] {
        let Ok(at) = usize::try_from(at) else { continue };
        if let Some(table) = part(file, at, REGION_TABLE_BYTES)
            && table.starts_with(&REGION_TABLE_SIGNATURE)
        {
            seal(table, CHECKSUM_AT, SealKind::Crc32c);
        }
    }
}

fn correct_log_entry(file: &mut [u8], at: usize) {
    let Some(rest) = file.get_mut(at..) else { return };
    if !rest.starts_with(&LOG_ENTRY_SIGNATURE) {
        return;
    }
    let length = rest.get(LOG_ENTRY_LENGTH_AT..).and_then(|rest| rest.first_chunk());
    let length = length.and_then(|length| usize::try_from(u32::from_le_bytes(*length)).ok());
    if let Some(entry) = length.and_then(|length| rest.get_mut(..length)) {
        seal(entry, CHECKSUM_AT, SealKind::Crc32c);
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
        vhdx[(64 << 10) + LOG_OFFSET_AT + 1] = 0x10;
        vhdx[4096..4100].copy_from_slice(&LOG_ENTRY_SIGNATURE);
        vhdx[4096 + LOG_ENTRY_LENGTH_AT + 1] = 0x10;
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
