//! The anatomy of a VMDK file: the headers, the footer, the markers, the descriptor, both grain directories, their
//! tables, and the heads of compressed grains. An image in several files has one anatomy for each file.
//!
//! # Arithmetic
//! Structures may lie at any host offset. One that passes 2^64 ends there, because no file has bytes behind that. A
//! directory has less than 2^26 entries, each of which maps less than 2^43 bytes, and no disk has 2^63 bytes, so that
//! only ranges past the end of the disk are held. A descriptor has less than 2^14 bytes.

mod fields;
mod tables;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::{Anatomy, EVERYTHING, Element, NOTHING, Part};
use crate::formats::error::MapError;

use super::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, EMBEDDED_DESCRIPTOR_AT, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY,
    HEADER_BYTES, IDENTITY_BYTES, PARENT_NAME, SECTOR_BYTES, SPARSE_MAGIC, STREAM_FOOTER_BYTES,
};
use super::cowd_header::CowdHeader;
use super::descriptor::ExtentKind;
use super::footer;
use super::grain::offset_of;
use super::head::{first_sector, sectors_of};
use super::scan::{self, text_of};
use super::sesparse::ConstHeader;
use super::sparse_header::SparseHeader;
use super::tables::Tables;

use fields::{
    CONST_HEADER_FIELDS, COWD_FIELDS, FIRST_HEADER_FIELDS, MARKER_FIELDS, SPARSE_HEADER_FIELDS,
    VOLATILE_HEADER_FIELDS, group,
};
use tables::{DirectoryPlace, OccupiedSectors};

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
