//! The structures of a VHD image: footers, dynamic header, table, blocks and their bitmaps.

use std::ops::Range;

use crate::disk::storage::Storage;
use crate::formats::vpc::constants::{
    DYNAMIC_CHECKSUM_AT, DYNAMIC_HEADER_BYTES, FOOTER_BYTES, SECTOR_BYTES, TYPE_FIXED,
};
use crate::formats::vpc::headers::{DynamicHeader, Footer, checksums};
use crate::harness::oracles::{OracleResult, Violation, violation};
use crate::images::files::image::Image;

use super::reading::{ORACLE, each_run, read, refused};

const TABLE_ENTRY_BYTES: u64 = 4;

/// Checks an image, and notes the places of its structures. Returns the bytes of its table.
pub(super) fn check(image: &Image, places: &mut Vec<Range<u64>>) -> Result<u64, Box<Violation>> {
    let last = image.length_bytes().saturating_sub(FOOTER_BYTES as u64);
    let at_end = read::<FOOTER_BYTES>(image, last);
    let first = read::<FOOTER_BYTES>(image, 0);
    let has_footer_at_end = Footer::is_at(&at_end);
    if has_footer_at_end {
        places.push(last..image.length_bytes());
    }
    if !Footer::is_at(&first) {
        check_fixed(&at_end)?;
        return Ok(0);
    }
    if has_footer_at_end && at_end != first {
        violation(ORACLE, "footers", ("the same", "different"), String::new)?;
    }
    places.push(0..FOOTER_BYTES as u64);
    let footer = Footer::parse(&first).map_err(|error| refused("footer", &error))?;
    let header = dynamic_header(image, &footer)?;
    places.push(footer.data_offset..footer.data_offset + DYNAMIC_HEADER_BYTES as u64);
    check_table(image, &header, places)?;
    Ok(u64::from(header.entries) * TABLE_ENTRY_BYTES)
}

/// Checks the only footer of a fixed disk.
fn check_fixed(footer: &[u8; FOOTER_BYTES]) -> OracleResult {
    let parsed = Footer::parse(footer).map_err(|error| refused("footer", &error))?;
    match parsed.disk_type == TYPE_FIXED {
        true => Ok(()),
        false => violation(ORACLE, "disk type", ("fixed", "another"), || format!("{parsed:?}")),
    }
}

fn dynamic_header(image: &Image, footer: &Footer) -> Result<DynamicHeader, Box<Violation>> {
    let bytes = read::<DYNAMIC_HEADER_BYTES>(image, footer.data_offset);
    let (computed, stored) = checksums(&bytes, DYNAMIC_CHECKSUM_AT);
    if computed != stored {
        violation(ORACLE, "dynamic header checksum", ("right", "wrong"), || {
            format!("expected {computed:#x}, found {stored:#x}")
        })?;
    }
    DynamicHeader::parse(&bytes, footer.virtual_size_bytes())
        .map_err(|error| refused("dynamic header", &error))
}

/// Checks the bitmaps of all blocks, and notes the places of the table and the blocks.
fn check_table(
    image: &Image,
    header: &DynamicHeader,
    places: &mut Vec<Range<u64>>,
) -> OracleResult {
    let table = header.table_offset.get();
    let table_bytes = u64::from(header.entries) * TABLE_ENTRY_BYTES;
    places.push(table..table.saturating_add(table_bytes));
    each_run(image, table, header.entries.into(), |run| {
        let entry = u32::from_be_bytes(run.entry);
        let Some(data) = header.data_of(entry) else { return Ok(()) };
        let start = u64::from(entry) * SECTOR_BYTES;
        check_bitmap(image, start..data.get())?;
        let block = start..data.get().saturating_add(u64::from(header.block_bytes));
        // Each entry has a place of its own: two equal entries are a violation.
        places.extend(run.indices.map(|_| block.clone()));
        Ok(())
    })
}

/// Checks that a bitmap says of every sector that the file stores it: the builder stores whole blocks.
fn check_bitmap(image: &Image, place: Range<u64>) -> OracleResult {
    for at in place.step_by(SECTOR_BYTES as usize) {
        if read::<{ SECTOR_BYTES as usize }>(image, at).iter().any(|byte| *byte != 0xff) {
            return violation(ORACLE, "sector bitmap", ("all sectors", "fewer"), || {
                format!("at {at:#x}")
            });
        }
    }
    Ok(())
}
