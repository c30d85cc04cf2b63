//! An extent of a disk.

use crate::disk::extent::Mapping;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::vmdk::constants::MAX_LENGTH_BYTES;
use crate::formats::vmdk::grain::Grain;
use crate::formats::vmdk::tables::{GrainKind, Tables};

/// An open extent.
#[derive(Debug)]
pub(super) struct OpenExtent<'s, S: Storage + ?Sized> {
    pub(super) file: &'s S,
    /// The first guest byte.
    pub(super) start: GuestOffset,
    /// The guest byte behind the extent.
    pub(super) end: GuestOffset,
    pub(super) data: ExtentData,
}

/// The place of an extent's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtentData {
    /// All data, from this host offset on.
    Flat(HostOffset),
    /// Grains.
    Sparse(Tables),
    /// Grains whose tables map a number of sectors by which QEMU cannot divide.
    Indivisible(Tables),
}

/// A grain, or a flat extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) grain: Grain,
    pub(super) start: GuestOffset,
    pub(super) end: GuestOffset,
}

impl<S: Storage + ?Sized> OpenExtent<'_, S> {
    /// Returns the piece that holds the byte at `guest`, which lies in the extent.
    pub(super) fn piece_at(&self, guest: GuestOffset) -> Result<Piece, MapError> {
        let (start, end) = (self.start, self.end);
        let tables = match &self.data {
            ExtentData::Flat(offset) => {
                let length = end.saturating_distance_from(start);
                let in_file =
                    offset.get().checked_add(length).is_some_and(|end| end <= MAX_LENGTH_BYTES);
                return match in_file {
                    true => Ok(Piece { grain: Grain::At(*offset), start, end }),
                    false => Err(MapError::Grain { guest, what: PAST_FILES }),
                };
            }
            ExtentData::Sparse(tables) => tables,
            ExtentData::Indivisible(_) => {
                return Err(MapError::Grain { guest, what: INDIVISIBLE });
            }
        };
        let inside = guest.saturating_distance_from(start);
        let at_grain = inside - inside % tables.grain_bytes();
        let start = start + at_grain;
        let end = start + tables.grain_bytes();
        Ok(Piece { grain: self.grain_of(tables, inside, guest)?, start, end })
    }

    /// Returns the end of the piece that holds the byte at `guest`, which lies in the extent. As in QEMU, a grain is
    /// always whole: the last one of a sparse extent covers the beginning of the next extent, too.
    pub(super) fn end_of_piece(&self, guest: GuestOffset) -> GuestOffset {
        match &self.data {
            ExtentData::Flat(_) | ExtentData::Indivisible(_) => self.end,
            ExtentData::Sparse(tables) => {
                let inside = guest.saturating_distance_from(self.start);
                guest + (tables.grain_bytes() - inside % tables.grain_bytes())
            }
        }
    }

    /// Returns the grain that holds the byte at `inside` the extent.
    fn grain_of(
        &self,
        tables: &Tables,
        inside: u64,
        guest: GuestOffset,
    ) -> Result<Grain, MapError> {
        let fault = |what| MapError::Grain { guest, what };
        let index = inside / tables.span_bytes();
        if index >= tables.directory_entries.into() {
            return Err(fault(NO_DIRECTORY_ENTRY));
        }
        let entry = self.entry(tables, tables.directory, index)?;
        let Some(table) = tables.table_of(entry).map_err(fault)? else {
            return Ok(Grain::Unallocated);
        };
        let index = inside % tables.span_bytes() / tables.grain_bytes();
        let entry = self.entry(tables, table, index)?;
        tables.grain_of(entry).map_err(fault)
    }

    /// Reads an entry of the grain directory or of a grain table.
    fn entry(&self, tables: &Tables, table: HostOffset, index: u64) -> Result<u64, MapError> {
        let at = table + index.saturating_mul(tables.entry_bytes());
        let mut short = [0; 4];
        let mut long = [0; 8];
        match tables.kind {
            GrainKind::SeSparse(_) => self.file.read_at(at, &mut long)?,
            GrainKind::Plain | GrainKind::Compressed { .. } => self.file.read_at(at, &mut short)?,
        }
        Ok(u64::from_le_bytes(long) | u64::from(u32::from_le_bytes(short)))
    }

    /// Returns the mapping of the first byte of a grain.
    pub(super) fn mapping_of(&self, grain: Grain) -> Mapping {
        let is_compressed = match &self.data {
            ExtentData::Sparse(tables) => tables.is_compressed(),
            ExtentData::Flat(_) | ExtentData::Indivisible(_) => false,
        };
        let present = Mapping { present: true, ..Mapping::HOLE };
        let stored = Mapping { zero: false, data: true, ..present };
        match grain {
            Grain::Unallocated => Mapping::HOLE,
            Grain::Zero => present,
            Grain::At(_) if is_compressed => Mapping { compressed: true, ..stored },
            Grain::At(host) => Mapping { offset: Some(host), ..stored },
        }
    }
}

/// The fault of an extent with [`ExtentData::Indivisible`].
pub(super) const INDIVISIBLE: &str = "a grain table maps no sector, or 2^32 or more";
/// The fault of a flat extent whose data would lie past the longest file. QEMU prints a negative offset, and fails to
/// read.
const PAST_FILES: &str = "the data of the extent pass the end of the longest file";
/// The fault of an extent whose grain directory does not reach to its end.
pub(super) const NO_DIRECTORY_ENTRY: &str = "the grain directory has no entry for it";
