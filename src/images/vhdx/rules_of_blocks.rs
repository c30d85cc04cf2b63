//! The rules about the entries of VHDX's block allocation table: those of QEMU's check at open (`block/vhdx.c`,
//! `vhdx_check_bat_entries`), and those by which a read fails (`vhdx_co_readv`).
//!
//! Not among the rules: entries of sector bitmaps, which map nothing.
//!
//! # Arithmetic
//! A table has less than 2^32 entries of blocks of at most 2^28 bytes. A block that would end past 2^64 ends past every
//! file.

use crate::formats::vhdx::constants::{CHUNK_BYTES, OFFSET_UNIT_BYTES};
use crate::images::image::Image;

use super::rules::{block_table, overlap};
use crate::images::rule::{BrokenEntry, BrokenRule};
use crate::images::rule_bytes::Bytes;

const VHDX_PAST_END: BrokenRule = "VHDX block past the end of the file";
const VHDX_OVERLAP: BrokenRule = "VHDX block over a region";
const VHDX_STATE: BrokenRule = "VHDX block of state 4";
const VHDX_IN_PARENT: BrokenRule = "VHDX block in a parent that is not there";

/// The rules about entries.
pub(super) const VHDX_ENTRY_RULES: &[BrokenRule] =
    &[VHDX_PAST_END, VHDX_OVERLAP, VHDX_STATE, VHDX_IN_PARENT];

/// The number of entries that are judged. Programs make fewer.
const VHDX_JUDGED_ENTRIES: u64 = 1 << 15;

/// Calls `take` with the entries that break a rule, if all readers find the same table.
pub(super) fn broken_entries(image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
    let Some(place) = block_table(image) else { return };
    let bytes = Bytes::new(image);
    let end = bytes.end_of_sectors();
    let chunk = CHUNK_BYTES / place.block;
    let mut stored = 0;
    bytes.each_entry(place.table, place.entries.min(VHDX_JUDGED_ENTRIES), |index, entry| {
        let entry = u64::from_le_bytes(entry);
        let (state, start) = (entry & 7, entry / OFFSET_UNIT_BYTES * OFFSET_UNIT_BYTES);
        // After each chunk of blocks, there is the entry of a sector bitmap.
        let is_bitmap = |index: u64| index % (chunk + 1) == chunk;
        let first = (index - index / (chunk + 1)) * place.block;
        let mut broken = |rule, there: u64| {
            let guest = first + there..(first + place.block).min(place.size);
            if !is_bitmap(index) && !guest.is_empty() {
                take(BrokenEntry { rule, guest, is_mapped: matches!(state, 4 | 7) });
            }
        };
        match state {
            4 => broken(VHDX_STATE, 0),
            7 => broken(VHDX_IN_PARENT, 0),
            6 => {
                // The bytes that the file has can be read.
                let there = end.saturating_sub(start);
                // QEMU takes the index for the number of the block, and the last block may be cut.
                let before = index.wrapping_mul(place.block);
                let required = place.size.wrapping_sub(before).min(place.block);
                if there < required || there == 0 {
                    broken(VHDX_PAST_END, there);
                }
                // QEMU takes the number of stored blocks so far for the index, and leaves out those of bitmaps.
                let over = |region: &_| overlap(*region, (start, place.block));
                if !is_bitmap(stored) && place.regions.iter().any(over) {
                    broken(VHDX_OVERLAP, 0);
                }
                stored += 1;
            }
            _ => {}
        }
    });
}
