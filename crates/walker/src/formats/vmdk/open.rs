//! Opens an image, with the checks that QEMU makes (`block/vmdk.c`, `vmdk_open`).

use crate::disk::observer::{Event, Observer, Rare, State};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::vmdk::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, HEADER_BYTES, MAX_LENGTH_BYTES, SECTOR_BYTES, SPARSE_MAGIC,
    STREAM_FOOTER_BYTES,
};
use crate::formats::vmdk::cowd_header::CowdHeader;
use crate::formats::vmdk::descriptor::ExtentKind;
use crate::formats::vmdk::footer;
use crate::formats::vmdk::head::{Identity, ImageLayout, first_sector, sectors_of};
use crate::formats::vmdk::sesparse::{ConstHeader, check_volatile};
use crate::formats::vmdk::sparse_header::SparseHeader;
use crate::formats::vmdk::tables::{GrainKind, Tables};

use super::extent::{ExtentData, OpenExtent};

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
                ExtentKind::Flat(_) => observer.rare(Rare::VmdkFlat),
                ExtentKind::SeSparse => observer.rare(Rare::VmdkSeSparse),
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
        observer.rare(Rare::VmdkCowd);
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
        let at = end.checked_sub(STREAM_FOOTER_BYTES as u64).ok_or(footer::no_footer())?;
        let mut bytes = [0; STREAM_FOOTER_BYTES];
        file.read_at(HostOffset::new(at), &mut bytes)?;
        header = footer::header(&bytes)?;
        observer.event(State::Open, Event::Footer);
        observer.rare(Rare::VmdkFooter);
    }
    let tables = header.tables(sectors_of(file))?;
    report_tables(&tables, observer);
    Ok((header.capacity_sectors, ExtentData::Sparse(tables)))
}

/// Reports the rare events in the tables of an extent.
fn report_tables(tables: &Tables, observer: &impl Observer) {
    observer.event(State::Open, Event::Directory);
    match tables.kind {
        GrainKind::Compressed { has_marker: true } => observer.rare(Rare::VmdkMarked),
        GrainKind::Compressed { has_marker: false } => observer.rare(Rare::VmdkUnmarked),
        GrainKind::Plain | GrainKind::SeSparse(_) => {}
    }
    if tables.table_bytes() < SECTOR_BYTES {
        observer.rare(Rare::VmdkShortTable);
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
