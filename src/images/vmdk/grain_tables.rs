//! The directory and the tables of a sparse extent, as the rules read them: from the bytes of a built image, without
//! any check.

use crate::formats::vmdk::constants::{
    COMPRESS_DEFLATE, ESX_TABLE_ENTRIES, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY, FLAG_ZERO_GRAINS,
    SE_SPARSE_ENTRY_BYTES, SECTOR_BYTES, ZERO_GRAIN, const_header, cowd_header, sparse_header,
};
use crate::images::damage::rules::Bytes;

/// A directory with its tables. Places and sizes are in sectors.
pub(super) struct GrainTables<'i> {
    pub(super) file: Bytes<'i>,
    /// The size of the disk.
    pub(super) capacity: u64,
    pub(super) directory: u64,
    pub(super) directory_entries: u64,
    /// The directory's copy.
    pub(super) redundant: Option<u64>,
    pub(super) table_entries: u64,
    pub(super) grain: u64,
    /// The part of the file before the grains.
    pub(super) overhead: u64,
    pub(super) is_compressed: bool,
    pub(super) has_markers: bool,
    pub(super) has_zeros: bool,
    /// The place of the first table, if entries have types and count tables.
    pub(super) typed_from: Option<u64>,
}

impl<'i> GrainTables<'i> {
    /// Returns the tables of a sparse extent, whose header that counts lies at `header`.
    pub(super) fn of_sparse(file: Bytes<'i>, header: u64) -> Self {
        use sparse_header as field;
        let number = |field| file.little_field(header, field);
        let has = |flag: u32| number(field::FLAGS) & u64::from(flag) != 0;
        let (capacity, grain) = (number(field::CAPACITY), number(field::GRAIN_SIZE));
        let table_entries = number(field::GTES_PER_GT);
        let is_compressed = number(field::COMPRESS_ALGORITHM) == u64::from(COMPRESS_DEFLATE);
        Self {
            file,
            capacity,
            directory: number(field::GD_OFFSET),
            directory_entries: capacity.div_ceil(table_entries.saturating_mul(grain).max(1)),
            redundant: has(FLAG_REDUNDANT_DIRECTORY).then(|| number(field::RGD_OFFSET)),
            table_entries,
            grain,
            overhead: number(field::OVERHEAD),
            is_compressed,
            has_markers: is_compressed && has(FLAG_MARKERS),
            has_zeros: has(FLAG_ZERO_GRAINS),
            typed_from: None,
        }
    }

    /// Returns the tables of an extent as ESX writes it.
    pub(super) fn of_cowd(file: Bytes<'i>) -> Self {
        use cowd_header as field;
        let number = |field| file.little_field(0, field);
        Self {
            capacity: number(field::CAPACITY),
            directory: number(field::GD_OFFSET),
            directory_entries: number(field::GD_ENTRIES),
            grain: number(field::GRAIN_SIZE),
            ..Self::of_esx(file)
        }
    }

    /// Returns the tables of an seSparse extent.
    pub(super) fn of_sesparse(file: Bytes<'i>) -> Self {
        use const_header as field;
        let number = |field| file.little_field(0, field);
        let directory_bytes = number(field::GRAIN_DIR_SIZE).saturating_mul(SECTOR_BYTES);
        Self {
            capacity: number(field::CAPACITY),
            directory: number(field::GRAIN_DIR_OFFSET),
            directory_entries: directory_bytes / SE_SPARSE_ENTRY_BYTES,
            grain: number(field::GRAIN_SIZE),
            typed_from: Some(number(field::GRAIN_TABLES_OFFSET)),
            ..Self::of_esx(file)
        }
    }

    /// Returns the facts that both kinds of extents share that ESX writes.
    fn of_esx(file: Bytes<'i>) -> Self {
        Self {
            file,
            capacity: 0,
            directory: 0,
            directory_entries: 0,
            redundant: None,
            table_entries: ESX_TABLE_ENTRIES.into(),
            grain: 0,
            overhead: 0,
            is_compressed: false,
            has_markers: false,
            has_zeros: false,
            typed_from: None,
        }
    }

    /// Calls `take` with the entry of each table that the directory names: its index and the number in it.
    pub(super) fn each_table(&self, mut take: impl FnMut(u64, u64)) {
        let (file, directory) = (&self.file, (offset_of(self.directory), self.directory_entries));
        match self.typed_from {
            Some(_) => file.each_entry(directory, [0; 8], |index, entry| {
                take(index, u64::from_le_bytes(entry));
            }),
            None => file.each_entry(directory, [0; 4], |index, entry| {
                take(index, u32::from_le_bytes(entry).into());
            }),
        }
    }

    /// Returns the offset of the redundant copy of the table that the entry `index` of the directory names; 0 if there
    /// is none in the redundant directory.
    pub(super) fn copy_of_table(&self, index: u64) -> Option<u64> {
        let directory = offset_of(self.redundant?);
        Some(offset_of(self.file.little(directory.saturating_add(index * 4), 4)))
    }

    /// Calls `take` with the index and the sector of each grain in the table at `table`, which the entry `index` of the
    /// directory names. The entries have no types.
    pub(super) fn each_grain(&self, (index, table): (u64, u64), mut take: impl FnMut(u64, u64)) {
        let first = index * self.table_entries;
        self.file.each_entry((table, self.table_entries), [0; 4], |at, entry| {
            let sector = u32::from_le_bytes(entry);
            if !self.has_zeros || sector != ZERO_GRAIN {
                take(first + at, sector.into());
            }
        });
    }
}

/// Returns the offset of a sector. As in QEMU, it has the lower 64 bits.
pub(super) fn offset_of(sector: u64) -> u64 {
    sector.wrapping_mul(SECTOR_BYTES)
}
