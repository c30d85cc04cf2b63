//! The rules about the grains of VMDK images: the front of compressed ones (`block/vmdk.c`, `vmdk_read_extent`).
//!
//! Not among the rules: grains for which the redundant directory has another place; streams behind their first two
//! bytes; directories of ESX that are too short, where QEMU reports no mapping and reads zeros.
//!
//! # Arithmetic
//! A directory has less than 2^26 entries and a table at most 512, and QEMU opens the image, so that a grain has at
//! most 2^30 bytes. Only the judged grains are visited. A sector has 32 bits.

use crate::formats::vmdk::constants::{
    COMPRESS_DEFLATE, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY, FLAG_ZERO_GRAINS, GRAIN_MARKER_BYTES,
    SECTOR_BYTES, ZERO_GRAIN,
};
use crate::images::image::Image;

use super::rules::header_of;
use crate::images::rule::{BrokenEntry, BrokenRule};
use crate::images::rule_bytes::Bytes;

const VMDK_MARKER: BrokenRule = "VMDK length in a marker";
const VMDK_ZLIB: BrokenRule = "VMDK zlib header";

/// The rules about entries.
pub(super) const VMDK_ENTRY_RULES: &[BrokenRule] = &[VMDK_MARKER, VMDK_ZLIB];

/// The number of entries of a directory and of all tables that are judged. Programs make fewer.
const VMDK_JUDGED_ENTRIES: u64 = 1 << 15;

/// Calls `take` with the entries that break a rule, if QEMU opens the image.
pub(super) fn broken_entries(image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
    let bytes = Bytes::new(image);
    let Some(header) = header_of(image) else { return };
    let number = |inside: u64, width| bytes.little(header + inside, width);
    // The compression has 16 bits.
    if number(77, 2) != u64::from(COMPRESS_DEFLATE) {
        return;
    }
    let (flags, grain, per_table) = (number(8, 4), number(20, 8) * SECTOR_BYTES, number(44, 4));
    let has = |flag: u32| flags & u64::from(flag) != 0;
    let tables = number(12, 8).div_ceil(per_table * (grain / SECTOR_BYTES));
    let place = |inside| number(inside, 8).wrapping_mul(SECTOR_BYTES);
    let (directory, copy) = (place(56), has(FLAG_REDUNDANT_DIRECTORY).then(|| place(48)));
    let mut left = VMDK_JUDGED_ENTRIES;
    bytes.each_entry(directory, tables.min(VMDK_JUDGED_ENTRIES), |index, entry| {
        let table = u64::from(u32::from_le_bytes(entry)) * SECTOR_BYTES;
        let Some(next) = left.checked_sub(per_table).filter(|_| table != 0) else { return };
        left = next;
        let copied = copy
            .map(|copy| bytes.little(copy.saturating_add(index * 4), 4).wrapping_mul(SECTOR_BYTES));
        bytes.each_entry(table, per_table, |at, entry| {
            let sector = u32::from_le_bytes(entry);
            let is_same = |copied: u64| bytes.little(copied + at * 4, 4) == u64::from(sector);
            let is_zero = sector == ZERO_GRAIN && has(FLAG_ZERO_GRAINS);
            if sector == 0 || is_zero || !copied.is_none_or(is_same) {
                return;
            }
            let start = u64::from(sector) * SECTOR_BYTES;
            if let Some(rule) = broken_front(&bytes, start, grain, has(FLAG_MARKERS)) {
                let first = (index * per_table + at) * grain;
                // Past the end of the disk, a layer above reads zeros.
                let disk = number(12, 8).saturating_mul(SECTOR_BYTES);
                let guest = first.min(disk)..(first + grain).min(disk);
                take(BrokenEntry { rule, guest, is_mapped: true });
            }
        });
    });
}

/// Returns the rule that the first bytes of a compressed grain of `grain` bytes break.
fn broken_front(bytes: &Bytes, start: u64, grain: u64, has_marker: bool) -> Option<BrokenRule> {
    let mut stream = start;
    if has_marker {
        if !(1..=2 * grain).contains(&bytes.little(start + 8, 4)) {
            return Some(VMDK_MARKER);
        }
        stream += GRAIN_MARKER_BYTES;
    }
    // RFC 1950, section 2.2: deflate, a window of at most 32 KiB, no dictionary.
    let [method, flags] = bytes.array(stream);
    let check = u32::from(method) * 256 + u32::from(flags);
    let is_valid =
        method & 15 == 8 && method >> 4 <= 7 && flags & 32 == 0 && check.is_multiple_of(31);
    (!is_valid).then_some(VMDK_ZLIB)
}
