//! seSparse extents, which ESXi writes. The format is not documented; the checks are those of QEMU (`block/vmdk.c`,
//! `vmdk_open_se_sparse`).

use bytes::Buf;

use super::constants::{
    ESX_TABLE_ENTRIES, HEADER_BYTES, SE_SPARSE_ENTRY_BYTES, SE_SPARSE_GRAIN_SECTORS,
    SE_SPARSE_MAGIC, SE_SPARSE_TABLE_SECTORS, SE_SPARSE_VERSION, SE_SPARSE_VOLATILE_MAGIC,
};
use super::grain::{offset_of, table_at};
use super::sesparse_entry::SeSparse;
use super::tables::{GrainKind, Tables};
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;

/// The header that does not change while the disk is in use.
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
        let mut rest = bytes.as_slice();
        if rest.get_u64_le() != SE_SPARSE_MAGIC {
            return Err(not_sesparse("no constant header in the first sector"));
        }
        expect("version", rest.get_u64_le(), SE_SPARSE_VERSION, "8589934593")?;
        let capacity_sectors = rest.get_u64_le();
        expect("sectors of a grain", rest.get_u64_le(), SE_SPARSE_GRAIN_SECTORS, "8")?;
        expect("sectors of a grain table", rest.get_u64_le(), SE_SPARSE_TABLE_SECTORS, "64")?;
        expect("flags", rest.get_u64_le(), 0, "0")?;
        for _ in 0..4 {
            expect("reserved field", rest.get_u64_le(), 0, "0")?;
        }
        let volatile_sector = rest.get_u64_le();
        // Size of the volatile header; offsets and sizes of the journal's header and of the journal.
        rest.advance(5 * 8);
        let (directory_sector, directory_sectors) = (rest.get_u64_le(), rest.get_u64_le());
        let tables_sector = rest.get_u64_le();
        // Size of the tables; offsets and sizes of the bitmap of free grains and of the map from grains to entries.
        rest.advance(5 * 8);
        let grains_sector = rest.get_u64_le();
        // Size of the grains.
        rest.advance(8);
        zeros(rest)?;
        let places = SeSparse { tables_sector, grains_sector };
        Ok(Self { capacity_sectors, volatile_sector, directory_sector, directory_sectors, places })
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

/// Checks the header that changes while the disk is in use.
///
/// # Errors
/// QEMU refuses a field: the journal holds changes that the tables lack, for example.
pub fn check_volatile(bytes: &[u8; HEADER_BYTES]) -> Result<(), MapError> {
    let mut rest = bytes.as_slice();
    if rest.get_u64_le() != SE_SPARSE_VOLATILE_MAGIC {
        return Err(not_sesparse("no volatile header at its sector"));
    }
    // Number of the next free table, sequence number of the next transaction.
    rest.advance(2 * 8);
    expect("replay of the journal", rest.get_u64_le(), 0, "0")?;
    zeros(rest)
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

fn zeros(padding: &[u8]) -> Result<(), MapError> {
    match padding.iter().find(|byte| **byte != 0) {
        None => Ok(()),
        Some(byte) => expect("padding", (*byte).into(), 0, "0"),
    }
}

fn not_sesparse(what: &'static str) -> MapError {
    MapError::NotImage { format: "seSparse", what }
}
