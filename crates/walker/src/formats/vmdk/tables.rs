//! The tables of a sparse extent: a grain directory names grain tables, whose entries name grains.

use super::constants::{MAX_DIRECTORY_ENTRIES, MAX_GRAIN_SECTORS, SECTOR_BYTES};
use super::grain::{Grain, offset_of};
use super::sesparse_entry::SeSparse;
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;

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
    /// ([`CowdHeader::is_divisible`](super::cowd_header::CowdHeader::is_divisible)).
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
