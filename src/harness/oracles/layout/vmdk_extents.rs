//! VMDK images whose data lie in other files: the descriptor, and each of these files.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::vmdk::constants::{COWD_MAGIC, HEADER_BYTES, SECTOR_BYTES, SPARSE_MAGIC};
use crate::formats::vmdk::headers::{ConstHeader, CowdHeader, SparseHeader, check_volatile};
use crate::formats::vmdk::tables::Tables;
use crate::harness::oracles::Violation;
use crate::images::files::LayerFiles;
use crate::images::image::Image;

use super::reading::{read, refused};
use super::vmdk::{
    COWD_HEADER_BYTES, check_identity, check_tables, cowd_tables, differs, lines, sparse_tables,
};

/// The bytes of a descriptor that are read: the builder writes no longer text.
const DESCRIPTOR_BYTES: usize = 4096;

/// The line of a descriptor that states an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatedExtent {
    sectors: u64,
    kind: Vec<u8>,
    /// The first sector of flat data.
    offset: Option<u64>,
}

/// Checks the identities and the names in a descriptor. Returns its extents, one for each file beside the image.
pub(super) fn check_descriptor(
    files: &LayerFiles,
    parent: Option<&LayerFiles>,
) -> Result<Vec<StatedExtent>, Box<Violation>> {
    let text = read::<DESCRIPTOR_BYTES>(&files.image, 0);
    check_identity(&text, parent)?;
    let mut stated = Vec::new();
    let mut names = files.named_extents().map(|(name, _)| name);
    for line in lines(&text).filter_map(|line| line.strip_prefix(b"RW ")) {
        let (extent, name) =
            parse(line).ok_or(differs("extent", "a size, a kind, a name", "other text"))?;
        if names.next().map(str::as_bytes) != Some(name) {
            return Err(differs("extent", "the name of its file", "another name"));
        }
        stated.push(extent);
    }
    match names.next() {
        None => Ok(stated),
        Some(_) => Err(differs("extents", "one for each file", "fewer")),
    }
}

/// Parses the fields behind the access of an extent. Returns the name, too.
fn parse(line: &[u8]) -> Option<(StatedExtent, &[u8])> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse().ok();
    let mut quoted = line.split(|byte| *byte == b'"');
    let (fields, name, rest) = (quoted.next()?, quoted.next()?, quoted.next()?);
    let mut fields = fields.split(|byte| *byte == b' ');
    let (sectors, kind) = (number(fields.next()?)?, fields.next()?.to_vec());
    let offset = match rest.strip_prefix(b" ") {
        Some(offset) => Some(number(offset)?),
        None => None,
    };
    Some((StatedExtent { sectors, kind, offset }, name))
}

/// Checks the file of an extent, and notes the places of its structures. Returns the bytes of its tables.
pub(super) fn check(
    line: &StatedExtent,
    image: &Image,
    places: &mut Vec<Range<u64>>,
) -> Result<u64, Box<Violation>> {
    let first = read::<HEADER_BYTES>(image, 0);
    let (sectors, tables) = match (line.kind.as_slice(), line.offset) {
        (b"FLAT", Some(offset)) => return check_length(image, offset.saturating_add(line.sectors)),
        (b"VMFS", None) => return check_length(image, line.sectors),
        (b"SPARSE", None) if first.starts_with(&SPARSE_MAGIC) => {
            let header = SparseHeader::read(&first);
            places.push(0..SECTOR_BYTES);
            (header.capacity_sectors, sparse_tables(image, &header)?)
        }
        (b"VMFSSPARSE", None) if first.starts_with(&COWD_MAGIC) => {
            let header = CowdHeader::read(&first);
            places.push(0..COWD_HEADER_BYTES);
            (header.capacity_sectors.into(), (cowd_tables(&header)?, None))
        }
        (b"SESPARSE", None) => {
            let (sectors, tables) = check_sesparse(image, &first, places)?;
            (sectors, (tables, None))
        }
        _ => return Err(differs("extent", "a file of its kind", "another file")),
    };
    if sectors != line.sectors {
        return Err(differs("extent", "the capacity of its header", "another size"));
    }
    check_tables(image, &tables.0, tables.1, places)
}

/// Checks the length of a file without tables.
fn check_length(image: &Image, sectors: u64) -> Result<u64, Box<Violation>> {
    match image.length_bytes() == sectors.saturating_mul(SECTOR_BYTES) {
        true => Ok(0),
        false => Err(differs("flat extent", "a file of its length", "another length")),
    }
}

/// Checks both headers of an seSparse extent. Returns its capacity and its tables.
fn check_sesparse(
    image: &Image,
    first: &[u8; HEADER_BYTES],
    places: &mut Vec<Range<u64>>,
) -> Result<(u64, Tables), Box<Violation>> {
    let valid = || -> Result<_, _> {
        let header = ConstHeader::parse(first)?;
        let volatile = header.volatile_offset()?;
        check_volatile(&read::<HEADER_BYTES>(image, volatile.get()))?;
        Ok((header.capacity_sectors, volatile, header.tables()?))
    };
    let (sectors, volatile, tables): (u64, HostOffset, Tables) =
        valid().map_err(|error| refused("header", &error))?;
    for start in [0, volatile.get()] {
        places.push(start..start.saturating_add(SECTOR_BYTES));
    }
    Ok((sectors, tables))
}
