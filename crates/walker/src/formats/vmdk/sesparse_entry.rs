//! The entries of the tables of seSparse extents.
//!
//! # Arithmetic
//! Sectors have the lower 64 bits, as in QEMU.

use super::constants::SE_SPARSE_TABLE_SECTORS;
use super::grain::{Grain, offset_of};

/// The places that the entries of the tables count from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeSparse {
    pub(super) tables_sector: u64,
    pub(super) grains_sector: u64,
}

/// The upper half of a directory entry that names a grain table.
const TABLE_ALLOCATED: u64 = 0x1000_0000;

impl SeSparse {
    /// Returns the sector of the grain table that a directory entry names; 0 if it names none.
    pub(super) fn table_sector(&self, entry: u64) -> Result<u64, &'static str> {
        if entry == 0 {
            return Ok(0);
        }
        if entry >> 32 != TABLE_ALLOCATED {
            return Err("the entry of the grain directory has an unknown type");
        }
        let index = entry & 0xffff_ffff;
        let sector = self.tables_sector.wrapping_add(index * SE_SPARSE_TABLE_SECTORS);
        match u32::try_from(sector) {
            Ok(_) => Ok(sector),
            Err(_) => Err("the entry of the grain directory names a sector past 2^32"),
        }
    }

    /// Returns the meaning of an entry of a grain table.
    pub(super) fn grain(&self, entry: u64, grain_sectors: u32) -> Result<Grain, &'static str> {
        let index = (entry & 0xffff_ffff_ffff) << 12 | (entry >> 48) & 0xfff;
        let sector = index.wrapping_mul(grain_sectors.into()).wrapping_add(self.grains_sector);
        match entry >> 60 {
            0 if entry == 0 => Ok(Grain::Unallocated),
            1 | 2 => Ok(Grain::Zero),
            3 if sector == 0 => Ok(Grain::Unallocated),
            3 => Ok(Grain::At(offset_of(sector))),
            _ => Err("the entry of the grain table has an unknown type"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::offsets::HostOffset;

    #[test]
    fn entries_have_types() {
        let places = SeSparse { tables_sector: 100, grains_sector: 1000 };
        assert_eq!(places.table_sector(0), Ok(0));
        assert_eq!(places.table_sector(0x1000_0000_0000_0003), Ok(100 + 3 * 64));
        assert!(places.table_sector(0x1000_0001_0000_0003).is_err());
        assert!(places.table_sector(3).is_err());
        assert!(places.table_sector(0x1000_0000_ffff_ffff).is_err());
        let grain = |entry| places.grain(entry, 8);
        assert_eq!(grain(0), Ok(Grain::Unallocated));
        assert!(grain(1).is_err() && grain(0x4000_0000_0000_0000).is_err());
        assert_eq!(grain(0x1000_0000_0000_0000), Ok(Grain::Zero));
        assert_eq!(grain(0x2000_0000_0000_0007), Ok(Grain::Zero));
        // The lower twelve bits of the index lie above the others.
        let at = |sector: u64| Ok(Grain::At(HostOffset::new(sector * 512)));
        assert_eq!(grain(0x3005_0000_0000_0000), at(1000 + 8 * 5));
        assert_eq!(grain(0x3005_0000_0000_0001), at(1000 + 8 * 4101));
    }
}
