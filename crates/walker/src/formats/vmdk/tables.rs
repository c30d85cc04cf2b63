//! The tables of a sparse extent: a grain directory names grain tables, whose entries name grains.
//!
//! # Arithmetic
//! Sectors and host offsets have the lower 64 bits, as in QEMU.

use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;
use crate::formats::vmdk::constants::{
    MAX_DIRECTORY_ENTRIES, MAX_GRAIN_SECTORS, MAX_LENGTH_BYTES, SE_SPARSE_TABLE_SECTORS,
    SECTOR_BYTES,
};

/// The tables of a sparse extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The host offset of the grain directory.
    pub directory: HostOffset,
    /// The number of entries of the grain directory.
    pub directory_entries: u32,
    /// The number of entries of a grain table.
    pub table_entries: u32,
    /// The number of sectors in a grain: from 1 to [`MAX_GRAIN_SECTORS`]. Some extents of ESX have 0
    /// ([`CowdHeader::is_divisible`](super::headers::CowdHeader::is_divisible)).
    pub(super) grain_sectors: u32,
    /// The storage of grains.
    pub kind: GrainKind,
    /// The entry 1 stands for a grain of zeros.
    pub has_zeros: bool,
}

/// The storage of the grains of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrainKind {
    /// Grains are stored as they are, and entries have 32 bits.
    Plain,
    /// Grains are compressed, and entries have 32 bits.
    Compressed {
        /// A marker with its length precedes each grain.
        has_marker: bool,
    },
    /// Grains are stored as they are, and entries have 64 bits.
    SeSparse(SeSparse),
}

impl Tables {
    /// Creates tables of plain grains, with a directory at 0 that has the lower 32 bits of `directory_entries`.
    ///
    /// # Errors
    /// QEMU refuses the grain, or the number of entries (`block/vmdk.c`, `vmdk_add_extent`).
    pub fn new(
        grain_sectors: u64,
        directory_entries: u64,
        table_entries: u32,
    ) -> Result<Self, MapError> {
        let fault = |field, found, expected| MapError::Header { field, found, expected };
        let grain = u32::try_from(grain_sectors).ok();
        let grain = grain.filter(|_| grain_sectors <= MAX_GRAIN_SECTORS);
        let grain = grain.ok_or(fault("sectors of a grain", grain_sectors, "at most 2097152"))?;
        let entries = u32::try_from(directory_entries).ok();
        let entries = entries.filter(|entries| *entries <= MAX_DIRECTORY_ENTRIES);
        let field = "entries of the grain directory";
        Ok(Self {
            directory: HostOffset::ZERO,
            directory_entries: entries.ok_or(fault(
                field,
                directory_entries,
                "at most 33554432",
            ))?,
            table_entries,
            grain_sectors: grain,
            kind: GrainKind::Plain,
            has_zeros: false,
        })
    }

    /// Returns the number of guest bytes in a grain.
    pub fn grain_bytes(&self) -> u64 {
        u64::from(self.grain_sectors) * SECTOR_BYTES
    }

    /// Returns the number of guest bytes that a grain table maps: less than 2^43.
    pub fn span_bytes(&self) -> u64 {
        // A table has at most 4,096 entries, and a grain at most 2^30 bytes.
        self.grain_bytes().saturating_mul(self.table_entries.into())
    }

    /// Reports whether grains are compressed.
    pub fn is_compressed(&self) -> bool {
        matches!(self.kind, GrainKind::Compressed { .. })
    }

    /// Returns the number of bytes of a directory entry and of a table entry.
    pub fn entry_bytes(&self) -> u64 {
        match self.kind {
            GrainKind::SeSparse(_) => 8,
            GrainKind::Plain | GrainKind::Compressed { .. } => 4,
        }
    }

    /// Returns the number of bytes of the directory.
    pub fn directory_bytes(&self) -> u64 {
        u64::from(self.directory_entries) * self.entry_bytes()
    }

    /// Returns the number of bytes of a grain table.
    pub fn table_bytes(&self) -> u64 {
        u64::from(self.table_entries) * self.entry_bytes()
    }

    /// Returns the host offset of the grain table that a directory entry names; `None` if it names none.
    ///
    /// # Errors
    /// QEMU refuses the entry.
    pub fn table_of(&self, entry: u64) -> Result<Option<HostOffset>, &'static str> {
        let sector = match &self.kind {
            GrainKind::SeSparse(sesparse) => sesparse.table_sector(entry)?,
            GrainKind::Plain | GrainKind::Compressed { .. } => entry,
        };
        Ok((sector != 0).then(|| offset_of(sector)))
    }

    /// Returns the meaning of an entry of a grain table.
    ///
    /// # Errors
    /// QEMU refuses the entry.
    pub fn grain_of(&self, entry: u64) -> Result<Grain, &'static str> {
        match &self.kind {
            GrainKind::SeSparse(sesparse) => sesparse.grain(entry, self.grain_sectors),
            GrainKind::Plain | GrainKind::Compressed { .. } => Ok(match entry {
                0 => Grain::Unallocated,
                1 if self.has_zeros => Grain::Zero,
                sector => Grain::At(offset_of(sector)),
            }),
        }
    }
}

/// The meaning of an entry of a grain table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// The extent does not have the grain.
    Unallocated,
    /// The grain consists of zeros.
    Zero,
    /// The grain is stored at this host offset.
    At(HostOffset),
}

/// Returns the host offset of a sector. As in QEMU, it has the lower 64 bits.
pub fn offset_of(sector: u64) -> HostOffset {
    HostOffset::new(sector.wrapping_mul(SECTOR_BYTES))
}

/// Returns the host offset of a structure that QEMU reads when it opens the image.
///
/// # Errors
/// The structure does not end before [`MAX_LENGTH_BYTES`], so that QEMU cannot read it.
pub(super) fn table_at(sector: u64, length_bytes: u64) -> Result<HostOffset, MapError> {
    let offset = offset_of(sector);
    let end = offset.checked_add(length_bytes);
    match end.is_some_and(|end| end.get() <= MAX_LENGTH_BYTES) {
        true => Ok(offset),
        false => Err(MapError::Header {
            field: "sector of a structure",
            found: sector,
            expected: "one from which the structure ends before 2^63",
        }),
    }
}

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
    fn table_sector(&self, entry: u64) -> Result<u64, &'static str> {
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
