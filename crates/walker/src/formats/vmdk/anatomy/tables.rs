//! The anatomy of grain directories, of their tables, and of the heads of grains.

use std::ops::{ControlFlow, Range};

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Storage, read_array};
use crate::formats::anatomy::{Anatomy, ByteOrder, Element, FieldGroup, NOTHING, OffsetUnit, Part};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::vmdk::constants::{
    GRAIN_MARKER_BYTES, HEADER_BYTES, SECTOR_BYTES, grain_marker, marker, stream,
};
use crate::formats::vmdk::headers::marker_fields;
use crate::formats::vmdk::tables::{Grain, GrainKind, Tables};

/// The number of bytes of a stream's fields.
const STREAM_FIELDS_BYTES: u64 = 6;

/// The number of bytes of a directory or a table that are read at a time.
const GRAIN_TABLE_SCRATCH_BYTES: usize = 2048;

/// The number of directories and tables after which no more are read. Images of programs have fewer.
const MAX_OCCUPIED: usize = 1 << 16;

/// A directory, and whether readers follow it.
#[derive(Clone, Copy)]
pub(super) struct DirectoryPlace<'o> {
    pub at: HostOffset,
    pub is_used: bool,
    /// The sectors that cannot be markers; `None` if the image has no markers.
    pub occupied: Option<&'o OccupiedSectors>,
}

/// The sectors of all directories and tables, up to [`MAX_OCCUPIED`] of them. A table may have the bytes of a marker.
pub(super) struct OccupiedSectors {
    /// In the order of the file.
    ranges: Vec<Range<HostOffset>>,
}

impl OccupiedSectors {
    /// Reads the directories at `directories`.
    pub(super) fn read<S: Storage + ?Sized>(
        storage: &S,
        tables: &Tables,
        directories: impl Iterator<Item = HostOffset>,
    ) -> Result<Self, MapError> {
        let mut ranges = Vec::new();
        let mut scratch = [0; GRAIN_TABLE_SCRATCH_BYTES];
        for directory in directories {
            ranges.push(directory..directory + tables.directory_bytes());
            let indices = 0..u64::from(tables.directory_entries);
            let note = |piece: Entries<'_, 4>| -> Flow {
                let Entries::Read(_, entries) = piece else {
                    return Ok(ControlFlow::Continue(()));
                };
                let named = entries.iter().map(|entry| tables.table_of(number_of(entry)));
                let tables_at = named.filter_map(|table| table.ok().flatten());
                ranges.extend(tables_at.map(|at| at..at + tables.table_bytes()));
                Ok(match ranges.len() < MAX_OCCUPIED {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                })
            };
            let _ =
                each_entries::<4, S, MapError>(storage, directory, indices, &mut scratch, note)?;
        }
        ranges.sort_unstable_by_key(|range| range.start);
        Ok(Self { ranges })
    }

    fn contains(&self, at: HostOffset) -> bool {
        let behind = self.ranges.partition_point(|range| range.start <= at);
        let before = behind.checked_sub(1).and_then(|index| self.ranges.get(index));
        before.is_some_and(|range| at < range.end)
    }
}

impl Anatomy {
    /// Adds a directory and its tables.
    pub(super) fn directory<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        tables: &Tables,
        place: DirectoryPlace<'_>,
    ) -> Result<(), MapError> {
        match tables.kind {
            GrainKind::SeSparse(_) => self.entries_of_directory::<8, S>(storage, tables, place),
            GrainKind::Plain | GrainKind::Compressed { .. } => {
                self.entries_of_directory::<4, S>(storage, tables, place)
            }
        }
    }

    /// Adds a directory with entries of `N` bytes, and its tables.
    fn entries_of_directory<const N: usize, S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        tables: &Tables,
        place: DirectoryPlace<'_>,
    ) -> Result<(), MapError> {
        let (bytes, span) = (tables.directory_bytes(), tables.span_bytes());
        self.table_structure(Part::Directory, place, place.at, bytes);
        self.marker_before(storage, place, place.at)?;
        let table = Range { start: place.at, end: place.at + bytes };
        let mut scratch = [0; GRAIN_TABLE_SCRATCH_BYTES];
        let indices = 0..u64::from(tables.directory_entries);
        let _ = each_entries::<N, S, MapError>(
            storage,
            table.start,
            indices,
            &mut scratch,
            |piece| -> Flow {
                let Entries::Read(first, entries) = piece else {
                    return Ok(ControlFlow::Continue(()));
                };
                for (index, entry) in (first..).zip(entries) {
                    let number = number_of(entry);
                    // An entry that QEMU refuses names no table.
                    let Ok(Some(named)) = tables.table_of(number) else { continue };
                    let start = index.saturating_mul(span);
                    let guest = start..start.saturating_add(span);
                    self.push(entry_of::<N>(
                        Part::Directory,
                        (index, &table),
                        guest,
                        place.is_used,
                    ));
                    self.grain_table::<N, S>(storage, tables, (place, named), start)?;
                }
                Ok(self.room())
            },
        )?;
        Ok(())
    }

    /// Adds the grain table at `at`, whose first entry maps the guest bytes from `start` on.
    fn grain_table<const N: usize, S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        tables: &Tables,
        (place, at): (DirectoryPlace<'_>, HostOffset),
        start: u64,
    ) -> Result<(), MapError> {
        let bytes = tables.table_bytes();
        self.table_structure(Part::Table, place, at, bytes);
        self.marker_before(storage, place, at)?;
        if !place.is_used && !self.keeps_elements() {
            // The used table names the same grains.
            return Ok(());
        }
        let table = Range { start: at, end: at + bytes };
        let (indices, mut scratch) =
            (0..u64::from(tables.table_entries), [0; GRAIN_TABLE_SCRATCH_BYTES]);
        let _ =
            each_entries::<N, S, MapError>(storage, at, indices, &mut scratch, |piece| -> Flow {
                let Entries::Read(first, entries) = piece else {
                    return Ok(ControlFlow::Continue(()));
                };
                for (index, entry) in (first..).zip(entries).filter(|it| *it.1 != [0; N]) {
                    let number = number_of(entry);
                    let grain = tables.grain_of(number).unwrap_or(Grain::Unallocated);
                    if grain == Grain::Unallocated {
                        continue;
                    }
                    let grain_bytes = tables.grain_bytes();
                    let from = start.saturating_add(index.saturating_mul(grain_bytes));
                    let guest = from..from.saturating_add(grain_bytes);
                    self.push(entry_of::<N>(Part::Table, (index, &table), guest, place.is_used));
                    if let (Grain::At(host), true) = (grain, place.is_used) {
                        self.stored_grain(storage, tables, host)?;
                    }
                }
                Ok(self.room())
            })?;
        Ok(())
    }

    /// Adds a directory or a table. Readers do not follow redundant ones.
    fn table_structure(
        &mut self,
        part: Part,
        place: DirectoryPlace<'_>,
        at: HostOffset,
        bytes: u64,
    ) {
        match place.is_used {
            true => self.add_table(part, at, bytes),
            false => self.add_structure(part, at, bytes),
        }
    }

    /// Adds a stored grain. If it is compressed, adds the marker and the first bytes of the stream, too.
    fn stored_grain<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        tables: &Tables,
        grain: HostOffset,
    ) -> Result<(), MapError> {
        let GrainKind::Compressed { has_marker } = tables.kind else {
            self.add_structure(Part::Payload, grain, tables.grain_bytes());
            return Ok(());
        };
        let mut stream = grain;
        if has_marker {
            self.add_fields(group(Part::BlockFront, grain), grain_marker::FIELDS);
            stream = grain + GRAIN_MARKER_BYTES;
        }
        self.add_fields(group(Part::BlockFront, stream), stream::FIELDS);
        let end = stream + STREAM_FIELDS_BYTES;
        self.add_structure(Part::BlockFront, grain, end.saturating_distance_from(grain));
        // Without a marker, the length of the stream is not stated.
        let bytes = match has_marker {
            true => {
                let marker: [u8; GRAIN_MARKER_BYTES as usize] = read_array(storage, grain)?;
                GRAIN_MARKER_BYTES + grain_marker::SIZE.little(&marker)
            }
            false => STREAM_FIELDS_BYTES,
        };
        let sectors_end = grain + bytes.next_multiple_of(SECTOR_BYTES);
        self.add_structure(Part::Payload, end, sectors_end.saturating_distance_from(end));
        Ok(())
    }

    /// Adds the marker before a directory or a table, if there is one.
    fn marker_before<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        place: DirectoryPlace<'_>,
        structure: HostOffset,
    ) -> Result<(), MapError> {
        let Some(occupied) = place.occupied else { return Ok(()) };
        let Some(at) = structure.get().checked_sub(SECTOR_BYTES).map(HostOffset::new) else {
            return Ok(());
        };
        let mut bytes = [0; HEADER_BYTES];
        storage.read_at(at, &mut bytes)?;
        // The sectors of the structure, no length, and its type.
        let is_marker = matches!(marker_fields(&bytes), (1.., 0, 1..=2));
        if is_marker && !occupied.contains(at) {
            self.add_structure(Part::Header, at, SECTOR_BYTES);
            self.add_fields(group(Part::Header, at), marker::FIELDS);
        }
        Ok(())
    }
}

/// Returns the number in an entry.
fn number_of<const N: usize>(entry: &[u8; N]) -> u64 {
    entry.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the entry at an index of a table. Readers do not follow entries of redundant directories.
fn entry_of<const N: usize>(
    part: Part,
    (index, table): (u64, &Range<HostOffset>),
    guest: Range<u64>,
    is_used: bool,
) -> Element {
    let at = table.start + index.saturating_mul(N as u64);
    let guest = if is_used { guest } else { NOTHING };
    let entry = Element::field(part, "", at, N as u8, guest);
    // Only seSparse has entries of eight bytes.
    let unit = if N == 8 { OffsetUnit::Typed } else { OffsetUnit::Sector };
    let entry = Element { unit, ..entry.little_endian() };
    entry.in_table(N as u64, table.end)
}

/// Returns the group of the fields of a structure.
pub(super) fn group(part: Part, start: HostOffset) -> FieldGroup {
    FieldGroup::new(part, start, ByteOrder::LittleEndian, OffsetUnit::Sector)
}
