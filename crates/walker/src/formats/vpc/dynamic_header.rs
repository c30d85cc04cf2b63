//! The header of a dynamic disk: where its block allocation table lies, and how long a block is.

use bytes::Buf;

use super::constants::{
    DYNAMIC_COOKIE, DYNAMIC_HEADER_BYTES, MAX_TABLE_ENTRIES, MIN_BLOCK_BYTES, SECTOR_BYTES,
};
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;

/// The fields of a dynamic header that a reader needs. QEMU checks neither its checksum nor its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DynamicHeader {
    /// The host offset of the block allocation table.
    pub table_offset: HostOffset,
    /// The number of entries of that table.
    pub entries: u32,
    /// The number of guest bytes in a block: a power of two, at least [`MIN_BLOCK_BYTES`].
    pub block_bytes: u32,
}

impl DynamicHeader {
    /// Parses a header of a disk of `size_bytes`, and checks it as QEMU does (`block/vpc.c`, `vpc_open`).
    ///
    /// # Errors
    /// The header has another cookie, or QEMU refuses its block size or its number of entries.
    pub fn parse(bytes: &[u8; DYNAMIC_HEADER_BYTES], size_bytes: u64) -> Result<Self, MapError> {
        if !bytes.starts_with(&DYNAMIC_COOKIE) {
            return Err(MapError::NotImage {
                format: "vpc",
                what: "no dynamic header at the data offset",
            });
        }
        let mut rest = bytes.as_slice();
        // Cookie, data offset.
        rest.advance(16);
        let table_offset = HostOffset::new(rest.get_u64());
        // Version.
        rest.advance(4);
        let (entries, block_bytes) = (rest.get_u32(), rest.get_u32());
        let fault = |field, found: u32, expected| {
            Err(MapError::Header { field, found: found.into(), expected })
        };
        if !block_bytes.is_power_of_two() || block_bytes < MIN_BLOCK_BYTES {
            return fault("block size", block_bytes, "a power of two of at least 512");
        }
        if u64::from(entries) * u64::from(block_bytes) < size_bytes {
            return fault("number of table entries", entries, "one for each block of the disk");
        }
        if entries > MAX_TABLE_ENTRIES {
            return fault("number of table entries", entries, "less than 536870912");
        }
        Ok(Self { table_offset, entries, block_bytes })
    }

    /// Returns the length of the bitmap before the data of a block. As in QEMU, it is 0 for blocks below 4 KiB: their
    /// number of bitmap bytes is rounded down before it is rounded up to a sector.
    pub fn bitmap_bytes(&self) -> u64 {
        (u64::from(self.block_bytes) / (8 * SECTOR_BYTES)).next_multiple_of(SECTOR_BYTES)
    }

    /// Returns the host offset of the data of a block by its table entry. `None` if the file does not store the block.
    pub fn data_of(&self, entry: u32) -> Option<HostOffset> {
        (entry != super::constants::UNALLOCATED)
            .then(|| HostOffset::new(u64::from(entry) * SECTOR_BYTES + self.bitmap_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(entries: u32, block_bytes: u32, size_bytes: u64) -> Result<DynamicHeader, MapError> {
        let mut bytes = [0; DYNAMIC_HEADER_BYTES];
        bytes[..8].copy_from_slice(&DYNAMIC_COOKIE);
        bytes[16..24].copy_from_slice(&1536u64.to_be_bytes());
        bytes[28..32].copy_from_slice(&entries.to_be_bytes());
        bytes[32..36].copy_from_slice(&block_bytes.to_be_bytes());
        DynamicHeader::parse(&bytes, size_bytes)
    }

    #[test]
    fn blocks_have_bitmaps_before_their_data() {
        let bitmap = |block_bytes| parsed(8, block_bytes, 0).unwrap().bitmap_bytes();
        assert_eq!([512, 2048, 4096, 2 << 20, 4 << 20].map(bitmap), [0, 0, 512, 512, 1024]);
        let header = parsed(8, 2 << 20, 0).unwrap();
        assert_eq!(header.data_of(4), Some(HostOffset::new(4 * 512 + 512)));
        assert_eq!(header.data_of(u32::MAX), None);
    }

    #[test]
    fn the_table_covers_the_disk() {
        assert!(parsed(2, 4096, 8192).is_ok() && parsed(2, 4096, 8193).is_err());
        assert!(parsed(2, 4097, 0).is_err() && parsed(2, 256, 0).is_err());
        assert!(parsed((1 << 29) - 1, 512, 0).is_ok() && parsed(1 << 29, 512, 0).is_err());
    }
}
