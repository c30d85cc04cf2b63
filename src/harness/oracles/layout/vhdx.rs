//! The structures of a VHDX image: headers, region tables, metadata, block allocation table and blocks.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;
use crate::formats::vhdx::block_table::BlockTable;
use crate::formats::vhdx::constants::{
    BAT_ENTRY_BYTES, FILE_SIGNATURE, HEADER_SIGNATURE, METADATA_ENTRIES_AT, METADATA_ENTRY_BYTES,
    METADATA_TABLE_BYTES, OFFSET_UNIT_BYTES, REGION_ENTRIES_AT, REGION_ENTRY_BYTES,
    REGION_TABLE_OFFSET, REGION_TABLE_OFFSETS, VHDX_HEADER_BYTES, VHDX_HEADER_OFFSETS,
};
use crate::formats::vhdx::header::{Checksum, VhdxHeader};
use crate::formats::vhdx::metadata::{Metadata, MetadataTable};
use crate::formats::vhdx::region_table::{Region, RegionTable};
use crate::harness::oracles::{OracleResult, Violation, violation};
use crate::images::files::image::Image;

use super::reading::{ORACLE, each_run, read, refused};

/// The length of a metadata region in bytes.
const METADATA_REGION_BYTES: u64 = OFFSET_UNIT_BYTES;

/// Bits 3 to 19 of an entry are reserved.
const RESERVED_BITS: u64 = 0xffff8;

/// Checks an image, and notes the places of its structures. Returns the bytes of its table: a walk
/// reads each entry at most once, and opening the image does not count.
pub(super) fn check(image: &Image, places: &mut Vec<Range<u64>>) -> Result<u64, Box<Violation>> {
    places.push(0..OFFSET_UNIT_BYTES);
    if read(image, 0) != FILE_SIGNATURE {
        violation(ORACLE, "file signature", ("vhdxfile", "another"), String::new)?;
    }
    let log = check_headers(image, places)?;
    let regions = check_regions(image, log, places)?;
    let metadata = check_metadata(image, regions.metadata_offset.get())?;
    let (table, length_bytes) = regions.bat;
    let table = BlockTable::new(table, length_bytes, &metadata)
        .map_err(|error| refused("block allocation table", &error))?;
    check_table(image, &table, places)?;
    Ok(u64::from(table.checked_entries) * BAT_ENTRY_BYTES as u64)
}

/// Checks that one header counts by the rule of the specification, which is stricter than QEMU's, and that the log is
/// empty. Returns the place of the log.
fn check_headers(image: &Image, places: &mut Vec<Range<u64>>) -> Result<Region, Box<Violation>> {
    let headers = VHDX_HEADER_OFFSETS.map(|at| read::<VHDX_HEADER_BYTES>(image, at));
    let [first, second] = headers.each_ref().map(|bytes| {
        let is_valid = bytes.starts_with(&HEADER_SIGNATURE) && Checksum::is_valid(bytes);
        is_valid.then(|| bytes.get(8..16))
    });
    if first.is_some() && first == second {
        violation(ORACLE, "sequence numbers of the headers", ("different", "the same"), || {
            format!("{first:?}")
        })?;
    }
    let header = VhdxHeader::current(&headers[0], &headers[1])
        .map_err(|error| refused("headers", &error))?;
    let log = header.log().map_err(|error| refused("log", &error))?;
    if log.is_some() || header.log_guid != [0; 16] {
        violation(ORACLE, "log", ("empty", "not empty"), || format!("{header:?}"))?;
    }
    let start = header.log_offset.get();
    check_aligned("log", start)?;
    check_aligned("length of the log", header.log_length_bytes.into())?;
    places.push(start..start.saturating_add(header.log_length_bytes.into()));
    Ok(Region::new(header.log_offset, header.log_length_bytes))
}

/// Checks both region tables, and notes the places of the regions.
fn check_regions(
    image: &Image,
    log: Region,
    places: &mut Vec<Range<u64>>,
) -> Result<RegionTable, Box<Violation>> {
    let [table, copy] =
        REGION_TABLE_OFFSETS.map(|at| RegionTable::read(image, HostOffset::new(at), log));
    let table = table.map_err(|error| refused("regions", &error))?;
    let [head, copied] = REGION_TABLE_OFFSETS.map(|at| read::<REGION_ENTRIES_AT>(image, at));
    // Valid tables with the same checksum have the same bytes.
    if copy.is_err() || head != copied {
        violation(ORACLE, "region tables", ("the same", "different"), String::new)?;
    }
    let count = number(&head, 8, 4);
    let first = REGION_TABLE_OFFSET + REGION_ENTRIES_AT as u64;
    for index in 0..count {
        let entry = read::<REGION_ENTRY_BYTES>(image, first + index * REGION_ENTRY_BYTES as u64);
        let (start, length) = (number(&entry, 16, 8), number(&entry, 24, 4));
        check_aligned("region", start)?;
        check_aligned("length of a region", length)?;
        places.push(start..start.saturating_add(length));
    }
    Ok(table)
}

/// Checks the metadata table, and that its items lie in the region behind it, each in its own place.
fn check_metadata(image: &Image, region: u64) -> Result<Metadata, Box<Violation>> {
    let refused = |error: MapError| refused("metadata", &error);
    let table = MetadataTable::read(image, HostOffset::new(region)).map_err(refused)?;
    let head = read::<METADATA_ENTRIES_AT>(image, region);
    let entries = (0..number(&head, 10, 2)).map(|index| {
        let at = METADATA_ENTRIES_AT as u64 + index * METADATA_ENTRY_BYTES as u64;
        read::<METADATA_ENTRY_BYTES>(image, region + at)
    });
    let mut items: Vec<Range<u64>> = entries
        .map(|entry| (number(&entry, 16, 4), number(&entry, 20, 4)))
        .filter(|place| *place != (0, 0))
        .map(|(start, length)| start..start + length)
        .collect();
    items.sort_unstable_by_key(|item| item.start);
    let mut end = METADATA_TABLE_BYTES as u64;
    for item in items {
        if item.start < end || item.end > METADATA_REGION_BYTES {
            violation(ORACLE, "metadata item", ("in its own place", "elsewhere"), || {
                format!("{item:?}, and the last one before it ends at {end}")
            })?;
        }
        end = item.end;
    }
    let metadata = table.values(image, HostOffset::new(region)).map_err(refused)?;
    if metadata.stored_size_bytes % 512 != 0 {
        violation(ORACLE, "size of the disk", ("whole sectors", "an odd size"), String::new)?;
    }
    Ok(metadata)
}

/// Checks all entries of the table's region, also those behind the entry of the last block, and notes the places of
/// the blocks.
fn check_table(image: &Image, table: &BlockTable, places: &mut Vec<Range<u64>>) -> OracleResult {
    each_run(image, table.offset.get(), table.room_entries, |run| {
        let entry = u64::from_le_bytes(run.entry);
        // The file does not store most entries of the region. They are 0, those of blocks without data.
        if entry == 0 {
            return Ok(());
        }
        let start = entry / OFFSET_UNIT_BYTES * OFFSET_UNIT_BYTES;
        let block = start..start.saturating_add(table.block_bytes.into());
        for index in run.indices {
            check_entry(table, index, entry)?;
            // Each entry has a place of its own: two equal entries with a place are a violation.
            if start > 0 {
                places.push(block.clone());
            }
        }
        Ok(())
    })
}

/// Checks one entry: only a stored block and a block of zeros that keeps its room have an offset.
fn check_entry(table: &BlockTable, index: u64, entry: u64) -> OracleResult {
    let has_offset = entry >= OFFSET_UNIT_BYTES;
    let expected = match entry & 7 {
        _ if table.is_bitmap(index) => ("0, as that of a sector bitmap", entry == 0),
        _ if entry & RESERVED_BITS != 0 => ("no reserved bits", false),
        0 | 1 | 3 => ("no offset", !has_offset),
        2 => ("zeros", true),
        6 => ("an offset", has_offset),
        _ => ("a known state", false),
    };
    match expected {
        (_, true) => Ok(()),
        (expected, false) => {
            violation(ORACLE, "entry of the block allocation table", (expected, "another"), || {
                format!("{entry:#x} at index {index}")
            })
        }
    }
}

/// Checks that an offset or a length is a multiple of 1 MiB, and not 0.
fn check_aligned(what: &'static str, bytes: u64) -> OracleResult {
    match bytes > 0 && bytes.is_multiple_of(OFFSET_UNIT_BYTES) {
        true => Ok(()),
        false => violation(ORACLE, what, ("whole MiB", "another number"), || format!("{bytes:#x}")),
    }
}

/// Returns the little-endian number of `width` bytes, at most 8, at `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let mut wide = [0; 8];
    if let Some(bytes) = bytes.get(at..at + width) {
        wide[..width].copy_from_slice(bytes);
    }
    u64::from_le_bytes(wide)
}
