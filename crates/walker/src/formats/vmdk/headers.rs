//! The headers of sparse extents: the usual one and its copy in a footer, the one that ESX writes, and both headers of
//! seSparse extents, which ESXi writes. That format is not documented; the checks are those of QEMU (`block/vmdk.c`,
//! `vmdk_open_se_sparse`).
//!
//! # Arithmetic
//! Products and sums have the lower bits that they have in QEMU.

use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::StructureField;
use crate::formats::error::MapError;
use crate::formats::vmdk::constants::{
    COMPRESS_DEFLATE, ESX_TABLE_ENTRIES, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY, FLAG_ZERO_GRAINS,
    HEADER_BYTES, MARKER_FOOTER, MAX_GRAIN_TABLE_ENTRIES, MAX_VERSION, SE_SPARSE_ENTRY_BYTES,
    SE_SPARSE_GRAIN_SECTORS, SE_SPARSE_MAGIC, SE_SPARSE_TABLE_SECTORS, SE_SPARSE_VERSION,
    SE_SPARSE_VOLATILE_MAGIC, SPARSE_MAGIC, STREAM_FOOTER_BYTES, const_header, cowd_header, marker,
    sparse_header, volatile_header,
};
use crate::formats::vmdk::tables::{GrainKind, SeSparse, Tables, offset_of, table_at};

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
    pub compression: u32,
}

impl SparseHeader {
    /// Reads the fields behind the magic number, without any check.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            version: sparse_header::VERSION.little_32(bytes),
            flags: sparse_header::FLAGS.little_32(bytes),
            capacity_sectors: sparse_header::CAPACITY.little(bytes),
            grain_sectors: sparse_header::GRAIN_SIZE.little(bytes),
            descriptor_sector: sparse_header::DESCRIPTOR_OFFSET.little(bytes),
            table_entries: sparse_header::GTES_PER_GT.little_32(bytes),
            redundant_directory_sector: sparse_header::RGD_OFFSET.little(bytes),
            directory_sector: sparse_header::GD_OFFSET.little(bytes),
            overhead_sectors: sparse_header::OVERHEAD.little(bytes),
            compression: sparse_header::COMPRESS_ALGORITHM.little_32(bytes),
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
        let kind = match self.compression == COMPRESS_DEFLATE.into() {
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

/// Returns the header in a footer, with the checks that QEMU makes (`block/vmdk.c`, `vmdk_open_vmdk4`).
///
/// # Errors
/// The header lacks the magic number, or does not lie between a marker of a footer and a marker of the end.
pub fn footer_header(bytes: &[u8; STREAM_FOOTER_BYTES]) -> Result<SparseHeader, MapError> {
    let sectors = bytes.as_chunks::<HEADER_BYTES>().0;
    let [marker, header, end] = sectors else { return Err(no_footer()) };
    let (_, size, kind) = marker_fields(marker);
    let is_footer = header.starts_with(&SPARSE_MAGIC) && size == 0 && kind == MARKER_FOOTER;
    match is_footer && marker_fields(end) == (0, 0, 0) {
        true => Ok(SparseHeader::read(header)),
        false => Err(no_footer()),
    }
}

/// Returns the value, the size and the type of a marker.
pub(super) fn marker_fields(bytes: &[u8; HEADER_BYTES]) -> (u64, u32, u32) {
    let (size, kind) = (marker::MARKER_SIZE, marker::MARKER_TYPE);
    (marker::MARKER_SECTORS.little(bytes), size.little_32(bytes), kind.little_32(bytes))
}

/// Returns the error of an extent without a footer where its header announces one.
pub fn no_footer() -> MapError {
    MapError::NotImage { format: "vmdk", what: "no footer at the end of the file" }
}

/// The fields of the header that a reader needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CowdHeader {
    /// The number of guest sectors.
    pub capacity_sectors: u32,
    /// The number of sectors in a grain.
    pub grain_sectors: u32,
    /// The sector of the grain directory.
    pub directory_sector: u32,
    /// The number of entries of the grain directory.
    pub directory_entries: u32,
}

impl CowdHeader {
    /// Reads the fields behind the magic number, without any check.
    pub fn read(bytes: &[u8; HEADER_BYTES]) -> Self {
        Self {
            capacity_sectors: cowd_header::CAPACITY.little_32(bytes),
            grain_sectors: cowd_header::GRAIN_SIZE.little_32(bytes),
            directory_sector: cowd_header::GD_OFFSET.little_32(bytes),
            directory_entries: cowd_header::GD_ENTRIES.little_32(bytes),
        }
    }

    /// Reports whether a grain table maps at least one sector, and fewer than 2^32. QEMU takes the lower 32 bits of
    /// this number and divides by it, which ends the process at the first query if they are 0.
    pub fn is_divisible(&self) -> bool {
        (1..1 << 20).contains(&self.grain_sectors)
    }

    /// Returns the tables of the extent, with the checks that QEMU makes (`block/vmdk.c`, `vmdk_open_vmfs_sparse`).
    ///
    /// # Errors
    /// QEMU refuses a field.
    pub fn tables(&self) -> Result<Tables, MapError> {
        let (grain, entries) = (self.grain_sectors.into(), self.directory_entries.into());
        let tables = Tables::new(grain, entries, ESX_TABLE_ENTRIES)?;
        let directory = table_at(self.directory_sector.into(), tables.directory_bytes())?;
        Ok(Tables { directory, ..tables })
    }
}

/// The header of an seSparse extent that does not change while the disk is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstHeader {
    /// The number of guest sectors.
    pub capacity_sectors: u64,
    /// The sector of the volatile header.
    pub volatile_sector: u64,
    directory_sector: u64,
    directory_sectors: u64,
    places: SeSparse,
}

impl ConstHeader {
    /// Parses the header.
    ///
    /// # Errors
    /// QEMU refuses a field.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, MapError> {
        use const_header as field;
        let number = |field: StructureField| field.little(bytes);
        if number(field::MAGIC) != SE_SPARSE_MAGIC {
            return Err(not_sesparse("no constant header in the first sector"));
        }
        let (grain, table) = (number(field::GRAIN_SIZE), number(field::GRAIN_TABLE_SIZE));
        expect("version", number(field::VERSION), SE_SPARSE_VERSION, "8589934593")?;
        expect("sectors of a grain", grain, SE_SPARSE_GRAIN_SECTORS, "8")?;
        expect("sectors of a grain table", table, SE_SPARSE_TABLE_SECTORS, "64")?;
        expect("flags", number(field::FLAGS), 0, "0")?;
        for reserved in [field::RESERVED1, field::RESERVED2, field::RESERVED3, field::RESERVED4] {
            expect("reserved field", number(reserved), 0, "0")?;
        }
        zeros(bytes, field::PAD)?;
        Ok(Self {
            capacity_sectors: number(field::CAPACITY),
            volatile_sector: number(field::VOLATILE_HEADER_OFFSET),
            directory_sector: number(field::GRAIN_DIR_OFFSET),
            directory_sectors: number(field::GRAIN_DIR_SIZE),
            places: SeSparse {
                tables_sector: number(field::GRAIN_TABLES_OFFSET),
                grains_sector: number(field::GRAINS_OFFSET),
            },
        })
    }

    /// Returns the host offset of the volatile header.
    ///
    /// # Errors
    /// The header lies past the end of every file.
    pub fn volatile_offset(&self) -> Result<HostOffset, MapError> {
        table_at(self.volatile_sector, HEADER_BYTES as u64)
    }

    /// Returns the tables of the extent.
    ///
    /// # Errors
    /// QEMU refuses the directory.
    pub fn tables(&self) -> Result<Tables, MapError> {
        // QEMU takes the lower 64 bits of the length, and the lower 32 bits of the number of entries.
        let entries =
            (offset_of(self.directory_sectors).get() / SE_SPARSE_ENTRY_BYTES) & 0xffff_ffff;
        let tables = Tables::new(SE_SPARSE_GRAIN_SECTORS, entries, ESX_TABLE_ENTRIES)?;
        let tables = Tables { kind: GrainKind::SeSparse(self.places), ..tables };
        let directory = table_at(self.directory_sector, tables.directory_bytes())?;
        Ok(Tables { directory, ..tables })
    }
}

/// Checks the header of an seSparse extent that changes while the disk is in use.
///
/// # Errors
/// QEMU refuses a field: the journal holds changes that the tables lack, for example.
pub fn check_volatile(bytes: &[u8; HEADER_BYTES]) -> Result<(), MapError> {
    if volatile_header::MAGIC.little(bytes) != SE_SPARSE_VOLATILE_MAGIC {
        return Err(not_sesparse("no volatile header at its sector"));
    }
    let replay = volatile_header::REPLAY_JOURNAL.little(bytes);
    expect("replay of the journal", replay, 0, "0")?;
    zeros(bytes, volatile_header::PAD)
}

fn expect(
    field: &'static str,
    found: u64,
    wanted: u64,
    expected: &'static str,
) -> Result<(), MapError> {
    match found == wanted {
        true => Ok(()),
        false => Err(MapError::Header { field, found, expected }),
    }
}

/// Checks that the padding, which begins with this field, consists of zeros.
fn zeros(header: &[u8; HEADER_BYTES], padding: StructureField) -> Result<(), MapError> {
    let mut bytes = header.iter().skip(padding.at);
    match bytes.find(|byte| **byte != 0) {
        None => Ok(()),
        Some(byte) => expect("padding", (*byte).into(), 0, "0"),
    }
}

fn not_sesparse(what: &'static str) -> MapError {
    MapError::NotImage { format: "seSparse", what }
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
        // The offset in bytes overflows 64 bits, and wraps to 0.
        assert!(!refused(|header| header.directory_sector = 1 << 55));
        assert!(!refused(|header| header.redundant_directory_sector = 1 << 54));
        assert!(refused(|header| {
            header.redundant_directory_sector = 1 << 54;
            header.flags |= FLAG_REDUNDANT_DIRECTORY;
        }));
    }

    #[test]
    fn grain_tables_map_a_number_of_sectors_with_32_bits() {
        let tables = |grain_sectors| {
            let header = CowdHeader {
                capacity_sectors: 64,
                grain_sectors,
                directory_sector: 4,
                directory_entries: 1,
            };
            header.tables().map(|_| header.is_divisible()).ok()
        };
        assert_eq!([1, (1 << 20) - 1].map(tables), [Some(true); 2]);
        assert_eq!([0, 1 << 20, 2 << 20].map(tables), [Some(false); 3]);
        assert_eq!(tables((2 << 20) + 1), None);
    }
}
