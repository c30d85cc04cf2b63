//! The rules about VHD images, in the order of QEMU's checks (`block/vpc.c`, `vpc_open`).
//!
//! A dynamic disk has two footers, and the footer states the size of the disk in two ways. QEMU reads the footer at the
//! start of the file, and chooses the size by the creator. Other readers may choose otherwise, so an image breaks a
//! rule only if none of these choices is left.

use crate::formats::anatomy::StructureField;
use crate::formats::vpc::constants::{
    CHS_CREATORS, COOKIE, DYNAMIC_COOKIE, DYNAMIC_HEADER_BYTES, FOOTER_BYTES, MAX_CHS_SECTORS,
    MAX_SECTORS, MAX_TABLE_ENTRIES, MIN_BLOCK_BYTES, SECTOR_BYTES, TYPE_FIXED, UNALLOCATED,
    dynamic_header, footer,
};
use crate::images::damage::rules::{BrokenEntry, BrokenRule, Bytes, if_no_reading_is_left, rules};
use crate::images::files::image::Image;

use super::encoding::bitmap_bytes;

rules! {
    /// The rules about whole images.
    VPC_OPEN_RULES {
        VPC_FOOTER_COOKIE = "VHD footer cookie",
        VPC_FOOTER_COPY = "VHD copy of the footer",
        VPC_FOOTER_CHECKSUM = "VHD footer checksum",
        VPC_LARGE = "VHD size above 2040 GiB",
        VPC_HEADER_COOKIE = "VHD dynamic header cookie",
        VPC_BLOCK_SIZE = "VHD block size",
        VPC_SHORT_TABLE = "VHD table below the size",
        VPC_LONG_TABLE = "VHD table of 2^29 entries",
        VPC_TABLE_PAST_END = "VHD table past the end of the file",
    }
    /// The rules about entries.
    VPC_ENTRY_RULES {
        VPC_BLOCK_PAST_END = "VHD block past the end of the file",
    }
}

/// The rules that are limits of QEMU (`block/vpc.c`: `VHD_MAX_SECTORS`, `VPC_MAX_TABLE_ENTRIES`): the size field has 64
/// bits, and the number of entries 32.
pub(super) const VPC_LIMITS: &[BrokenRule] = &[VPC_LARGE, VPC_LONG_TABLE];

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
    let of_qemu = Some(file.broken_for_qemu()?);
    let at_start = file.is_valid_footer(0).then(|| file.disk(0, StatedSize::Current));
    let at_end = file.ends().filter(|at| file.is_valid_footer(*at)).flat_map(|at| {
        [StatedSize::ByCreator, StatedSize::Current].map(|size| match file.is_fixed(at) {
            true => file.large(at, size),
            false => file.disk(at, size),
        })
    });
    if_no_reading_is_left(VPC_OPEN_RULES, of_qemu, at_start.into_iter().chain(at_end))
}

/// Reports whether a file begins with a footer.
pub(super) fn has_cookie(image: &Image) -> bool {
    File(Bytes::new(image)).has_cookie(0)
}

/// Calls `take` with the entries that break a rule, if all readers find the same table.
pub(super) fn broken_entries(image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
    let file = File(Bytes::new(image));
    let header = file.0.big_field(0, footer::DATA_OFFSET);
    let is_same =
        |at| !file.is_valid_footer(at) || file.0.big_field(at, footer::DATA_OFFSET) == header;
    if !file.is_valid_footer(0)
        || file.is_fixed(0)
        || file.broken_for_qemu().is_some()
        || !file.ends().all(is_same)
    {
        return;
    }
    let table = file.table(header);
    let (block, end) = (table.block, file.0.end_of_sectors());
    table.each_block(&file.0, |index, start| {
        let data = start + table.bitmap();
        if data + block > end {
            // The bytes before the end of the file can be read.
            let there = end.saturating_sub(data);
            let guest = index * block + there..(index + 1) * block;
            take(BrokenEntry { rule: VPC_BLOCK_PAST_END, guest, is_mapped: false });
        }
    });
}

const VPC_FOOTERS: BrokenRule = "VHD footers that differ";
const VPC_HEADER_CHECKSUM: BrokenRule = "VHD dynamic header checksum";
const VPC_BITMAP: BrokenRule = "VHD bitmap without a sector";

/// Returns the first rule that only the specification demands and that a built image breaks.
pub(super) fn broken_by_specification(image: &Image) -> Option<BrokenRule> {
    let file = File(Bytes::new(image));
    if !file.has_cookie(0) {
        return None;
    }
    let last = file.0.length().saturating_sub(FOOTER_BYTES as u64);
    let header = file.0.big_field(0, footer::DATA_OFFSET);
    if file.has_cookie(last) && file.footer(last) != file.footer(0) {
        Some(VPC_FOOTERS)
    } else if !has_checksum(&file.0.array::<DYNAMIC_HEADER_BYTES>(header), dynamic_header::CHECKSUM)
    {
        Some(VPC_HEADER_CHECKSUM)
    } else {
        let (table, mut is_whole) = (file.table(header), true);
        // The build stores whole blocks.
        table.each_block(&file.0, |_, start| {
            let mut left = table.bitmap();
            file.0.each_stored(start..start + left, |_, bytes| {
                // Without a branch for each byte, the comparison takes a few instructions for many of them.
                is_whole &= bytes.iter().fold(true, |all, byte| all & (*byte == 0xff));
                left = left.saturating_sub(bytes.len() as u64);
            });
            is_whole &= left == 0;
        });
        (!is_whole).then_some(VPC_BITMAP)
    }
}

/// The place of a table, and the blocks that it names.
struct VpcTable {
    /// The offset of the table.
    at: u64,
    entries: u64,
    /// The length of a block in bytes.
    block: u64,
}

impl VpcTable {
    /// Returns the length of the bitmap before each block. Blocks below 4 KiB have none (`block/vpc.c`, `vpc_open`).
    fn bitmap(&self) -> u64 {
        bitmap_bytes(self.block)
    }

    /// Calls `take` with the index and the start of each stored block.
    fn each_block(&self, bytes: &Bytes<'_>, mut take: impl FnMut(u64, u64)) {
        let entries = self.entries.min(VPC_JUDGED_ENTRIES);
        bytes.each_entry((self.at, entries), UNALLOCATED.to_be_bytes(), |index, entry| {
            take(index, u64::from(u32::from_be_bytes(entry)) * SECTOR_BYTES);
        });
    }
}

/// Reports whether a structure contains its checksum: the one's complement of the sum of all other bytes.
fn has_checksum(structure: &[u8], checksum: StructureField) -> bool {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    let (before, rest) = structure.split_at(checksum.at);
    let (stored, behind) = rest.split_at(checksum.width_bytes);
    stored == (!(sum(before) + sum(behind))).to_be_bytes()
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

    fn footer(&self, at: u64) -> [u8; FOOTER_BYTES] {
        self.0.array(at)
    }

    fn is_valid_footer(&self, at: u64) -> bool {
        self.has_cookie(at) && has_checksum(&self.footer(at), footer::CHECKSUM)
    }

    /// Reports whether a footer is that of a fixed disk.
    fn is_fixed(&self, footer: u64) -> bool {
        self.0.big_field(footer, footer::DISK_TYPE) == u64::from(TYPE_FIXED)
    }

    /// Returns the number of guest sectors that a footer states.
    fn sectors(&self, footer: u64, size: StatedSize) -> u64 {
        let number = |field| self.0.big_field(footer, field);
        let geometry = [footer::CYLINDERS, footer::HEADS, footer::SECTORS_PER_TRACK];
        let geometry = geometry.into_iter().map(number).product();
        let creator = number(footer::CREATOR_APPLICATION);
        let states_geometry = || {
            CHS_CREATORS.iter().any(|it| u64::from(u32::from_be_bytes(*it)) == creator)
                && geometry != MAX_CHS_SECTORS
        };
        match size {
            StatedSize::ByCreator if states_geometry() => geometry,
            _ => number(footer::CURRENT_SIZE) / SECTOR_BYTES,
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
        let header = self.0.big_field(footer, footer::DATA_OFFSET);
        if header > i64::MAX as u64 || self.0.array(header) != DYNAMIC_COOKIE {
            return Some(VPC_HEADER_COOKIE);
        }
        let VpcTable { at, entries, block } = self.table(header);
        let end_of_table =
            at.checked_add(entries * 4).and_then(|end| end.checked_next_multiple_of(SECTOR_BYTES));
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

    /// Returns the table that the dynamic header at `header` names.
    fn table(&self, header: u64) -> VpcTable {
        let number = |field| self.0.big_field(header, field);
        VpcTable {
            at: number(dynamic_header::TABLE_OFFSET),
            entries: number(dynamic_header::MAX_TABLE_ENTRIES),
            block: number(dynamic_header::BLOCK_SIZE),
        }
    }
}
