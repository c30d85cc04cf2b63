//! Opens an image and its extents, with the checks that QEMU makes (`block/vmdk.c`, `vmdk_open`).

use crate::disk::extent::Mapping;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::vmdk::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, HEADER_BYTES, MAX_LENGTH_BYTES, SECTOR_BYTES, SPARSE_MAGIC,
    STREAM_FOOTER_BYTES, rare,
};
use crate::formats::vmdk::descriptor::ExtentKind;
use crate::formats::vmdk::head::{Identity, ImageLayout, first_sector, sectors_of};
use crate::formats::vmdk::headers::{
    ConstHeader, CowdHeader, SparseHeader, check_volatile, footer_header, no_footer,
};
use crate::formats::vmdk::tables::{Grain, GrainKind, Tables};

/// An open VMDK image.
#[derive(Debug)]
pub(crate) struct Vmdk<'s, S: Storage + ?Sized> {
    pub(super) extents: Vec<OpenExtent<'s, S>>,
    pub(super) identity: Identity,
}

impl<'s, S: Storage + ?Sized> Vmdk<'s, S> {
    /// Opens the image, which has this layout.
    pub(super) fn open_with(
        layer: &Layer<'s, S>,
        layout: &ImageLayout,
        observer: &impl Observer,
    ) -> Result<Self, MapError> {
        let image_sectors = sectors_of(layer.image);
        let mut extents = Vec::with_capacity(layout.extents().len());
        if let ImageLayout::Sparse { .. } = layout {
            add(&mut extents, layer.image, sparse(layer.image, image_sectors, observer)?)?;
        }
        if layer.extents.len() < layout.extents().len() {
            return Err(MapError::Missing("file of an extent"));
        }
        for (line, file) in layout.extents().iter().zip(layer.extents) {
            match line.kind {
                ExtentKind::Flat(_) => observer.rare(rare::FLAT),
                ExtentKind::SeSparse => observer.rare(rare::SE_SPARSE),
                ExtentKind::Sparse => {}
            }
            observer.event(State::Open, Event::Extent);
            let opened = match line.kind {
                ExtentKind::Flat(offset) => (line.sectors, ExtentData::Flat(offset)),
                // QEMU looks for a footer at the end of the descriptor, not of the extent.
                ExtentKind::Sparse => sparse(&**file, image_sectors, observer)?,
                ExtentKind::SeSparse => sesparse(&**file)?,
            };
            add(&mut extents, file, opened)?;
        }
        let identity = Identity::read(layer.image, layout)?;
        observer.event(State::Open, Event::Metadata);
        Ok(Self { extents, identity })
    }
}

/// Adds an extent of the given number of sectors at the end of the disk.
fn add<'s, S: Storage + ?Sized>(
    extents: &mut Vec<OpenExtent<'s, S>>,
    file: &'s S,
    (sectors, data): (u64, ExtentData),
) -> Result<(), MapError> {
    let start = extents.last().map_or(GuestOffset::ZERO, |extent| extent.end);
    let end = sectors.checked_mul(SECTOR_BYTES).and_then(|length| start.checked_add(length));
    let end = end.filter(|end| end.get() <= MAX_LENGTH_BYTES).ok_or(MapError::Header {
        field: "sectors of an extent",
        found: sectors,
        expected: "a number with which the disk is smaller than 2^63 bytes",
    })?;
    extents.push(OpenExtent { file, start, end, data });
    Ok(())
}

/// Returns the number of sectors and the tables of a sparse extent.
fn sparse<S: Storage + ?Sized>(
    file: &S,
    image_sectors: u64,
    observer: &impl Observer,
) -> Result<(u64, ExtentData), MapError> {
    let first = first_sector(file)?;
    observer.event(State::Open, Event::Header);
    if first.starts_with(&COWD_MAGIC) {
        observer.rare(rare::COWD);
        let header = CowdHeader::read(&first);
        let tables = header.tables()?;
        let data = match header.is_divisible() {
            true => ExtentData::Sparse(tables),
            false => ExtentData::Indivisible(tables),
        };
        return Ok((header.capacity_sectors.into(), data));
    }
    if !first.starts_with(&SPARSE_MAGIC) {
        return Err(MapError::NotImage { format: "vmdk", what: "no header of a sparse extent" });
    }
    let mut header = SparseHeader::read(&first);
    if header.is_descriptor() {
        return Err(MapError::Unsupported("VMDK descriptor in the file of an extent"));
    }
    if header.directory_sector == DIRECTORY_AT_END {
        let end = image_sectors.saturating_mul(SECTOR_BYTES);
        let at = end.checked_sub(STREAM_FOOTER_BYTES as u64).ok_or(no_footer())?;
        let mut bytes = [0; STREAM_FOOTER_BYTES];
        file.read_at(HostOffset::new(at), &mut bytes)?;
        header = footer_header(&bytes)?;
        observer.event(State::Open, Event::Footer);
        observer.rare(rare::FOOTER);
    }
    let tables = header.tables(sectors_of(file))?;
    report_tables(&tables, observer);
    Ok((header.capacity_sectors, ExtentData::Sparse(tables)))
}

/// Reports the rare events in the tables of an extent.
fn report_tables(tables: &Tables, observer: &impl Observer) {
    observer.event(State::Open, Event::Directory);
    match tables.kind {
        GrainKind::Compressed { has_marker: true } => observer.rare(rare::MARKED),
        GrainKind::Compressed { has_marker: false } => observer.rare(rare::UNMARKED),
        GrainKind::Plain | GrainKind::SeSparse(_) => {}
    }
    if tables.table_bytes() < SECTOR_BYTES {
        observer.rare(rare::SHORT_TABLE);
    }
}

/// Returns the number of sectors and the tables of an seSparse extent.
fn sesparse<S: Storage + ?Sized>(file: &S) -> Result<(u64, ExtentData), MapError> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_at(HostOffset::ZERO, &mut bytes)?;
    let header = ConstHeader::parse(&bytes)?;
    file.read_at(header.volatile_offset()?, &mut bytes)?;
    check_volatile(&bytes)?;
    Ok((header.capacity_sectors, ExtentData::Sparse(header.tables()?)))
}

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
