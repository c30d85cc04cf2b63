//! The bytes of VHD structures, as the build writes them (Microsoft, "Virtual Hard Disk Image Format Specification",
//! version 1.0), and their checksums in changed files. All numbers are big-endian. The walker and the oracles decode
//! the structures with `formats::vpc`, which shares only constants with this file.

use crate::formats::anatomy::{ByteOrder, SealKind, StructureField};
use crate::formats::vpc::constants::{
    COOKIE, DYNAMIC_COOKIE, DYNAMIC_HEADER_BYTES, FOOTER_BYTES, SECTOR_BYTES, TYPE_FIXED,
    dynamic_header, footer,
};
use crate::images::format::{part, put_fields, seal, size_in};

/// The version of both structures, 1.0.
const VERSION: u64 = 0x0001_0000;
/// The type of a disk that stores some blocks.
const VHD_DYNAMIC: u64 = 3;

/// The largest numbers of cylinders, heads and sectors that a footer can state.
const MAX_CYLINDERS: u64 = 0xffff;

/// A footer.
#[derive(Clone, Copy, Debug)]
pub struct FooterFields {
    /// The program that created the image.
    pub creator: [u8; 4],
    /// The size of the disk.
    pub size_bytes: u64,
    /// Cylinders, heads and sectors.
    pub geometry: (u16, u8, u8),
    /// The offset of the dynamic header; `None` for a fixed disk.
    pub header_offset: Option<u64>,
    /// Fills the fields that no reader needs: times, versions, the identifier, the saved state.
    pub decoration: u8,
}

impl FooterFields {
    /// Returns the bytes of the footer.
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        let (cylinders, heads, sectors) = self.geometry;
        let disk_type = if self.header_offset.is_some() { VHD_DYNAMIC } else { TYPE_FIXED.into() };
        let identifier = u64::from_ne_bytes([self.decoration; 8]);
        let numbers = [
            (footer::COOKIE, u64::from_be_bytes(COOKIE)),
            // One reserved feature is always set.
            (footer::FEATURES, 2),
            (footer::FILE_FORMAT_VERSION, VERSION),
            (footer::DATA_OFFSET, self.header_offset.unwrap_or(u64::MAX)),
            (footer::TIME_STAMP, identifier),
            (footer::CREATOR_APPLICATION, u32::from_be_bytes(self.creator).into()),
            (footer::CREATOR_VERSION, 0x0005_0003),
            (footer::CREATOR_HOST_OS, u32::from_be_bytes(*b"Wi2k").into()),
            (footer::ORIGINAL_SIZE, self.size_bytes),
            (footer::CURRENT_SIZE, self.size_bytes),
            (footer::CYLINDERS, cylinders.into()),
            (footer::HEADS, heads.into()),
            (footer::SECTORS_PER_TRACK, sectors.into()),
            (footer::DISK_TYPE, disk_type),
            (footer::UNIQUE_ID, identifier),
            (footer::UNIQUE_ID_END, identifier),
            (footer::SAVED_STATE, u64::from(self.decoration & 1)),
        ];
        put_fields(&mut bytes, ByteOrder::BigEndian, &numbers);
        put_checksum(&mut bytes, footer::CHECKSUM);
        bytes
    }
}

/// Returns the bytes of a dynamic header.
pub fn dynamic_header(
    table_offset: u64,
    entries: u32,
    block_bytes: u32,
) -> [u8; DYNAMIC_HEADER_BYTES] {
    let mut bytes = [0; DYNAMIC_HEADER_BYTES];
    let numbers = [
        (dynamic_header::COOKIE, u64::from_be_bytes(DYNAMIC_COOKIE)),
        (dynamic_header::DATA_OFFSET, u64::MAX),
        (dynamic_header::TABLE_OFFSET, table_offset),
        (dynamic_header::HEADER_VERSION, VERSION),
        (dynamic_header::MAX_TABLE_ENTRIES, entries.into()),
        (dynamic_header::BLOCK_SIZE, block_bytes.into()),
    ];
    put_fields(&mut bytes, ByteOrder::BigEndian, &numbers);
    put_checksum(&mut bytes, dynamic_header::CHECKSUM);
    bytes
}

/// Returns the length of the bitmap before the data of a block. QEMU rounds the number of its bytes down before it
/// rounds it up to a sector, so that blocks below 4 KiB have none (`block/vpc.c`, `vpc_open`).
pub const fn bitmap_bytes(block_bytes: u64) -> u64 {
    (block_bytes / (8 * SECTOR_BYTES)).next_multiple_of(SECTOR_BYTES)
}

/// Writes the checksum of a structure: the one's complement of the sum of its other bytes.
fn put_checksum(structure: &mut [u8], field: StructureField) {
    let sum = structure.iter().fold(0u32, |sum, byte| sum.wrapping_add(u32::from(*byte)));
    put_fields(structure, ByteOrder::BigEndian, &[(field, (!sum).into())]);
}

/// Returns cylinders, heads and sectors whose product is exactly `sectors`, if there are such numbers among those that
/// this function tries.
pub fn exact_geometry(sectors: u64) -> Option<(u16, u8, u8)> {
    const TRACKS: [(u8, u8); 8] =
        [(1, 1), (4, 17), (16, 63), (16, 255), (16, 31), (8, 8), (16, 16), (255, 1)];
    TRACKS.into_iter().find_map(|(heads, track)| {
        let track_sectors = u64::from(heads) * u64::from(track);
        let cylinders = sectors / track_sectors;
        let is_exact = sectors.is_multiple_of(track_sectors) && cylinders < MAX_CYLINDERS;
        Some((u16::try_from(cylinders).ok().filter(|_| is_exact)?, heads, track))
    })
}

/// Corrects both footers, and the dynamic headers that they name.
pub fn correct(file: &mut [u8]) {
    let last = file.len().saturating_sub(FOOTER_BYTES);
    for at in [0, last] {
        let Some(footer) = part(file, at, FOOTER_BYTES) else { continue };
        if !footer.starts_with(&COOKIE) {
            continue;
        }
        seal(footer, footer::CHECKSUM.at, SealKind::ComplementOfSum);
        let at = size_in(footer, ByteOrder::BigEndian, footer::DATA_OFFSET);
        if let Some(header) = at.and_then(|at| part(file, at, DYNAMIC_HEADER_BYTES))
            && header.starts_with(&DYNAMIC_COOKIE)
        {
            seal(header, dynamic_header::CHECKSUM.at, SealKind::ComplementOfSum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_readers_expect() {
        let mut vhd = vec![0; 2048];
        vhd[..8].copy_from_slice(&COOKIE);
        vhd[16..24].copy_from_slice(&512u64.to_be_bytes());
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
        // Files that are cut anywhere do not panic.
        for length in 0..vhd.len() / 100 {
            correct(&mut vhd[..length * 100]);
        }
    }
}
