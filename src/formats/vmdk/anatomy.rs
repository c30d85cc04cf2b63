//! The anatomy of a VMDK image in one file: the header, the footer, the markers, the descriptor, both grain
//! directories, their tables, and the heads of compressed grains.
//!
//! # Arithmetic
//! Structures may lie at any host offset. One that passes 2^64 ends there, because no file has bytes behind that. A
//! directory has less than 2^26 entries, each of which maps less than 2^43 bytes, and no disk has 2^63 bytes, so that
//! only ranges past the end of the disk are held. A descriptor has less than 2^14 bytes.

use std::ops::{ControlFlow, Range};

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{
    Anatomy, ByteOrder, EVERYTHING, Element, FieldGroup, FieldLayout, NOTHING, OffsetUnit, Part,
};
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};

use super::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, EMBEDDED_DESCRIPTOR_AT, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY,
    GRAIN_MARKER_BYTES, HEADER_BYTES, IDENTITY_BYTES, PARENT_NAME, SECTOR_BYTES, SPARSE_MAGIC,
    STREAM_FOOTER_BYTES,
};
use super::cowd_header::CowdHeader;
use super::footer;
use super::grain::{Grain, offset_of};
use super::head::{first_sector, sectors_of};
use super::scan::{self, text_of};
use super::sparse_header::SparseHeader;
use super::tables::{GrainKind, Tables};

/// The fields of the header that counts.
const SPARSE_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 4, true),
    ("version", 4, 4, true),
    ("flags", 8, 4, true),
    ("capacity", 12, 8, true),
    ("grain_size", 20, 8, true),
    ("descriptor_offset", 28, 8, true),
    ("descriptor_size", 36, 8, false),
    ("gtes_per_gt", 44, 4, true),
    ("rgd_offset", 48, 8, false),
    ("gd_offset", 56, 8, true),
    ("overhead", 64, 8, false),
    ("unclean_shutdown", 72, 1, false),
    ("newlines", 73, 4, false),
    ("compress_algorithm", 77, 2, true),
];

/// The fields of a header that only names the footer. If the capacity is 0, QEMU looks for a descriptor.
const FIRST_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 4, true),
    ("version", 4, 4, false),
    ("flags", 8, 4, false),
    ("capacity", 12, 8, true),
    ("grain_size", 20, 8, false),
    ("descriptor_offset", 28, 8, true),
    ("descriptor_size", 36, 8, false),
    ("gtes_per_gt", 44, 4, false),
    ("rgd_offset", 48, 8, false),
    ("gd_offset", 56, 8, true),
    ("overhead", 64, 8, false),
    ("unclean_shutdown", 72, 1, false),
    ("newlines", 73, 4, false),
    ("compress_algorithm", 77, 2, false),
];

/// The fields of the header of an extent as ESX writes it.
const COWD_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 4, true),
    ("version", 4, 4, false),
    ("flags", 8, 4, false),
    ("capacity", 12, 4, true),
    ("grain_size", 16, 4, true),
    ("gd_offset", 20, 4, true),
    ("gd_entries", 24, 4, true),
    ("next_free", 28, 4, false),
];

/// The fields of a marker. The mapping does not depend on them.
const MARKER_FIELDS: &[FieldLayout] =
    &[("marker_sectors", 0, 8, false), ("marker_size", 8, 4, false), ("marker_type", 12, 4, false)];

/// The fields of the marker before a compressed grain.
const GRAIN_MARKER_FIELDS: &[FieldLayout] = &[("lba", 0, 8, false), ("size", 8, 4, false)];
/// The first bytes of a zlib stream: its header, and the first bytes of the deflate stream.
const STREAM_FIELDS: &[FieldLayout] = &[("zlib_header", 0, 2, false), ("deflate", 2, 4, false)];
/// The number of bytes of these fields.
const STREAM_FIELDS_BYTES: u64 = 6;

/// The length of an entry of a directory or a table.
const ENTRY_BYTES: u64 = 4;
/// The number of bytes of a directory or a table that are read at a time.
const GRAIN_TABLE_SCRATCH_BYTES: usize = 512 * ENTRY_BYTES as usize;

/// A directory, and whether readers follow it.
#[derive(Clone, Copy)]
struct DirectoryPlace {
    at: HostOffset,
    is_used: bool,
    has_markers: bool,
}

impl Anatomy {
    /// Takes a VMDK image apart: a sparse extent, or a descriptor.
    pub(in crate::formats) fn read_vmdk<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
    ) -> Result<(), MapError> {
        let first = first_sector(storage)?;
        let is_esx = first.starts_with(&COWD_MAGIC);
        if !is_esx && !first.starts_with(&SPARSE_MAGIC) {
            return self.descriptor(storage, HostOffset::ZERO);
        }
        self.add_structure(Part::Header, HostOffset::ZERO, HEADER_BYTES as u64);
        self.descriptor(storage, HostOffset::new(EMBEDDED_DESCRIPTOR_AT))?;
        if is_esx {
            self.add_fields(group(Part::Header, HostOffset::ZERO), COWD_FIELDS);
            let tables = CowdHeader::read(&first).tables()?;
            self.note_tables(&tables);
            let at = tables.directory;
            let place = DirectoryPlace { at, is_used: true, has_markers: false };
            return self.directory(storage, &tables, place);
        }
        let header = self.headers(storage, SparseHeader::read(&first))?;
        let tables = header.tables(sectors_of(storage))?;
        self.note_tables(&tables);
        let has_markers = header.flags & FLAG_MARKERS != 0;
        let place = DirectoryPlace { at: tables.directory, is_used: true, has_markers };
        self.directory(storage, &tables, place)?;
        if header.flags & FLAG_REDUNDANT_DIRECTORY != 0 {
            let at = offset_of(header.redundant_directory_sector);
            self.directory(storage, &tables, DirectoryPlace { at, is_used: false, has_markers })?;
        }
        Ok(())
    }

    /// Keeps the tables, by which entries have a meaning.
    fn note_tables(&mut self, tables: &Tables) {
        self.grain_tables = Some(*tables);
        let grain = tables.grain_bytes();
        self.cluster_size = match grain.is_power_of_two() {
            true => ClusterSize::from_bits(grain.ilog2()),
            false => None,
        };
    }

    /// Adds the header and the footer, if there is one. Returns the header that counts.
    fn headers<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        first: SparseHeader,
    ) -> Result<SparseHeader, MapError> {
        let at_start = group(Part::Header, HostOffset::ZERO);
        if first.directory_sector != DIRECTORY_AT_END {
            self.add_fields(at_start, SPARSE_HEADER_FIELDS);
            return Ok(first);
        }
        self.add_fields(at_start, FIRST_HEADER_FIELDS);
        let end = sectors_of(storage).saturating_mul(SECTOR_BYTES);
        let at = end.checked_sub(STREAM_FOOTER_BYTES as u64).ok_or(footer::no_footer())?;
        let sector = |number: u64| HostOffset::new(at.saturating_add(number * SECTOR_BYTES));
        self.add_structure(Part::Header, sector(0), STREAM_FOOTER_BYTES as u64);
        self.add_fields(group(Part::Header, sector(0)), MARKER_FIELDS);
        self.add_fields(group(Part::Header, sector(1)), SPARSE_HEADER_FIELDS);
        self.add_fields(group(Part::Header, sector(2)), MARKER_FIELDS);
        let mut bytes = [0; STREAM_FOOTER_BYTES];
        storage.read_at(sector(0), &mut bytes)?;
        footer::header(&bytes)
    }

    /// Adds the lines of the descriptor: the first byte of each, and the first bytes of its value if it has one.
    fn descriptor<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        start: HostOffset,
    ) -> Result<(), MapError> {
        let mut bytes = [0; IDENTITY_BYTES];
        storage.read_at(start, &mut bytes)?;
        let text = text_of(&bytes);
        self.add_structure(Part::Metadata, start, text.len() as u64);
        // Without its parent, an image has other data. A zero byte before the name of the parent ends the text, too.
        let parent_ends = scan::after(text, PARENT_NAME).unwrap_or(0) as u64;
        // A descriptor in a file of its own also names the files of the extents.
        let ends = if start == HostOffset::ZERO { u64::MAX } else { parent_ends };
        let mut line_at = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let at = start.saturating_add(line_at);
            let guest = if line_at < ends { EVERYTHING } else { NOTHING };
            line_at = line_at.saturating_add(line.len() as u64);
            self.push(Element::field(Part::Metadata, "line", at, 1, guest.clone()));
            let Some(key) = line.iter().position(|byte| *byte == b'=') else { continue };
            let value = key.saturating_add(1);
            let length = line.len().saturating_sub(value);
            if let Some(width_bytes) = [8, 4, 2, 1].into_iter().find(|it| usize::from(*it) < length)
            {
                let at = at.saturating_add(value as u64);
                self.push(Element::field(Part::Metadata, "value", at, width_bytes, guest));
            }
        }
        Ok(())
    }

    /// Adds a directory and its tables.
    fn directory<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        tables: &Tables,
        place: DirectoryPlace,
    ) -> Result<(), MapError> {
        let (bytes, span) = (tables.directory_bytes(), tables.span_bytes());
        self.add_structure(Part::Directory, place.at, bytes);
        self.marker_before(storage, place, place.at)?;
        let table = Range { start: place.at, end: place.at.saturating_add(bytes) };
        let mut scratch = [0; GRAIN_TABLE_SCRATCH_BYTES];
        let indices = 0..u64::from(tables.directory_entries);
        let _ = each_entries(storage, table.start, indices, &mut scratch, |piece| -> Flow {
            let Entries::Read(first, entries) = piece else { return Ok(ControlFlow::Continue(())) };
            for (index, entry) in (first..).zip(entries) {
                let number = u64::from(u32::from_le_bytes(*entry));
                // Such entries have no other fault than that they name a table past the end of the file.
                let Ok(Some(named)) = tables.table_of(number) else { continue };
                let start = index.saturating_mul(span);
                let guest = start..start.saturating_add(span);
                self.push(entry_of(Part::Directory, (index, &table), guest, place.is_used));
                self.grain_table(storage, tables, (place, named), start)?;
            }
            Ok(self.room())
        })?;
        Ok(())
    }

    /// Adds the grain table at `at`, whose first entry maps the guest bytes from `start` on.
    fn grain_table<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        tables: &Tables,
        (place, at): (DirectoryPlace, HostOffset),
        start: u64,
    ) -> Result<(), MapError> {
        let bytes = tables.table_bytes();
        self.add_structure(Part::Table, at, bytes);
        self.marker_before(storage, place, at)?;
        let table = Range { start: at, end: at.saturating_add(bytes) };
        let (indices, mut scratch) =
            (0..u64::from(tables.table_entries), [0; GRAIN_TABLE_SCRATCH_BYTES]);
        let _ = each_entries(storage, at, indices, &mut scratch, |piece| -> Flow {
            let Entries::Read(first, entries) = piece else { return Ok(ControlFlow::Continue(())) };
            for (index, entry) in (first..).zip(entries) {
                let number = u64::from(u32::from_le_bytes(*entry));
                let grain = tables.grain_of(number).unwrap_or(Grain::Unallocated);
                if grain == Grain::Unallocated {
                    continue;
                }
                let grain_bytes = tables.grain_bytes();
                let from = start.saturating_add(index.saturating_mul(grain_bytes));
                let guest = from..from.saturating_add(grain_bytes);
                self.push(entry_of(Part::Table, (index, &table), guest, place.is_used));
                if let (Grain::At(host), true) = (grain, place.is_used) {
                    self.grain_front(tables, host);
                }
            }
            Ok(self.room())
        })?;
        Ok(())
    }

    /// Adds the marker and the first bytes of the stream of a compressed grain.
    fn grain_front(&mut self, tables: &Tables, grain: HostOffset) {
        let GrainKind::Compressed { has_marker } = tables.kind else { return };
        let mut stream = grain;
        if has_marker {
            self.add_fields(group(Part::BlockFront, grain), GRAIN_MARKER_FIELDS);
            stream = grain.saturating_add(GRAIN_MARKER_BYTES);
        }
        self.add_fields(group(Part::BlockFront, stream), STREAM_FIELDS);
        let end = stream.saturating_add(STREAM_FIELDS_BYTES);
        self.add_structure(Part::BlockFront, grain, end.saturating_distance_from(grain));
    }

    /// Adds the marker before a directory or a table, if there is one.
    fn marker_before<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        place: DirectoryPlace,
        structure: HostOffset,
    ) -> Result<(), MapError> {
        let Some(at) = structure.get().checked_sub(SECTOR_BYTES).filter(|_| place.has_markers)
        else {
            return Ok(());
        };
        let mut bytes = [0; HEADER_BYTES];
        storage.read_at(HostOffset::new(at), &mut bytes)?;
        // The sectors of the structure, no length, and its type.
        if matches!(footer::marker_fields(&bytes), (1.., 0, 1..=2)) {
            self.add_structure(Part::Header, HostOffset::new(at), SECTOR_BYTES);
            self.add_fields(group(Part::Header, HostOffset::new(at)), MARKER_FIELDS);
        }
        Ok(())
    }
}

/// Returns the entry at an index of a table. Readers do not follow entries of redundant directories.
fn entry_of(
    part: Part,
    (index, table): (u64, &Range<HostOffset>),
    guest: Range<u64>,
    is_used: bool,
) -> Element {
    let at = table.start.saturating_add(index.saturating_mul(ENTRY_BYTES));
    let guest = if is_used { guest } else { NOTHING };
    let entry = Element::field(part, "", at, ENTRY_BYTES as u8, guest);
    let entry = Element { unit: OffsetUnit::Sector, ..entry.little_endian() };
    entry.in_table(ENTRY_BYTES, table.end)
}

fn group(part: Part, start: HostOffset) -> FieldGroup {
    FieldGroup::new(part, start, ByteOrder::LittleEndian, OffsetUnit::Sector)
}
