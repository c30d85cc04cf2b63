//! The header of a sparse extent.
//!
//! # Arithmetic
//! Products and sums have the lower bits that they have in QEMU.

use bytes::Buf;

use super::constants::{
    COMPRESS_DEFLATE, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY, FLAG_ZERO_GRAINS, HEADER_BYTES,
    MAX_GRAIN_TABLE_ENTRIES, MAX_VERSION,
};
use super::grain::table_at;
use super::tables::{GrainKind, Tables};
use crate::formats::error::MapError;

/// The fields of the header that a reader needs. All offsets are in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseHeader {
    /// The version.
    pub version: u32,
    /// The flags.
    pub flags: u32,
    /// The number of guest sectors.
    pub capacity_sectors: u64,
    /// The number of sectors in a grain.
    pub grain_sectors: u64,
    /// The sector of the descriptor.
    pub descriptor_sector: u64,
    /// The number of entries in a grain table.
    pub table_entries: u32,
    /// The sector of the copy of the grain directory.
    pub redundant_directory_sector: u64,
    /// The sector of the grain directory.
    pub directory_sector: u64,
    /// The sector of the first grain.
    pub overhead_sectors: u64,
    /// The compression of grains.
    pub compression: u16,
}

impl SparseHeader {
    /// Reads the fields behind the magic number, without any check.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Self {
        let mut rest = bytes.as_slice();
        // Magic number.
        rest.advance(4);
        let (version, flags) = (rest.get_u32_le(), rest.get_u32_le());
        let (capacity_sectors, grain_sectors) = (rest.get_u64_le(), rest.get_u64_le());
        let descriptor_sector = rest.get_u64_le();
        // Size of the descriptor.
        rest.advance(8);
        let table_entries = rest.get_u32_le();
        let (redundant_directory_sector, directory_sector) = (rest.get_u64_le(), rest.get_u64_le());
        let overhead_sectors = rest.get_u64_le();
        // Unclean shutdown, four bytes that text mode damages.
        rest.advance(5);
        Self {
            version,
            flags,
            capacity_sectors,
            grain_sectors,
            descriptor_sector,
            table_entries,
            redundant_directory_sector,
            directory_sector,
            overhead_sectors,
            compression: rest.get_u16_le(),
        }
    }

    /// Reports whether the extent stores a descriptor instead of a disk.
    pub fn is_descriptor(&self) -> bool {
        self.capacity_sectors == 0 && self.descriptor_sector != 0
    }

    /// Returns the tables of an extent in a file of `file_sectors`, with the checks that QEMU makes (`block/vmdk.c`,
    /// `vmdk_open_vmdk4`).
    ///
    /// # Errors
    /// QEMU refuses a field.
    pub fn tables(&self, file_sectors: u64) -> Result<Tables, MapError> {
        let fault = |field, found, expected| Err(MapError::Header { field, found, expected });
        if self.version > MAX_VERSION {
            return fault("version", self.version.into(), "at most 3");
        }
        if self.table_entries > MAX_GRAIN_TABLE_ENTRIES {
            return fault("entries of a grain table", self.table_entries.into(), "at most 512");
        }
        // QEMU takes the lower 32 bits of this product, and of the number of entries.
        let span = u64::from(self.table_entries).wrapping_mul(self.grain_sectors) & 0xffff_ffff;
        if span == 0 {
            return fault("guest sectors of a grain table", span, "a number other than 0");
        }
        let entries = self.capacity_sectors.wrapping_add(span - 1) / span;
        if self.overhead_sectors > file_sectors {
            let expected = "at most the sectors of the file";
            return fault("sector of the first grain", self.overhead_sectors, expected);
        }
        let kind = match self.compression == COMPRESS_DEFLATE {
            true => GrainKind::Compressed { has_marker: self.flags & FLAG_MARKERS != 0 },
            false => GrainKind::Plain,
        };
        let has_zeros = self.flags & FLAG_ZERO_GRAINS != 0;
        let tables = Tables::new(self.grain_sectors, entries & 0xffff_ffff, self.table_entries)?;
        let directory = table_at(self.directory_sector, tables.directory_bytes())?;
        // QEMU reads the copy, too, and only writes need it.
        if self.flags & FLAG_REDUNDANT_DIRECTORY != 0 {
            table_at(self.redundant_directory_sector, tables.directory_bytes())?;
        }
        Ok(Tables { directory, kind, has_zeros, ..tables })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the header of 100 sectors with grains of 8 sectors and grain tables of 4 entries.
    fn header() -> SparseHeader {
        SparseHeader {
            version: 1,
            flags: 1,
            capacity_sectors: 100,
            grain_sectors: 8,
            descriptor_sector: 1,
            table_entries: 4,
            redundant_directory_sector: 0,
            directory_sector: 21,
            overhead_sectors: 24,
            compression: 0,
        }
    }

    #[test]
    fn the_directory_covers_the_capacity() {
        let tables = header().tables(24).unwrap();
        assert_eq!((tables.directory.get(), tables.directory_entries), (21 * 512, 4));
        assert_eq!((tables.grain_bytes(), tables.span_bytes()), (4096, 4 * 4096));
    }

    #[test]
    fn bounds_are_those_of_qemu() {
        let refused = |change: fn(&mut SparseHeader)| {
            let mut header = header();
            change(&mut header);
            header.tables(24).is_err()
        };
        assert!(!refused(|_| ()));
        assert!(!refused(|header| header.version = 3) && refused(|header| header.version = 4));
        assert!(!refused(|header| header.table_entries = 512));
        assert!(refused(|header| header.table_entries = 513));
        assert!(refused(|header| header.table_entries = 0));
        assert!(refused(|header| header.grain_sectors = 0));
        assert!(!refused(|header| header.grain_sectors = 0x20_0000));
        assert!(refused(|header| header.grain_sectors = 0x20_0001));
        assert!(refused(|header| header.overhead_sectors = 25));
        assert!(!refused(|header| header.capacity_sectors = 32 << 25));
        assert!(refused(|header| header.capacity_sectors = (32 << 25) + 1));
        // The number of entries is 2^32.
        assert!(!refused(|header| header.capacity_sectors = 32 << 32));
        assert!(refused(|header| header.directory_sector = 1 << 54));
        // The offset in bytes exceeds 64 bits, and is 0.
        assert!(!refused(|header| header.directory_sector = 1 << 55));
        assert!(!refused(|header| header.redundant_directory_sector = 1 << 54));
        assert!(refused(|header| {
            header.redundant_directory_sector = 1 << 54;
            header.flags |= FLAG_REDUNDANT_DIRECTORY;
        }));
    }
}
