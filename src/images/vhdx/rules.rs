//! The rules about VHDX images, in the order of QEMU's checks (`block/vhdx.c`): those of `vhdx_open`, those about the
//! entries of the block allocation table (`vhdx_check_bat_entries`), and those by which a read fails (`vhdx_co_readv`).
//!
//! The region table has a copy, which QEMU does not read. Other readers may use it, so an image breaks a rule only if
//! both tables, or the structures that they name, break one. Not among the rules: an image with a log, because a reader
//! may replay it; sectors of 4 KiB and disks with a parent, which the specification allows and QEMU does not open;
//! entries of sector bitmaps, which map nothing.
//!
//! # Arithmetic
//! As in QEMU, the end of a region wraps around at 2^64, and numbers of entries at 2^32.

use crate::disk::crc32c_zeros::append_zeros;
use crate::formats::vhdx::constants::{
    BAT_ENTRY_BYTES, BAT_REGION, CHUNK_BYTES, FILE_PARAMETERS, FILE_SIGNATURE, GUEST_SECTOR_BYTES,
    Guid, HAS_PARENT, HEADER_SIGNATURE, LOGICAL_SECTOR_SIZE, MAX_LENGTH_BYTES,
    MAX_METADATA_ENTRIES, MAX_REGIONS, MAX_VHDX_BLOCK_BYTES, METADATA_ENTRIES_AT,
    METADATA_ENTRY_BYTES, METADATA_REGION, METADATA_REQUIRED, METADATA_SIGNATURE,
    MIN_VHDX_BLOCK_BYTES, OFFSET_UNIT_BYTES, PAGE_83, PARENT_LOCATOR, PHYSICAL_SECTOR_SIZE,
    REGION_ENTRIES_AT, REGION_ENTRY_BYTES, REGION_REQUIRED, REGION_TABLE_BYTES,
    REGION_TABLE_OFFSETS, REGION_TABLE_SIGNATURE, VHDX_HEADER_BYTES, VHDX_HEADER_FIELD_BYTES,
    VHDX_HEADER_OFFSETS, VHDX_VERSION, VIRTUAL_DISK_SIZE, content, header, metadata_item,
    metadata_table, region, region_table,
};
use crate::images::damage::rules::{BrokenEntry, BrokenRule, Bytes, if_no_reading_is_left, rules};
use crate::images::files::image::Image;

rules! {
    /// The rules about whole images.
    VHDX_OPEN_RULES {
        VHDX_FILE = "VHDX file signature",
        VHDX_HEADER = "VHDX header signature",
        VHDX_HEADER_CHECKSUM = "VHDX header checksum",
        VHDX_HEADER_VERSION = "VHDX header version",
        VHDX_SEQUENCE = "VHDX headers with one sequence number",
        VHDX_LOG_OFFSET = "VHDX log offset",
        VHDX_LOG_VERSION = "VHDX log version",
        VHDX_LOG_LENGTH = "VHDX log length",
        VHDX_REGIONS = "VHDX region table signature",
        VHDX_REGIONS_CHECKSUM = "VHDX region table checksum",
        VHDX_REGION_COUNT = "VHDX number of regions",
        VHDX_REGION_OVERLAP = "VHDX overlapping regions",
        VHDX_REGION_TWICE = "VHDX region that occurs twice",
        VHDX_REGION_UNKNOWN = "VHDX unknown required region",
        VHDX_REGION_MISSING = "VHDX missing region",
        VHDX_METADATA = "VHDX metadata signature",
        VHDX_ITEM_COUNT = "VHDX number of metadata items",
        VHDX_ITEM_TWICE = "VHDX metadata item that occurs twice",
        VHDX_ITEM_UNKNOWN = "VHDX unknown required metadata item",
        VHDX_ITEM_MISSING = "VHDX missing metadata item",
        VHDX_PARENT = "VHDX parent without a locator",
        VHDX_BLOCK_SIZE = "VHDX block size",
        VHDX_SECTOR_SIZE = "VHDX logical sector size",
        VHDX_SHORT_TABLE = "VHDX table below the size",
        VHDX_LARGE = "VHDX size of 2^63 or more",
    }
    /// The rules about entries.
    VHDX_ENTRY_RULES {
        VHDX_PAST_END = "VHDX block past the end of the file",
        VHDX_OVERLAP = "VHDX block over a region",
        VHDX_STATE = "VHDX block of state 4",
        VHDX_IN_PARENT = "VHDX block in a parent that is not there",
    }
}

/// The items of the metadata that each disk has.
const REQUIRED_ITEMS: [Guid; 5] =
    [FILE_PARAMETERS, VIRTUAL_DISK_SIZE, LOGICAL_SECTOR_SIZE, PHYSICAL_SECTOR_SIZE, PAGE_83];
/// The size of a guest's sector that the specification also allows.
const LONG_SECTOR_BYTES: u64 = 4096;
/// The number of regions of which overlaps are judged. Programs make fewer.
const JUDGED_REGIONS: usize = 16;

/// Returns the rule that an image breaks.
pub(super) fn broken_at_open(image: &Image) -> Option<BrokenRule> {
    let file = VhdxFile(Bytes::new(image));
    let log = match file.log() {
        Err(broken) => return Some(broken),
        Ok(None) => return None,
        Ok(Some(log)) => log,
    };
    let [first, second] = REGION_TABLE_OFFSETS.map(|table| move || file.disk(table, log).err());
    // Nothing needs the copy if the table that QEMU reads is sound.
    let broken = first()??;
    if_no_reading_is_left(
        VHDX_OPEN_RULES,
        Some(broken),
        std::iter::once_with(|| second().flatten()),
    )
}

/// The place of a structure: its offset and its length in bytes.
pub(super) type Place = (u64, u64);

/// The table of blocks, and the structures beside it.
#[derive(PartialEq, Eq)]
pub(super) struct BlockTablePlace {
    /// The offset of the table.
    pub(super) table: u64,
    /// The number of entries that QEMU checks at open.
    pub(super) entries: u64,
    /// The length of a block in bytes.
    pub(super) block: u64,
    /// The size of the disk in bytes, a multiple of 512.
    pub(super) size: u64,
    /// The regions and the log.
    pub(super) regions: [Place; JUDGED_REGIONS + 1],
}

/// Returns the table of blocks of an image that QEMU opens, unless it lacks entries that break a rule. `None` if a
/// reader may find another one.
pub(super) fn block_table(image: &Image) -> Option<BlockTablePlace> {
    let file = VhdxFile(Bytes::new(image));
    let log = file.log().ok()??;
    let [first, second] = REGION_TABLE_OFFSETS.map(|table| file.disk(table, log));
    let first = first.ok()?;
    match second {
        Err(None) => None,
        Ok(second) if second != first => None,
        _ => Some(first),
    }
}

/// A broken rule; `None` if an image uses a feature that readers other than QEMU may support.
type Refused = Option<BrokenRule>;

/// A file.
#[derive(Clone, Copy)]
pub(super) struct VhdxFile<'i>(pub(super) Bytes<'i>);

impl VhdxFile<'_> {
    /// Returns the place of the log; `None` if it may have entries.
    fn log(&self) -> Result<Option<Place>, BrokenRule> {
        if self.0.array(0) != FILE_SIGNATURE {
            return Err(VHDX_FILE);
        }
        let header = self.header()?;
        let number = |field| self.0.little_field(header, field);
        let (offset, length) = (number(header::LOG_OFFSET), number(header::LOG_LENGTH));
        let is_empty = length == 0 || !self.has_log_identity(header);
        let version = number(header::LOG_VERSION);
        if offset < OFFSET_UNIT_BYTES || !offset.is_multiple_of(OFFSET_UNIT_BYTES) {
            Err(VHDX_LOG_OFFSET)
        } else if is_empty {
            // The version of a log without entries has no meaning, except for QEMU.
            Ok(Some((offset, length)).filter(|_| version == 0))
        } else if version != 0 {
            Err(VHDX_LOG_VERSION)
        } else if !length.is_multiple_of(OFFSET_UNIT_BYTES) {
            Err(VHDX_LOG_LENGTH)
        } else {
            Ok(None)
        }
    }

    /// Reports whether a header states an identity of the entries of its log.
    pub(super) fn has_log_identity(&self, header: u64) -> bool {
        let halves = [header::LOG_GUID, header::LOG_GUID_END];
        halves.into_iter().any(|half| self.0.little_field(header, half) != 0)
    }

    /// Returns the offset of the header that counts.
    pub(super) fn header(&self) -> Result<u64, BrokenRule> {
        let [first, second] = VHDX_HEADER_OFFSETS;
        match (self.header_fault(first), self.header_fault(second)) {
            (None, Some(_)) => Ok(first),
            (Some(_), None) => Ok(second),
            (None, None) => {
                let [one, two] = [first, second].map(|header| self.sequence(header));
                let fields = |header| self.0.array::<VHDX_HEADER_FIELD_BYTES>(header);
                match one.cmp(&two) {
                    std::cmp::Ordering::Equal if fields(first) != fields(second) => {
                        Err(VHDX_SEQUENCE)
                    }
                    std::cmp::Ordering::Less => Ok(second),
                    _ => Ok(first),
                }
            }
            // The header that comes closest to a valid one names the rule.
            (Some(one), Some(other)) => {
                let all = [VHDX_HEADER_VERSION, VHDX_HEADER_CHECKSUM];
                Err(all.into_iter().find(|it| [one, other].contains(it)).unwrap_or(VHDX_HEADER))
            }
        }
    }

    /// Returns the sequence number of a header.
    pub(super) fn sequence(&self, header: u64) -> u64 {
        self.0.little_field(header, header::SEQUENCE_NUMBER)
    }

    pub(super) fn header_fault(&self, header: u64) -> Option<BrokenRule> {
        if self.0.array(header) != HEADER_SIGNATURE {
            Some(VHDX_HEADER)
        } else if !self.has_checksum(header, VHDX_HEADER_BYTES as u64) {
            Some(VHDX_HEADER_CHECKSUM)
        } else {
            (self.0.little_field(header, header::VERSION) != u64::from(VHDX_VERSION))
                .then_some(VHDX_HEADER_VERSION)
        }
    }

    /// Reports whether a structure has the right checksum. The checksum itself counts as zeros.
    fn has_checksum(&self, at: u64, length: u64) -> bool {
        let field = header::CHECKSUM;
        let mut checksum = crc32c::crc32c(&self.0.array::<{ header::CHECKSUM.at }>(at));
        let (mut done, end) = (at + field.at as u64, at + length);
        let behind = at + field.end() as u64;
        self.0.each_stored(behind..end, |start, bytes| {
            checksum = append_zeros(checksum, start - done);
            checksum = crc32c::crc32c_append(checksum, bytes);
            done = start + bytes.len() as u64;
        });
        u64::from(append_zeros(checksum, end - done)) == self.0.little_field(at, field)
    }

    /// Returns the table of blocks that the region table at `table` leads to.
    fn disk(&self, table: u64, log: Place) -> Result<BlockTablePlace, Refused> {
        if self.0.array(table) != REGION_TABLE_SIGNATURE {
            return Err(Some(VHDX_REGIONS));
        }
        if !self.has_checksum(table, REGION_TABLE_BYTES as u64) {
            return Err(Some(VHDX_REGIONS_CHECKSUM));
        }
        let count = self.region_count(table);
        if count > u64::from(MAX_REGIONS) {
            return Err(Some(VHDX_REGION_COUNT));
        }
        let mut regions = [(0, 0); JUDGED_REGIONS + 1];
        regions[0] = log;
        let (mut bat, mut metadata) = (None, None);
        for index in 0..count {
            let (entry, region) = self.region(table, index);
            let others = usize::try_from(index + 1).unwrap_or(usize::MAX).min(regions.len());
            if regions[..others].iter().any(|other| overlap(*other, region)) {
                return Err(Some(VHDX_REGION_OVERLAP));
            }
            if let Some(place) = regions.get_mut(others) {
                *place = region;
            }
            let known = match self.0.array(entry) {
                BAT_REGION => &mut bat,
                METADATA_REGION => &mut metadata,
                _ if self.0.little_field(entry, region::REQUIRED) & u64::from(REGION_REQUIRED)
                    != 0 =>
                {
                    return Err(Some(VHDX_REGION_UNKNOWN));
                }
                _ => continue,
            };
            if known.replace(region).is_some() {
                return Err(Some(VHDX_REGION_TWICE));
            }
        }
        let (bat, (metadata, _)) = bat.zip(metadata).ok_or(Some(VHDX_REGION_MISSING))?;
        self.blocks(bat, metadata, regions)
    }

    /// Returns the number of regions in the table at `table`.
    pub(super) fn region_count(&self, table: u64) -> u64 {
        self.0.little_field(table, region_table::ENTRY_COUNT)
    }

    /// Returns the offset of an entry of the region table at `table`, and the region that it names.
    pub(super) fn region(&self, table: u64, index: u64) -> (u64, Place) {
        let entry = table + REGION_ENTRIES_AT as u64 + index * REGION_ENTRY_BYTES as u64;
        let number = |field| self.0.little_field(entry, field);
        (entry, (number(region::FILE_OFFSET), number(region::LENGTH)))
    }

    /// Returns the table of blocks in the region `bat`, by the metadata at `metadata`.
    fn blocks(
        &self,
        (table, length): Place,
        metadata: u64,
        regions: [Place; JUDGED_REGIONS + 1],
    ) -> Result<BlockTablePlace, Refused> {
        let [parameters, size, sector, ..] = self.items(metadata)?;
        let item = |offset, field| self.0.little_field(metadata.saturating_add(offset), field);
        if item(parameters, content::FILE_PARAMETERS) & u64::from(HAS_PARENT) != 0 {
            return Err(Some(VHDX_PARENT));
        }
        let block = item(parameters, content::BLOCK_SIZE);
        let sizes = u64::from(MIN_VHDX_BLOCK_BYTES)..=u64::from(MAX_VHDX_BLOCK_BYTES);
        if !sizes.contains(&block) || !block.is_power_of_two() {
            return Err(Some(VHDX_BLOCK_SIZE));
        }
        match item(sector, content::LOGICAL_SECTOR_SIZE) {
            LONG_SECTOR_BYTES => return Err(None),
            other if other != u64::from(GUEST_SECTOR_BYTES) => return Err(Some(VHDX_SECTOR_SIZE)),
            _ => {}
        }
        let size = item(size, content::VIRTUAL_DISK_SIZE);
        let blocks = (size.wrapping_add(block - 1) / block) & 0xffff_ffff;
        let bitmaps = (blocks.wrapping_sub(1) & 0xffff_ffff) / (CHUNK_BYTES / block);
        let entries = (blocks + bitmaps) & 0xffff_ffff;
        if entries > length / BAT_ENTRY_BYTES as u64 {
            return Err(Some(VHDX_SHORT_TABLE));
        }
        let size = size - size % u64::from(GUEST_SECTOR_BYTES);
        if size > MAX_LENGTH_BYTES {
            return Err(Some(VHDX_LARGE));
        }
        Ok(BlockTablePlace { table, entries, block, size, regions })
    }

    /// Returns the number of items in the metadata at `metadata`.
    pub(super) fn item_count(&self, metadata: u64) -> u64 {
        self.0.little_field(metadata, metadata_table::ENTRY_COUNT)
    }

    /// Returns the offset of an entry of the metadata table at `metadata`, and the place of its item there.
    pub(super) fn item(&self, metadata: u64, index: u64) -> (u64, Place) {
        let entry = metadata + METADATA_ENTRIES_AT as u64 + index * METADATA_ENTRY_BYTES as u64;
        let number = |field| self.0.little_field(entry, field);
        (entry, (number(metadata_item::OFFSET), number(metadata_item::LENGTH)))
    }

    /// Returns the offsets of the items that each disk has, from the beginning of the metadata.
    pub(super) fn items(&self, metadata: u64) -> Result<[u64; REQUIRED_ITEMS.len()], Refused> {
        if metadata > i64::MAX as u64 || self.0.array(metadata) != METADATA_SIGNATURE {
            return Err(Some(VHDX_METADATA));
        }
        let count = self.item_count(metadata);
        if count > u64::from(MAX_METADATA_ENTRIES) {
            return Err(Some(VHDX_ITEM_COUNT));
        }
        let (mut offsets, mut locator) = ([None; REQUIRED_ITEMS.len()], None);
        for index in 0..count {
            let (entry, (offset, _)) = self.item(metadata, index);
            let guid: Guid = self.0.array(entry);
            let known = REQUIRED_ITEMS.iter().position(|item| *item == guid);
            let known = known.and_then(|item| offsets.get_mut(item));
            let known = known.or((guid == PARENT_LOCATOR).then_some(&mut locator));
            match known {
                Some(place) if place.is_some() => return Err(Some(VHDX_ITEM_TWICE)),
                Some(place) => *place = Some(offset),
                None if is_required(self.0.little_field(entry, metadata_item::FLAGS)) => {
                    return Err(Some(VHDX_ITEM_UNKNOWN));
                }
                None => {}
            }
        }
        match offsets {
            _ if locator.is_some() => Err(None),
            [Some(a), Some(b), Some(c), Some(d), Some(e)] => Ok([a, b, c, d, e]),
            _ => Err(Some(VHDX_ITEM_MISSING)),
        }
    }
}

/// Reports whether readers must know a metadata item with these flags.
fn is_required(flags: u64) -> bool {
    flags & u64::from(METADATA_REQUIRED) != 0
}

/// Reports whether two parts of a file overlap.
pub(super) fn overlap(one: Place, other: Place) -> bool {
    let end = |(start, length): Place| start.wrapping_add(length);
    one.0 < end(other) && other.0 < end(one)
}

/// The number of entries that are judged. Programs make fewer.
const VHDX_JUDGED_ENTRIES: u64 = 1 << 15;

/// Calls `take` with the entries that break a rule, if all readers find the same table.
pub(super) fn broken_entries(image: &Image, take: &mut dyn FnMut(BrokenEntry)) {
    let Some(place) = block_table(image) else { return };
    let bytes = Bytes::new(image);
    let end = bytes.end_of_sectors();
    let chunk = CHUNK_BYTES / place.block;
    let mut stored = 0;
    let table = (place.table, place.entries.min(VHDX_JUDGED_ENTRIES));
    bytes.each_entry(table, [0; BAT_ENTRY_BYTES], |index, entry| {
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
                // The bytes before the end of the file can be read.
                let there = end.saturating_sub(start);
                // QEMU uses the index of the entry as the number of the block. The last block may be cut.
                let before = index.wrapping_mul(place.block);
                let required = place.size.wrapping_sub(before).min(place.block);
                if there < required || there == 0 {
                    broken(VHDX_PAST_END, there);
                }
                // To leave out entries of sector bitmaps, QEMU uses the number of stored blocks so far as the index.
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
