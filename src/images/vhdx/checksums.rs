//! The checksums of a VHDX image.

use crate::formats::anatomy::SealKind;
use crate::formats::vhdx::constants::{
    CHECKSUM_AT, FILE_SIGNATURE, HEADER_SIGNATURE, LOG_ENTRY_LENGTH_AT, LOG_ENTRY_SIGNATURE,
    REGION_TABLE_BYTES, REGION_TABLE_OFFSET, REGION_TABLE_SIGNATURE, VHDX_HEADER_BYTES,
    VHDX_HEADER_OFFSETS,
};
use crate::images::sealed::{part, seal};

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
