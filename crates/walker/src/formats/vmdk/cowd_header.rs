//! The header of a sparse extent as ESX writes it.

use bytes::Buf;

use super::constants::{ESX_TABLE_ENTRIES, HEADER_BYTES};
use super::grain::table_at;
use super::tables::Tables;
use crate::formats::error::MapError;

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
        let mut rest = bytes.as_slice();
        // Magic number, version, flags.
        rest.advance(12);
        Self {
            capacity_sectors: rest.get_u32_le(),
            grain_sectors: rest.get_u32_le(),
            directory_sector: rest.get_u32_le(),
            directory_entries: rest.get_u32_le(),
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

#[cfg(test)]
mod tests {
    use super::*;

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
