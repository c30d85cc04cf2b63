//! The anatomy of a VMDK file: the headers, the footer, the markers, the descriptor, both grain directories, their
//! tables, and the heads of compressed grains. An image in several files has one anatomy for each file. Fields and
//! entries in words.

mod tables;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{
    Anatomy, ByteOrder, EVERYTHING, Element, NOTHING, Part, feature_names, field_in_words,
    text_in_words,
};
use crate::formats::error::MapError;
use crate::formats::vmdk::anatomy::tables::{DirectoryPlace, OccupiedSectors, group};
use crate::formats::vmdk::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, EMBEDDED_DESCRIPTOR_AT, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY,
    HEADER_BYTES, IDENTITY_BYTES, PARENT_NAME, SECTOR_BYTES, SPARSE_MAGIC, STREAM_FOOTER_BYTES,
    const_header, cowd_header, marker, sparse_header, volatile_header,
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
            self.add_fields(group(Part::Header, HostOffset::ZERO), cowd_header::FIELDS);
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
        self.add_fields(group(Part::Header, HostOffset::ZERO), const_header::FIELDS);
        let header = ConstHeader::parse(first)?;
        let volatile = header.volatile_offset()?;
        self.add_structure(Part::Header, volatile, HEADER_BYTES as u64);
        self.add_fields(group(Part::Header, volatile), volatile_header::FIELDS);
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
            self.add_fields(at_start, sparse_header::FIELDS);
            return Ok(first);
        }
        // The rest of a header that only names the footer does not count. If the capacity is 0, QEMU looks for a
        // descriptor.
        let counting = [
            sparse_header::MAGIC,
            sparse_header::CAPACITY,
            sparse_header::DESCRIPTOR_OFFSET,
            sparse_header::GD_OFFSET,
        ];
        for field in at_start.elements(sparse_header::FIELDS) {
            let counts = counting.iter().any(|it| it.name == field.name);
            self.push(Element { guest: if counts { EVERYTHING } else { NOTHING }, ..field });
        }
        let end = sectors_of(storage).saturating_mul(SECTOR_BYTES);
        let at = end.checked_sub(STREAM_FOOTER_BYTES as u64).ok_or(no_footer())?;
        let sector = |number: u64| HostOffset::new(at.saturating_add(number * SECTOR_BYTES));
        self.add_structure(Part::Header, sector(0), STREAM_FOOTER_BYTES as u64);
        self.add_fields(group(Part::Header, sector(0)), marker::FIELDS);
        self.add_fields(group(Part::Header, sector(1)), sparse_header::FIELDS);
        self.add_fields(group(Part::Header, sector(2)), marker::FIELDS);
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
        if !self.keeps_elements() {
            return Ok(());
        }
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

/// The upper half of both magic numbers of seSparse extents.
const SESPARSE_MAGICS: u64 = 0xcafe;

/// Returns the meaning of a field or an entry of a VMDK image. If `tables` is `None`, entries are read as sector
/// numbers.
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
