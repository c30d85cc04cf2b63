//! The footer, which is the last sector of a file and the first sector of a dynamic disk, and the header of a dynamic
//! disk.

use crate::disk::offsets::HostOffset;
pub use crate::formats::anatomy::complement_of_sum as checksums;
use crate::formats::error::MapError;
use crate::formats::vpc::constants::{
    CHS_CREATORS, COOKIE, DYNAMIC_COOKIE, DYNAMIC_HEADER_BYTES, FOOTER_BYTES, MAX_CHS_SECTORS,
    MAX_SECTORS, MAX_TABLE_ENTRIES, MIN_BLOCK_BYTES, SECTOR_BYTES, UNALLOCATED, dynamic_header,
    footer,
};

/// The fields of a footer that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The host offset of the dynamic header.
    pub data_offset: u64,
    /// The program that created the image.
    pub creator: [u8; 4],
    /// The size of the disk as stored, in bytes.
    pub current_size_bytes: u64,
    /// The number of cylinders.
    pub cylinders: u32,
    /// The number of heads.
    pub heads: u32,
    /// The number of sectors of a track.
    pub sectors: u32,
    /// The type of the disk: 2 fixed, 3 dynamic, 4 differencing.
    pub disk_type: u32,
}

impl Footer {
    /// Reports whether `bytes` begin like a footer.
    pub fn is_at(bytes: &[u8; FOOTER_BYTES]) -> bool {
        bytes.starts_with(&COOKIE)
    }

    /// Returns the type of the disk, without any check.
    pub fn disk_type_of(bytes: &[u8; FOOTER_BYTES]) -> u32 {
        Self::read(bytes).disk_type
    }

    /// Parses a footer that begins with [`COOKIE`].
    ///
    /// # Errors
    /// The checksum is wrong, or the disk is larger than [`MAX_SECTORS`] (QEMU `block/vpc.c`, `vpc_open`).
    pub fn parse(bytes: &[u8; FOOTER_BYTES]) -> Result<Self, MapError> {
        let (computed, stored) = checksums(bytes, footer::CHECKSUM.at);
        if computed != stored {
            return Err(MapError::Header {
                field: "footer checksum",
                found: stored.into(),
                expected: "the one's complement of the sum of its bytes",
            });
        }
        let footer = Self::read(bytes);
        match footer.sectors_of_disk() > MAX_SECTORS {
            true => Err(MapError::Header {
                field: "size of the disk in sectors",
                found: footer.sectors_of_disk(),
                expected: "at most 4278190080",
            }),
            false => Ok(footer),
        }
    }

    fn read(bytes: &[u8; FOOTER_BYTES]) -> Self {
        Self {
            data_offset: footer::DATA_OFFSET.big(bytes),
            creator: footer::CREATOR_APPLICATION.big_32(bytes).to_be_bytes(),
            current_size_bytes: footer::CURRENT_SIZE.big(bytes),
            cylinders: footer::CYLINDERS.big_32(bytes),
            heads: footer::HEADS.big_32(bytes),
            sectors: footer::SECTORS_PER_TRACK.big_32(bytes),
            disk_type: footer::DISK_TYPE.big_32(bytes),
        }
    }

    /// Returns the size of the disk that a guest sees, a multiple of 512.
    pub fn virtual_size_bytes(&self) -> u64 {
        // At most `MAX_SECTORS`, unless the footer was never parsed.
        self.sectors_of_disk().saturating_mul(SECTOR_BYTES)
    }

    /// Reports whether the creator states the size of the disk by its geometry.
    pub fn states_geometry(&self) -> bool {
        CHS_CREATORS.contains(&self.creator) && self.geometry_sectors() != MAX_CHS_SECTORS
    }

    fn geometry_sectors(&self) -> u64 {
        u64::from(self.cylinders) * u64::from(self.heads) * u64::from(self.sectors)
    }

    fn sectors_of_disk(&self) -> u64 {
        match self.states_geometry() {
            true => self.geometry_sectors(),
            false => self.current_size_bytes / SECTOR_BYTES,
        }
    }
}

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
        let table_offset = HostOffset::new(dynamic_header::TABLE_OFFSET.big(bytes));
        let entries = dynamic_header::MAX_TABLE_ENTRIES.big_32(bytes);
        let block_bytes = dynamic_header::BLOCK_SIZE.big_32(bytes);
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
        (entry != UNALLOCATED)
            .then(|| HostOffset::new(u64::from(entry) * SECTOR_BYTES + self.bitmap_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footer(creator: &[u8; 4], size_bytes: u64, chs: (u16, u8, u8)) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(&COOKIE);
        bytes[28..32].copy_from_slice(creator);
        bytes[48..56].copy_from_slice(&size_bytes.to_be_bytes());
        bytes[56..58].copy_from_slice(&chs.0.to_be_bytes());
        [bytes[58], bytes[59]] = [chs.1, chs.2];
        let (computed, _) = checksums(&bytes, footer::CHECKSUM.at);
        bytes[footer::CHECKSUM.at..][..4].copy_from_slice(&computed.to_be_bytes());
        bytes
    }

    #[test]
    fn the_creator_decides_which_size_counts() {
        let size = |creator, size_bytes, chs| {
            Footer::parse(&footer(creator, size_bytes, chs))
                .map(|footer| footer.virtual_size_bytes())
        };
        let chs = (2, 4, 17);
        assert_eq!(size(b"qemu", 1 << 20, chs), Ok(2 * 4 * 17 * 512));
        assert_eq!(size(b"vpc ", 1 << 20, chs), Ok(2 * 4 * 17 * 512));
        assert_eq!(size(b"qem2", 1 << 20, chs), Ok(1 << 20));
        assert_eq!(size(b"win ", 1023, chs), Ok(512));
        // A disk with the largest geometry may be larger, so the size field counts.
        assert_eq!(size(b"qemu", 128 << 30, (65_535, 16, 255)), Ok(128 << 30));
        assert_eq!(size(b"qemu", 1 << 20, (0, 4, 17)), Ok(0));
        assert!(
            size(b"qem2", 2040 << 30, chs).is_ok()
                && size(b"qem2", (2040 << 30) + 512, chs).is_err()
        );
    }

    #[test]
    fn a_wrong_checksum_is_refused() {
        let mut bytes = footer(b"qem2", 1 << 20, (2, 4, 17));
        bytes[100] ^= 1;
        assert!(matches!(
            Footer::parse(&bytes),
            Err(MapError::Header { field: "footer checksum", .. })
        ));
    }

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
