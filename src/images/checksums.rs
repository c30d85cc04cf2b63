//! Corrects the checksums of a file that a fuzzer has changed. Without this, nearly every change of a VHD footer or of
//! a VHDX header ends at the checksum, and nothing behind it is tested.

use crate::formats::anatomy::SealKind;
use crate::formats::vhdx::constants::{
    CHECKSUM_AT, FILE_SIGNATURE, HEADER_SIGNATURE, LOG_ENTRY_LENGTH_AT, LOG_ENTRY_SIGNATURE,
    REGION_TABLE_BYTES, REGION_TABLE_OFFSET, REGION_TABLE_SIGNATURE, VHDX_HEADER_BYTES,
    VHDX_HEADER_OFFSETS,
};
use crate::formats::vpc::constants::{
    COOKIE, DYNAMIC_CHECKSUM_AT, DYNAMIC_COOKIE, DYNAMIC_HEADER_BYTES, FOOTER_BYTES,
    FOOTER_CHECKSUM_AT,
};

/// The offset of the dynamic header's offset in a VHD footer.
const DATA_OFFSET_AT: usize = 16;
/// The offset of the log's offset in a VHDX header.
const LOG_OFFSET_AT: usize = 72;

/// Corrects the checksums of all structures of a VHD or VHDX image that lie where readers look for them. Leaves other
/// files as they are.
pub fn correct(file: &mut [u8]) {
    if file.starts_with(&FILE_SIGNATURE) {
        correct_vhdx(file);
    } else {
        correct_vpc(file);
    }
}

/// Corrects both footers, and the dynamic headers that they name.
fn correct_vpc(file: &mut [u8]) {
    let last = file.len().saturating_sub(FOOTER_BYTES);
    for at in [0, last] {
        let Some(footer) = part(file, at, FOOTER_BYTES) else { continue };
        if !footer.starts_with(&COOKIE) {
            continue;
        }
        seal(footer, FOOTER_CHECKSUM_AT, SealKind::ComplementOfSum);
        let offset = footer.get(DATA_OFFSET_AT..).and_then(|rest| rest.first_chunk());
        let at = offset.and_then(|offset| usize::try_from(u64::from_be_bytes(*offset)).ok());
        if let Some(header) = at.and_then(|at| part(file, at, DYNAMIC_HEADER_BYTES))
            && header.starts_with(&DYNAMIC_COOKIE)
        {
            seal(header, DYNAMIC_CHECKSUM_AT, SealKind::ComplementOfSum);
        }
    }
}

/// Writes the checksum of a structure.
fn seal(structure: &mut [u8], checksum_at: usize, kind: SealKind) {
    let checksum = kind.of(structure, checksum_at);
    put(structure, checksum_at, checksum);
}

/// Corrects both headers, both region tables, and the first entry of the log of each header.
fn correct_vhdx(file: &mut [u8]) {
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

/// Returns a part of a file, if the file has all of it.
fn part(file: &mut [u8], at: usize, length: usize) -> Option<&mut [u8]> {
    file.get_mut(at..at.checked_add(length)?)
}

/// Writes a checksum.
fn put(structure: &mut [u8], at: usize, checksum: [u8; 4]) {
    if let Some(place) = structure.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = checksum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_readers_expect() {
        let mut vhd = vec![0; 2048];
        vhd[..8].copy_from_slice(&COOKIE);
        vhd[DATA_OFFSET_AT..24].copy_from_slice(&512u64.to_be_bytes());
        vhd[512..520].copy_from_slice(&DYNAMIC_COOKIE);
        vhd[1536..1544].copy_from_slice(&COOKIE);
        correct(&mut vhd);
        let sum = |bytes: &[u8], at: usize| {
            let own = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let all: u32 = bytes.iter().map(|byte| u32::from(*byte)).sum();
            let own_bytes: u32 = bytes[at..at + 4].iter().map(|byte| u32::from(*byte)).sum();
            (own, !(all - own_bytes))
        };
        for (structure, at) in [(&vhd[..512], 64), (&vhd[512..1536], 36), (&vhd[1536..], 64)] {
            let (stored, expected) = sum(structure, at);
            assert_eq!(stored, expected);
        }
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
        // Other files, and files that are cut anywhere, do not change or panic.
        for length in 0..vhdx.len() / 1000 {
            correct(&mut vhdx[..length * 1000]);
        }
        let mut other = *b"QFI\xfb....";
        correct(&mut other);
        assert_eq!(&other, b"QFI\xfb....");
    }
}
