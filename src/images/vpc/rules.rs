//! The rules about VHD images, in the order of QEMU's checks (`block/vpc.c`, `vpc_open`).
//!
//! A dynamic disk has two footers, and the footer states the size of the disk in two ways. QEMU reads the footer at the
//! start of the file, and chooses the size by the creator. Other readers may choose otherwise, so an image breaks a
//! rule only if none of these choices is left.

use crate::formats::vpc::constants::{
    CHS_CREATORS, COOKIE, DYNAMIC_COOKIE, FOOTER_BYTES, FOOTER_CHECKSUM_AT, MAX_CHS_SECTORS,
    MAX_SECTORS, MAX_TABLE_ENTRIES, MIN_BLOCK_BYTES, SECTOR_BYTES, TYPE_FIXED, UNALLOCATED,
};
use crate::images::damage::rules::{BrokenEntry, BrokenRule, Bytes, if_no_reading_is_left};
use crate::images::files::image::Image;

pub(super) const VPC_FOOTER_COOKIE: BrokenRule = "VHD footer cookie";
pub(super) const VPC_FOOTER_COPY: BrokenRule = "VHD copy of the footer";
const VPC_FOOTER_CHECKSUM: BrokenRule = "VHD footer checksum";
const VPC_LARGE: BrokenRule = "VHD size above 2040 GiB";
const VPC_HEADER_COOKIE: BrokenRule = "VHD dynamic header cookie";
const VPC_BLOCK_SIZE: BrokenRule = "VHD block size";
const VPC_SHORT_TABLE: BrokenRule = "VHD table below the size";
const VPC_LONG_TABLE: BrokenRule = "VHD table of 2^29 entries";
const VPC_TABLE_PAST_END: BrokenRule = "VHD table past the end of the file";
const VPC_BLOCK_PAST_END: BrokenRule = "VHD block past the end of the file";

/// The rules about whole images.
pub(super) const VPC_OPEN_RULES: &[BrokenRule] = &[
    VPC_FOOTER_COOKIE,
    VPC_FOOTER_COPY,
    VPC_FOOTER_CHECKSUM,
    VPC_LARGE,
    VPC_HEADER_COOKIE,
    VPC_BLOCK_SIZE,
    VPC_SHORT_TABLE,
    VPC_LONG_TABLE,
    VPC_TABLE_PAST_END,
];
/// The rules about entries.
pub(super) const VPC_ENTRY_RULES: &[BrokenRule] = &[VPC_BLOCK_PAST_END];

/// The number of entries that are judged. Programs make fewer.
const VPC_JUDGED_ENTRIES: u64 = 1 << 15;

/// The size of a disk that a reader takes.
#[derive(Clone, Copy)]
enum StatedSize {
    /// As QEMU chooses it: some creators state it by the geometry.
    ByCreator,
    /// The field of the current size, as in the specification.
    Current,
}

/// Returns the rule that an image breaks.
pub(super) fn broken_at_open(image: &Image) -> Option<BrokenRule> {
    let file = File(Bytes::new(image));
    let at_start = file.is_valid_footer(0).then(|| file.disk(0, StatedSize::Current));
    let at_end = file.ends().filter(|at| file.is_valid_footer(*at)).flat_map(|at| {
        [StatedSize::ByCreator, StatedSize::Current].map(|size| match file.is_fixed(at) {
            true => file.large(at, size),
            false => file.disk(at, size),
        })
    });
    if_no_reading_is_left(
        VPC_OPEN_RULES,
        file.broken_for_qemu(),
        at_start.into_iter().chain(at_end),
    )
}

/// Reports whether a file begins with a footer.
pub(super) fn has_cookie(image: &Image) -> bool {
    File(Bytes::new(image)).has_cookie(0)
}

/// Calls `take` with the entries that break a rule, if all readers find the same table.
pub(super) fn broken_entries(image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
    let file = File(Bytes::new(image));
    let header = file.0.big(16, 8);
    let is_same = |at| !file.is_valid_footer(at) || file.0.big(at.saturating_add(16), 8) == header;
    if !file.is_valid_footer(0)
        || file.is_fixed(0)
        || file.broken_for_qemu().is_some()
        || !file.ends().all(is_same)
    {
        return;
    }
    let (table, entries, block) = file.table(header);
    let end = file.0.end_of_sectors();
    // Blocks below 4 KiB have no bitmap, see `formats::vpc::headers`.
    let bitmap = (block / (8 * SECTOR_BYTES)).next_multiple_of(SECTOR_BYTES);
    file.0.each_entry(table, entries.min(VPC_JUDGED_ENTRIES), |index, entry: [u8; 4]| {
        let entry = u32::from_be_bytes(entry);
        let data = u64::from(entry) * SECTOR_BYTES + bitmap;
        if entry != UNALLOCATED && data + block > end {
            // The bytes that the file has can be read.
            let there = end.saturating_sub(data);
            let guest = index * block + there..(index + 1) * block;
            take(BrokenEntry { rule: VPC_BLOCK_PAST_END, guest, is_mapped: false });
        }
    });
}

/// A file.
struct File<'i>(Bytes<'i>);

impl File<'_> {
    /// Returns the first rule that the image breaks for QEMU.
    fn broken_for_qemu(&self) -> Option<BrokenRule> {
        if self.has_cookie(0) {
            return match self.is_valid_footer(0) {
                true => self.disk(0, StatedSize::ByCreator),
                false => Some(VPC_FOOTER_CHECKSUM),
            };
        }
        let at = self.0.end_of_sectors().saturating_sub(SECTOR_BYTES);
        if !self.has_cookie(at) {
            Some(VPC_FOOTER_COOKIE)
        } else if !self.is_fixed(at) {
            Some(VPC_FOOTER_COPY)
        } else if !self.is_valid_footer(at) {
            Some(VPC_FOOTER_CHECKSUM)
        } else {
            self.large(at, StatedSize::ByCreator)
        }
    }

    /// Returns the places of a footer at the end of the file. Old writers leave out its last byte (specification, "Hard
    /// Disk Footer Format").
    fn ends(&self) -> impl Iterator<Item = u64> {
        let footer = FOOTER_BYTES as u64;
        let (exact, whole) = (self.0.length(), self.0.end_of_sectors());
        let ends = [(whole, footer), (exact, footer), (exact, footer - 1)];
        ends.into_iter().filter_map(|(end, length)| end.checked_sub(length))
    }

    fn has_cookie(&self, at: u64) -> bool {
        self.0.array(at) == COOKIE
    }

    fn is_valid_footer(&self, at: u64) -> bool {
        let footer: [u8; FOOTER_BYTES] = self.0.array(at);
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let (before, rest) = footer.split_at(FOOTER_CHECKSUM_AT);
        let (stored, behind) = rest.split_at(4);
        let computed = !(sum(before) + sum(behind));
        self.has_cookie(at) && stored == computed.to_be_bytes()
    }

    /// Reports whether a footer is that of a fixed disk.
    fn is_fixed(&self, footer: u64) -> bool {
        self.0.big(footer.saturating_add(60), 4) == u64::from(TYPE_FIXED)
    }

    /// Returns the number of guest sectors that a footer states.
    fn sectors(&self, footer: u64, size: StatedSize) -> u64 {
        let number = |inside, width| self.0.big(footer.saturating_add(inside), width);
        let geometry = number(56, 2) * number(58, 1) * number(59, 1);
        let creator: [u8; 4] = self.0.array(footer.saturating_add(28));
        match size {
            StatedSize::ByCreator
                if CHS_CREATORS.contains(&creator) && geometry != MAX_CHS_SECTORS =>
            {
                geometry
            }
            _ => number(48, 8) / SECTOR_BYTES,
        }
    }

    fn large(&self, footer: u64, size: StatedSize) -> Option<BrokenRule> {
        (self.sectors(footer, size) > MAX_SECTORS).then_some(VPC_LARGE)
    }

    /// Returns the first rule that a dynamic disk with a footer at `footer` breaks.
    fn disk(&self, footer: u64, size: StatedSize) -> Option<BrokenRule> {
        if let Some(broken) = self.large(footer, size) {
            return Some(broken);
        }
        let header = self.0.big(footer.saturating_add(16), 8);
        if header > i64::MAX as u64 || self.0.array(header) != DYNAMIC_COOKIE {
            return Some(VPC_HEADER_COOKIE);
        }
        let (table, entries, block) = self.table(header);
        let end_of_table = table
            .checked_add(entries * 4)
            .and_then(|end| end.checked_next_multiple_of(SECTOR_BYTES));
        if !block.is_power_of_two() || block < u64::from(MIN_BLOCK_BYTES) {
            Some(VPC_BLOCK_SIZE)
        } else if entries * block < self.sectors(footer, size) * SECTOR_BYTES {
            Some(VPC_SHORT_TABLE)
        } else if entries > u64::from(MAX_TABLE_ENTRIES) {
            Some(VPC_LONG_TABLE)
        } else if end_of_table.is_none_or(|end| end > self.0.end_of_sectors()) {
            Some(VPC_TABLE_PAST_END)
        } else {
            None
        }
    }

    /// Returns the offset of the table, the number of its entries and the length of a block.
    fn table(&self, header: u64) -> (u64, u64, u64) {
        let number = |inside, width| self.0.big(header.saturating_add(inside), width);
        (number(16, 8), number(28, 4), number(32, 4))
    }
}
