//! The anatomy of a VMDK file: the headers, the footer, the markers, the descriptor, both grain directories, their
//! tables, and the heads of compressed grains. An image in several files has one anatomy for each file. Fields and
//! entries in words.
//!
//! # Arithmetic
//! Structures may lie at any host offset. One that passes 2^64 ends there, because no file has bytes behind that. A
//! directory has less than 2^26 entries, each of which maps less than 2^43 bytes, and no disk has 2^63 bytes, so that
//! only ranges past the end of the disk are held. A descriptor has less than 2^14 bytes.

mod tables;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{
    Anatomy, ByteOrder, EVERYTHING, Element, FieldLayout, NOTHING, Part, feature_names,
    field_in_words, text_in_words,
};
use crate::formats::error::MapError;
use crate::formats::vmdk::anatomy::tables::{
    DirectoryPlace, MARKER_FIELDS, OccupiedSectors, group,
};
use crate::formats::vmdk::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, EMBEDDED_DESCRIPTOR_AT, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY,
    HEADER_BYTES, IDENTITY_BYTES, PARENT_NAME, SECTOR_BYTES, SPARSE_MAGIC, STREAM_FOOTER_BYTES,
};
use crate::formats::vmdk::descriptor::{ExtentKind, after, text_of};
use crate::formats::vmdk::head::{first_sector, sectors_of};
use crate::formats::vmdk::headers::{
    ConstHeader, CowdHeader, SparseHeader, footer_header, no_footer,
};
use crate::formats::vmdk::tables::{Grain, Tables, offset_of};

impl Anatomy {
    /// Takes a VMDK image apart: a sparse extent, or a descriptor.
    pub(in crate::formats) fn read_vmdk<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
    ) -> Result<(), MapError> {
        let first = first_sector(storage)?;
        if !first.starts_with(&COWD_MAGIC) && !first.starts_with(&SPARSE_MAGIC) {
            return self.descriptor(storage, HostOffset::ZERO);
        }
        self.descriptor(storage, HostOffset::new(EMBEDDED_DESCRIPTOR_AT))?;
        self.sparse_extent(storage, &first)
    }

    /// Takes the file of a VMDK extent apart, as [`Anatomy::read`] does. A flat extent has no elements. Guest ranges
    /// count from the first byte of the extent.
    ///
    /// # Errors
    /// As for [`Anatomy::read`].
    pub fn read_extent<S: Storage + ?Sized>(
        &mut self,
        kind: ExtentKind,
        storage: &S,
    ) -> Result<(), MapError> {
        self.clear();
        match kind {
            ExtentKind::Flat(_) => Ok(()),
            ExtentKind::Sparse => self.sparse_extent(storage, &first_sector(storage)?),
            ExtentKind::SeSparse => self.sesparse_extent(storage, &first_sector(storage)?),
        }
    }

    /// Adds the headers of a sparse extent, its directories and its tables.
    fn sparse_extent<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        first: &[u8; HEADER_BYTES],
    ) -> Result<(), MapError> {
        self.add_structure(Part::Header, HostOffset::ZERO, HEADER_BYTES as u64);
        if first.starts_with(&COWD_MAGIC) {
            self.add_fields(group(Part::Header, HostOffset::ZERO), COWD_FIELDS);
            return self.only_directory(storage, &CowdHeader::read(first).tables()?);
        }
        let header = self.headers(storage, SparseHeader::read(first))?;
        let tables = header.tables(sectors_of(storage))?;
        self.note_tables(&tables);
        let has_markers = header.flags & FLAG_MARKERS != 0;
        let redundant = (header.flags & FLAG_REDUNDANT_DIRECTORY != 0)
            .then(|| offset_of(header.redundant_directory_sector));
        let occupied = match has_markers {
            true => {
                let directories = [tables.directory].into_iter().chain(redundant);
                Some(OccupiedSectors::read(storage, &tables, directories)?)
            }
            false => None,
        };
        let occupied = occupied.as_ref();
        let place = DirectoryPlace { at: tables.directory, is_used: true, occupied };
        self.directory(storage, &tables, place)?;
        match redundant {
            Some(at) => {
                let place = DirectoryPlace { at, is_used: false, occupied };
                self.directory(storage, &tables, place)
            }
            None => Ok(()),
        }
    }

    /// Adds both headers of an seSparse extent, its directory and its tables.
    fn sesparse_extent<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        first: &[u8; HEADER_BYTES],
    ) -> Result<(), MapError> {
        self.add_structure(Part::Header, HostOffset::ZERO, HEADER_BYTES as u64);
        self.add_fields(group(Part::Header, HostOffset::ZERO), CONST_HEADER_FIELDS);
        let header = ConstHeader::parse(first)?;
        let volatile = header.volatile_offset()?;
        self.add_structure(Part::Header, volatile, HEADER_BYTES as u64);
        self.add_fields(group(Part::Header, volatile), VOLATILE_HEADER_FIELDS);
        self.only_directory(storage, &header.tables()?)
    }

    /// Adds the directory of an extent as ESX writes it, which has no other one.
    fn only_directory<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        tables: &Tables,
    ) -> Result<(), MapError> {
        self.note_tables(tables);
        let place = DirectoryPlace { at: tables.directory, is_used: true, occupied: None };
        self.directory(storage, tables, place)
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
        let at = end.checked_sub(STREAM_FOOTER_BYTES as u64).ok_or(no_footer())?;
        let sector = |number: u64| HostOffset::new(at.saturating_add(number * SECTOR_BYTES));
        self.add_structure(Part::Header, sector(0), STREAM_FOOTER_BYTES as u64);
        self.add_fields(group(Part::Header, sector(0)), MARKER_FIELDS);
        self.add_fields(group(Part::Header, sector(1)), SPARSE_HEADER_FIELDS);
        self.add_fields(group(Part::Header, sector(2)), MARKER_FIELDS);
        let mut bytes = [0; STREAM_FOOTER_BYTES];
        storage.read_at(sector(0), &mut bytes)?;
        footer_header(&bytes)
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
        let parent_ends = after(text, PARENT_NAME).unwrap_or(0) as u64;
        // A descriptor in a file of its own also names the files of the extents.
        let ends = if start == HostOffset::ZERO { u64::MAX } else { parent_ends };
        let mut line_at = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let at = start + line_at;
            let guest = if line_at < ends { EVERYTHING } else { NOTHING };
            line_at = line_at.saturating_add(line.len() as u64);
            self.push(Element::field(Part::Metadata, "line", at, 1, guest.clone()));
            let Some(key) = line.iter().position(|byte| *byte == b'=') else { continue };
            let value = key.saturating_add(1);
            let length = line.len().saturating_sub(value);
            if let Some(width_bytes) = [8, 4, 2, 1].into_iter().find(|it| usize::from(*it) < length)
            {
                let at = at + value as u64;
                self.push(Element::field(Part::Metadata, "value", at, width_bytes, guest));
            }
        }
        Ok(())
    }
}

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

/// The fields of the first header of an seSparse extent. The specification has no names for them; those of QEMU count.
/// All fields that are marked, except for the places and the capacity, have one valid value.
const CONST_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 8, true),
    ("version", 8, 8, true),
    ("capacity", 16, 8, true),
    ("grain_size", 24, 8, true),
    ("grain_table_size", 32, 8, true),
    ("flags", 40, 8, true),
    ("reserved1", 48, 8, true),
    ("reserved2", 56, 8, true),
    ("reserved3", 64, 8, true),
    ("reserved4", 72, 8, true),
    ("volatile_header_offset", 80, 8, true),
    ("volatile_header_size", 88, 8, false),
    ("journal_header_offset", 96, 8, false),
    ("journal_header_size", 104, 8, false),
    ("journal_offset", 112, 8, false),
    ("journal_size", 120, 8, false),
    ("grain_dir_offset", 128, 8, true),
    ("grain_dir_size", 136, 8, true),
    ("grain_tables_offset", 144, 8, true),
    ("grain_tables_size", 152, 8, false),
    ("free_bitmap_offset", 160, 8, false),
    ("free_bitmap_size", 168, 8, false),
    ("backmap_offset", 176, 8, false),
    ("backmap_size", 184, 8, false),
    ("grains_offset", 192, 8, true),
    ("grains_size", 200, 8, false),
    ("pad", 208, 8, true),
];

/// The fields of the second header of an seSparse extent.
const VOLATILE_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 8, true),
    ("free_gt_number", 8, 8, false),
    ("next_txn_seq_number", 16, 8, false),
    ("replay_journal", 24, 8, true),
    ("pad", 32, 8, true),
];

/// The upper half of both magic numbers of seSparse extents.
const SESPARSE_MAGICS: u64 = 0xcafe;

/// Returns the meaning of a field or an entry of a VMDK image. Without its `tables`, entries are sectors.
pub(super) fn spelled(part: Part, name: &str, value: u64, tables: Option<&Tables>) -> String {
    match (part, name) {
        (Part::Directory, _) => directory_entry(value, tables),
        (Part::Table, _) => grain(value, tables),
        (Part::Metadata, _) => text_in_words(value, ByteOrder::LittleEndian),
        (_, "gd_offset") if value == DIRECTORY_AT_END => "stated by the footer".to_string(),
        (_, "flags") => vmdk_flags(value),
        (_, "compress_algorithm") => match value {
            0 => "none".to_string(),
            1 => "deflate".to_string(),
            _ => format!("{value}: none that readers know"),
        },
        (_, "marker_type") => match value {
            0 => "end of the stream".to_string(),
            1 => "grain table".to_string(),
            2 => "grain directory".to_string(),
            3 => "footer".to_string(),
            _ => format!("{value}: no meaning"),
        },
        (_, "gd_offset" | "rgd_offset" | "descriptor_offset") => {
            format!("sector {value}, at {:#x}", value.saturating_mul(SECTOR_BYTES))
        }
        // Text in all extents but seSparse.
        (_, "magic") if value >> 16 == SESPARSE_MAGICS => format!("{value:#x}"),
        _ => field_in_words(name, value, ByteOrder::LittleEndian),
    }
}

fn directory_entry(value: u64, tables: Option<&Tables>) -> String {
    let table = match tables {
        Some(tables) => tables.table_of(value),
        None => Ok((value != 0).then(|| offset_of(value))),
    };
    match table {
        Ok(None) => "no table".to_string(),
        Ok(Some(table)) => format!("table at {table:#x}"),
        Err(fault) => fault.to_string(),
    }
}

fn grain(value: u64, tables: Option<&Tables>) -> String {
    let Some(tables) = tables else { return format!("sector {value}") };
    let kind = if tables.is_compressed() { "compressed grain" } else { "grain" };
    match tables.grain_of(value) {
        Ok(Grain::Unallocated) => "not stored".to_string(),
        Ok(Grain::Zero) => "zeros".to_string(),
        Ok(Grain::At(host)) => format!("{kind} at {host:#x}"),
        Err(fault) => fault.to_string(),
    }
}

fn vmdk_flags(value: u64) -> String {
    // Bits 3 to 15 have no name.
    let low = feature_names(value & 0xffff, &["newlines", "redundant directory", "zero grains"]);
    match (value & 0xffff, value >> 16) {
        (_, 0) => low,
        (0, high) => feature_names(high, &["compressed grains", "markers"]),
        (_, high) => format!("{low}, {}", feature_names(high, &["compressed grains", "markers"])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_fields_have_a_meaning() {
        let mut tables = Tables::new(128, 1, 512).unwrap();
        let grain = |value, tables: &Tables| spelled(Part::Table, "", value, Some(tables));
        assert_eq!(grain(1, &tables), "grain at 0x200");
        tables.has_zeros = true;
        assert_eq!(
            [0, 1, 2].map(|it| grain(it, &tables)),
            ["not stored", "zeros", "grain at 0x400"]
        );
        assert_eq!(spelled(Part::Directory, "", 22, None), "table at 0x2c00");
        assert_eq!(spelled(Part::Header, "flags", 0x3_0003, None), {
            "newlines, redundant directory, compressed grains, markers"
        });
        let magic = u64::from(u32::from_le_bytes(*b"KDMV"));
        assert_eq!(spelled(Part::Header, "magic", magic, None), "\"KDMV\"");
    }
}
