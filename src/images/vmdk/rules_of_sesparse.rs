//! The rules about the headers of seSparse extents, in the order of QEMU's checks (`block/vmdk.c`,
//! `vmdk_open_se_sparse`). ESXi's format is not documented.
//!
//! Not among the rules: the magic number, by which the rules know the type of a file, and the entries of the tables.
//!
//! # Arithmetic
//! As in QEMU, products have the lower 64 bits, and the number of entries the lower 32.

use crate::formats::vmdk::constants::{
    HEADER_BYTES, MAX_DIRECTORY_ENTRIES, MAX_LENGTH_BYTES, SE_SPARSE_ENTRY_BYTES,
    SE_SPARSE_GRAIN_SECTORS, SE_SPARSE_MAGIC, SE_SPARSE_TABLE_SECTORS, SE_SPARSE_VERSION,
    SE_SPARSE_VOLATILE_MAGIC, SECTOR_BYTES,
};

use crate::images::rule::BrokenRule;
use crate::images::rule_bytes::Bytes;

const SE_SPARSE_VERSION_RULE: BrokenRule = "seSparse version";
const SE_SPARSE_GRAIN: BrokenRule = "seSparse grain";
const SE_SPARSE_TABLE: BrokenRule = "seSparse table";
const SE_SPARSE_FLAGS: BrokenRule = "seSparse flags";
const SE_SPARSE_RESERVED: BrokenRule = "seSparse reserved field";
const SE_SPARSE_PADDING: BrokenRule = "seSparse padding";
const SE_SPARSE_VOLATILE: BrokenRule = "seSparse volatile header";
const SE_SPARSE_JOURNAL: BrokenRule = "seSparse journal to replay";
const SE_SPARSE_DIRECTORY_SIZE: BrokenRule = "seSparse directory above 256 MiB";
const SE_SPARSE_DIRECTORY: BrokenRule = "seSparse directory past 2^63";

/// The rules about extents.
pub(super) const SE_SPARSE_OPEN_RULES: &[BrokenRule] = &[
    SE_SPARSE_VERSION_RULE,
    SE_SPARSE_GRAIN,
    SE_SPARSE_TABLE,
    SE_SPARSE_FLAGS,
    SE_SPARSE_RESERVED,
    SE_SPARSE_PADDING,
    SE_SPARSE_VOLATILE,
    SE_SPARSE_JOURNAL,
    SE_SPARSE_DIRECTORY_SIZE,
    SE_SPARSE_DIRECTORY,
];

/// Returns the first rule that a file breaks which begins like an seSparse extent; `None` for any other file.
pub(super) fn broken_sesparse(file: &Bytes<'_>) -> Option<BrokenRule> {
    let number = |inside: u64| file.little(inside, 8);
    if number(0) != SE_SPARSE_MAGIC {
        return None;
    }
    let fields = [
        (8, SE_SPARSE_VERSION, SE_SPARSE_VERSION_RULE),
        (24, SE_SPARSE_GRAIN_SECTORS, SE_SPARSE_GRAIN),
        (32, SE_SPARSE_TABLE_SECTORS, SE_SPARSE_TABLE),
        (40, 0, SE_SPARSE_FLAGS),
        (48, 0, SE_SPARSE_RESERVED),
        (56, 0, SE_SPARSE_RESERVED),
        (64, 0, SE_SPARSE_RESERVED),
        (72, 0, SE_SPARSE_RESERVED),
    ];
    let wrong = fields.iter().find(|(inside, expected, _)| number(*inside) != *expected);
    if let Some((_, _, rule)) = wrong {
        return Some(*rule);
    }
    if has_padding(file, 0, 208) {
        return Some(SE_SPARSE_PADDING);
    }
    broken_volatile(file, number(80).wrapping_mul(SECTOR_BYTES))
        .or_else(|| broken_directory(number(128), number(136)))
}

/// Returns the first rule that the header at `at` breaks, which changes while the disk is in use.
fn broken_volatile(file: &Bytes<'_>, at: u64) -> Option<BrokenRule> {
    let is_past_end = at > MAX_LENGTH_BYTES;
    if is_past_end || file.little(at, 8) != SE_SPARSE_VOLATILE_MAGIC {
        Some(SE_SPARSE_VOLATILE)
    } else if file.little(at.saturating_add(24), 8) != 0 {
        Some(SE_SPARSE_JOURNAL)
    } else {
        has_padding(file, at, 32).then_some(SE_SPARSE_PADDING)
    }
}

/// Returns the rule that the place and the length of the directory break.
fn broken_directory(start_sector: u64, sectors: u64) -> Option<BrokenRule> {
    let entries = (sectors.wrapping_mul(SECTOR_BYTES) / SE_SPARSE_ENTRY_BYTES) & 0xffff_ffff;
    if entries > u64::from(MAX_DIRECTORY_ENTRIES) {
        return Some(SE_SPARSE_DIRECTORY_SIZE);
    }
    let end = start_sector.wrapping_mul(SECTOR_BYTES).checked_add(entries * SE_SPARSE_ENTRY_BYTES);
    end.is_none_or(|end| end > MAX_LENGTH_BYTES).then_some(SE_SPARSE_DIRECTORY)
}

/// Reports whether the rest of the header at `at` has other bytes than zeros, from `inside` on.
fn has_padding(file: &Bytes<'_>, at: u64, inside: usize) -> bool {
    let bytes: [u8; HEADER_BYTES] = file.array(at);
    bytes.iter().skip(inside).any(|byte| *byte != 0)
}
