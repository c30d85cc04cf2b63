//! The rules that only the specification (\[MS-VHDX\]) demands of a VHDX image. QEMU opens images that break them.

use crate::formats::vhdx::constants::{
    BAT_ENTRY_BYTES, BAT_REGION, CHUNK_BYTES, GUEST_SECTOR_BYTES, METADATA_REGION,
    METADATA_TABLE_BYTES, OFFSET_UNIT_BYTES, REGION_TABLE_BYTES, REGION_TABLE_OFFSETS,
    VHDX_HEADER_OFFSETS, content, header,
};
use crate::images::damage::rules::{BrokenRule, Bytes};
use crate::images::files::image::Image;

use super::rules::{Place, VhdxFile};

const CURRENT_HEADERS: BrokenRule = "VHDX headers that both count";
const LOG: BrokenRule = "VHDX log that is not empty";
const LOG_LENGTH: BrokenRule = "VHDX log of an odd length";
const REGION_TABLE_COPIES: BrokenRule = "VHDX region tables that differ";
const REGION: BrokenRule = "VHDX region beside its boundary";
const ITEM: BrokenRule = "VHDX metadata item outside its region";
const SIZE: BrokenRule = "VHDX size in odd sectors";
const BLOCK: BrokenRule = "VHDX entry of a block";
const BITMAP_ENTRY: BrokenRule = "VHDX entry of a sector bitmap";

/// Bits 3 to 19 of an entry are reserved.
const RESERVED_BITS: u64 = 0xffff8;

/// Returns the first of these rules that a built image breaks. Its log is empty, too.
pub(super) fn broken_by_specification(image: &Image) -> Option<BrokenRule> {
    let file = VhdxFile(Bytes::new(image));
    let current = file.header().ok()?;
    let [first, second] = VHDX_HEADER_OFFSETS;
    let is_valid = |header| file.header_fault(header).is_none();
    let log_bytes = file.0.little_field(current, header::LOG_LENGTH);
    let [table, copy] = REGION_TABLE_OFFSETS;
    if file.sequence(first) == file.sequence(second) && is_valid(first) && is_valid(second) {
        Some(CURRENT_HEADERS)
    } else if file.has_log_identity(current) {
        Some(LOG)
    } else if !is_aligned(log_bytes) {
        Some(LOG_LENGTH)
    } else if !file.0.is_copy(table, copy, REGION_TABLE_BYTES as u64) {
        Some(REGION_TABLE_COPIES)
    } else {
        broken_region(&file, table)
    }
}

/// Reports whether an offset or a length is a multiple of 1 MiB, and not 0.
fn is_aligned(bytes: u64) -> bool {
    bytes > 0 && bytes.is_multiple_of(OFFSET_UNIT_BYTES)
}

/// Returns the first rule that the regions of the table at `table` break, or their content.
fn broken_region(file: &VhdxFile<'_>, table: u64) -> Option<BrokenRule> {
    let (mut blocks, mut metadata) = (None, None);
    for index in 0..file.region_count(table) {
        let (entry, region) = file.region(table, index);
        if !is_aligned(region.0) || !is_aligned(region.1) {
            return Some(REGION);
        }
        match file.0.array(entry) {
            BAT_REGION => blocks = Some(region),
            METADATA_REGION => metadata = Some(region),
            _ => {}
        }
    }
    let (blocks, metadata) = blocks.zip(metadata)?;
    let mut items = (0..file.item_count(metadata.0)).map(|index| file.item(metadata.0, index).1);
    // An item without bytes has no place.
    let is_inside = |(start, bytes): Place| {
        (start, bytes) == (0, 0)
            || (METADATA_TABLE_BYTES as u64 <= start && start + bytes <= metadata.1)
    };
    if !items.all(is_inside) {
        return Some(ITEM);
    }
    let [parameters, size, ..] = file.items(metadata.0).ok()?.map(|item| metadata.0 + item);
    let size = file.0.little_field(size, content::VIRTUAL_DISK_SIZE);
    if !size.is_multiple_of(GUEST_SECTOR_BYTES.into()) {
        return Some(SIZE);
    }
    broken_block(file, blocks, file.0.little_field(parameters, content::BLOCK_SIZE))
}

/// Returns the first rule that an entry of the table of blocks breaks, also behind the entry of the last block of the
/// disk.
fn broken_block(file: &VhdxFile<'_>, (table, length): Place, block: u64) -> Option<BrokenRule> {
    let chunk = CHUNK_BYTES.checked_div(block)?;
    let mut broken = None;
    let entries = length / BAT_ENTRY_BYTES as u64;
    // If the disk has no parent, every entry of a sector bitmap is 0.
    file.0.each_entry((table, entries), [0; BAT_ENTRY_BYTES], |index, entry| {
        if index % (chunk + 1) == chunk {
            broken = broken.or(Some(BITMAP_ENTRY));
        } else if !is_block(u64::from_le_bytes(entry)) {
            broken = broken.or(Some(BLOCK));
        }
    });
    broken
}

/// Reports whether an entry may be that of a block: only a stored block and a block of zeros that keeps its room have
/// an offset.
fn is_block(entry: u64) -> bool {
    let has_offset = entry >= OFFSET_UNIT_BYTES;
    match entry & 7 {
        _ if entry & RESERVED_BITS != 0 => false,
        0 | 1 | 3 => !has_offset,
        2 => true,
        6 => has_offset,
        _ => false,
    }
}
