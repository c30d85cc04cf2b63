//! The structures of a VMDK image: headers, descriptor, directories, tables, grains and their markers; if the data lie
//! in other files, the descriptor and each of these files. Does not check markers before tables and directories: no
//! reader that follows the directory sees them.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::entries::EntryRun;
use crate::formats::vmdk::constants::{
    COWD_MAGIC, DIRECTORY_AT_END, EMBEDDED_DESCRIPTOR_AT, FLAG_REDUNDANT_DIRECTORY,
    GRAIN_MARKER_BYTES, HEADER_BYTES, SECTOR_BYTES, SPARSE_MAGIC, STREAM_FOOTER_BYTES,
};
use crate::formats::vmdk::head::sectors_of;
use crate::formats::vmdk::headers::{
    ConstHeader, CowdHeader, SparseHeader, check_volatile, footer_header,
};
use crate::formats::vmdk::tables::{Grain, GrainKind, Tables};
use crate::harness::oracles::{OracleResult, Violation, disagreement};
use crate::images::files::LayerFiles;
use crate::images::files::image::Image;

use super::reading::{ORACLE, each_run, is_copy, read, refused};

/// The length of the header that ESX writes, with its unused part.
const COWD_HEADER_BYTES: u64 = 4 * SECTOR_BYTES;
const ENTRY_BYTES: u64 = 4;
/// The bytes of a descriptor that are read: the builder writes no longer text.
const TEXT_BYTES: usize = 1024;
/// The parent's identity of an image without a parent, and the identity of no content.
const NO_CONTENT: &[u8] = b"ffffffff";

/// Checks an image whose parent is `parent`, and notes the places of its structures. Returns the bytes of its directory
/// and of the tables that it names.
pub(super) fn check(
    image: &Image,
    parent: Option<&LayerFiles>,
    places: &mut Vec<Range<u64>>,
) -> Result<u64, Box<Violation>> {
    let first = read::<HEADER_BYTES>(image, 0);
    if first.starts_with(&COWD_MAGIC) {
        places.push(0..COWD_HEADER_BYTES);
        check_identity(&read::<TEXT_BYTES>(image, EMBEDDED_DESCRIPTOR_AT), parent)?;
        return check_tables(image, &cowd_tables(&CowdHeader::read(&first))?, None, places);
    }
    let mut header = SparseHeader::read(&first);
    places.push(0..EMBEDDED_DESCRIPTOR_AT);
    if header.directory_sector == DIRECTORY_AT_END {
        header = check_footer(image, &header, places)?;
    }
    check_descriptor(image, &header, parent, places)?;
    let (tables, redundant) = sparse_tables(image, &header)?;
    check_tables(image, &tables, redundant, places)
}

/// Returns the tables of a sparse extent, and the offset of its redundant directory if it has one.
fn sparse_tables(
    image: &Image,
    header: &SparseHeader,
) -> Result<(Tables, Option<u64>), Box<Violation>> {
    let tables = header.tables(sectors_of(image)).map_err(|error| refused("header", &error))?;
    let redundant = header.flags & FLAG_REDUNDANT_DIRECTORY != 0;
    Ok((tables, redundant.then(|| offset_of(header.redundant_directory_sector))))
}

/// Returns the tables of an extent as ESX writes it.
fn cowd_tables(header: &CowdHeader) -> Result<Tables, Box<Violation>> {
    header.tables().map_err(|error| refused("header", &error))
}

/// Checks that the footer has the same header, except for the place of the directory. Returns it.
fn check_footer(
    image: &Image,
    first: &SparseHeader,
    places: &mut Vec<Range<u64>>,
) -> Result<SparseHeader, Box<Violation>> {
    let end = image.length_bytes();
    let at = end.saturating_sub(STREAM_FOOTER_BYTES as u64);
    let header = footer_header(&read(image, at)).map_err(|error| refused("footer", &error))?;
    places.push(at..end);
    match (SparseHeader { directory_sector: DIRECTORY_AT_END, ..header }) == *first {
        true => Ok(header),
        false => Err(differs("headers", "the same", "different")),
    }
}

/// Checks the text, and that it states the size of the disk and a fitting type.
fn check_descriptor(
    image: &Image,
    header: &SparseHeader,
    parent: Option<&LayerFiles>,
    places: &mut Vec<Range<u64>>,
) -> OracleResult {
    let text = read::<TEXT_BYTES>(image, EMBEDDED_DESCRIPTOR_AT);
    places.push(EMBEDDED_DESCRIPTOR_AT..EMBEDDED_DESCRIPTOR_AT + TEXT_BYTES as u64);
    check_identity(&text, parent)?;
    let is_compressed = header.compression != 0;
    let create_type = if is_compressed { "streamOptimized" } else { "monolithicSparse" };
    let create_type = format!("createType=\"{create_type}\"");
    let extent = format!("RW {} SPARSE \"", header.capacity_sectors);
    if !lines(&text).any(|line| line == create_type.as_bytes()) {
        return Err(differs("descriptor's type", "that of the grains", "another"));
    }
    let mut extents = lines(&text).filter(|line| line.starts_with(b"RW "));
    match (extents.next(), extents.next()) {
        (Some(line), None) if line.starts_with(extent.as_bytes()) => Ok(()),
        _ => Err(differs("descriptor's extent", "the capacity", "another size")),
    }
}

/// Checks the identities in a descriptor, and that it names its parent.
fn check_identity(text: &[u8], parent: Option<&LayerFiles>) -> OracleResult {
    let value = |name: &[u8]| lines(text).find_map(|line| line.strip_prefix(name));
    let is_number = |value: &[u8]| value.len() == 8 && value.iter().all(u8::is_ascii_hexdigit);
    let is_content = |value: &[u8]| is_number(value) && value != NO_CONTENT;
    if !value(b"CID=").is_some_and(is_content) {
        return Err(differs("CID", "a number of content", "another text"));
    }
    let descriptor_at = |files: &LayerFiles| match files.extents.all() {
        [] => EMBEDDED_DESCRIPTOR_AT,
        _ => 0,
    };
    let below = parent.map(|it| read::<TEXT_BYTES>(&it.image, descriptor_at(it)));
    let identity =
        below.as_ref().map(|text| lines(text).find_map(|line| line.strip_prefix(b"CID=")));
    if value(b"parentCID=") != identity.unwrap_or(Some(NO_CONTENT)) {
        return Err(differs("parentCID", "the CID of the parent", "another text"));
    }
    let name = parent.map(|parent| format!("\"{}\"", parent.name));
    match value(b"parentFileNameHint=") == name.as_deref().map(str::as_bytes) {
        true => Ok(()),
        false => Err(differs("parentFileNameHint", "the name of the parent", "another text")),
    }
}

/// Returns the lines of a text that ends at the first zero byte.
pub(super) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = memchr::memchr(0, text).unwrap_or(text.len());
    let mut rest = Some(&text[..end]);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = memchr::memchr(b'\n', text);
        rest = end.map(|end| &text[end + 1..]);
        Some(end.map_or(text, |end| &text[..end]))
    })
}

/// Checks the directory, and that the redundant one is a true copy. Returns the bytes of the directory and its tables.
fn check_tables(
    image: &Image,
    tables: &Tables,
    redundant: Option<u64>,
    places: &mut Vec<Range<u64>>,
) -> Result<u64, Box<Violation>> {
    let (directory, length) = (tables.directory.get(), tables.directory_bytes());
    places.push(directory..directory.saturating_add(length));
    let mut named = 0;
    let entries = u64::from(tables.directory_entries);
    each_entry(image, tables, (directory, entries), |index, entry| {
        named += 1;
        let table = tables.table_of(entry).map_err(|what| differs("entry", "a table", what))?;
        let Some(table) = table else { return Ok(()) };
        let copy = redundant.map(|copy| number(image, copy, index));
        if copy == Some(0) {
            return Err(differs("redundant directory", "the same tables", "fewer"));
        }
        let copy = copy.map(|copy| offset_of(copy.into()));
        check_table(image, tables, (index, table.get(), copy), places)
    })?;
    if let Some(copy) = redundant {
        places.push(copy..copy.saturating_add(length));
        let mut copied = 0;
        each_entry(image, tables, (copy, entries), |_, _| {
            copied += 1;
            Ok(())
        })?;
        if copied != named {
            return Err(differs("redundant directory", "the same tables", "others"));
        }
    }
    Ok(length + named * tables.table_bytes())
}

/// Checks a table: its index in the directory, its place, and the place of its copy.
fn check_table(
    image: &Image,
    tables: &Tables,
    (index, table, copy): (u64, u64, Option<u64>),
    places: &mut Vec<Range<u64>>,
) -> OracleResult {
    let table_bytes = tables.table_bytes();
    places.push(table..table.saturating_add(table_bytes));
    if let Some(copy) = copy {
        places.push(copy..copy.saturating_add(table_bytes));
        if !is_copy(image, table, copy, table_bytes) {
            return Err(differs("redundant table", "the same entries", "others"));
        }
    }
    let first = index * u64::from(tables.table_entries);
    each_entry(image, tables, (table, tables.table_entries.into()), |index, entry| {
        match tables.grain_of(entry) {
            Ok(Grain::At(at)) => places.push(check_grain(image, tables, first + index, at)?),
            Ok(Grain::Zero | Grain::Unallocated) => {}
            Err(what) => return Err(differs("entry", "a grain", what)),
        }
        Ok(())
    })
}

/// Checks the beginning of a stored grain, and returns its place in the file. Without a marker, this is the first
/// sector of a compressed grain: its length is not stated.
fn check_grain(
    image: &Image,
    tables: &Tables,
    index: u64,
    at: HostOffset,
) -> Result<Range<u64>, Box<Violation>> {
    let (start, grain_bytes) = (at.get(), tables.grain_bytes());
    let marker_bytes = match tables.kind {
        GrainKind::Compressed { has_marker: true } => GRAIN_MARKER_BYTES,
        GrainKind::Compressed { has_marker: false } => 0,
        GrainKind::Plain | GrainKind::SeSparse(_) => {
            return Ok(start..start.saturating_add(grain_bytes));
        }
    };
    let stream = read::<2>(image, start.saturating_add(marker_bytes));
    // RFC 1950 §2.2: deflate, and a check of both bytes.
    if stream[0] & 0xf != 8 || !u16::from_be_bytes(stream).is_multiple_of(31) {
        return Err(differs("compressed grain", "a zlib stream", "other bytes"));
    }
    if marker_bytes == 0 {
        return Ok(start..start.saturating_add(SECTOR_BYTES));
    }
    let marker = read::<{ GRAIN_MARKER_BYTES as usize }>(image, start);
    let (sector, size) = marker.split_first_chunk().map_or((0, 0), |(sector, size)| {
        let size = size.try_into().map_or(0, u32::from_le_bytes);
        (u64::from_le_bytes(*sector), u64::from(size))
    });
    if sector != index * (grain_bytes / SECTOR_BYTES) {
        return Err(differs("marker of a grain", "its guest sector", "another"));
    }
    if !(1..=2 * grain_bytes).contains(&size) {
        return Err(differs("marker of a grain", "at most two grains", "more"));
    }
    let length = (marker_bytes + size).next_multiple_of(SECTOR_BYTES);
    Ok(start..start.saturating_add(length))
}

/// Calls `take` with the index and the value of each of `count` entries of a directory or a table that is not 0, as far
/// as it succeeds.
fn each_entry(
    image: &Image,
    tables: &Tables,
    (table, count): (u64, u64),
    mut take: impl FnMut(u64, u64) -> OracleResult,
) -> OracleResult {
    let mut take = |mut indices: Range<u64>, entry| match entry {
        0 => Ok(()),
        entry => indices.try_for_each(|index| take(index, entry)),
    };
    match tables.kind {
        GrainKind::SeSparse(_) => each_run(image, table, count, |EntryRun { indices, entry }| {
            take(indices, u64::from_le_bytes(entry))
        }),
        GrainKind::Plain | GrainKind::Compressed { .. } => {
            each_run(image, table, count, |EntryRun { indices, entry }| {
                take(indices, u32::from_le_bytes(entry).into())
            })
        }
    }
}

/// Returns the entry at an index of a table.
fn number(image: &Image, table: u64, index: u64) -> u32 {
    u32::from_le_bytes(read(image, table.saturating_add(index * ENTRY_BYTES)))
}

/// Returns the byte offset of a sector.
fn offset_of(sector: u64) -> u64 {
    sector.saturating_mul(SECTOR_BYTES)
}

pub(super) fn differs(
    field: &'static str,
    expected: &'static str,
    actual: &'static str,
) -> Box<Violation> {
    disagreement(ORACLE, field, (expected, actual), String::new())
}

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
pub(super) fn check_stated_extents(
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
pub(super) fn check_extents(
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
