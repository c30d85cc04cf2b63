//! Bugs in the structures of VHDX images.

use qcowfuzz::formats::vhdx::block_table::BlockTable;
use qcowfuzz::formats::vhdx::constants::{
    BAT_REGION, FILE_PARAMETERS, METADATA_REGION, VIRTUAL_DISK_SIZE,
};
use qcowfuzz::formats::vhdx::header::Checksum;
use qcowfuzz::formats::vhdx::metadata::Metadata;
use test_support::prelude::*;

use qcowfuzz::formats::anatomy::Anatomy;

use super::{Bug, Plant};

const MIB: u64 = 1 << 20;
const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const HEADER_BYTES: usize = 4 << 10;
const REGION_TABLES: [u64; 2] = [192 << 10, 256 << 10];
const REGION_TABLE_BYTES: usize = 64 << 10;

/// A copy of an image, and the places of its structures.
struct Altered {
    image: Image,
    /// The header that counts.
    header: u64,
    /// The offset of the log.
    log: u64,
    /// The offsets of the block allocation table's region and of the metadata.
    bat: u64,
    metadata: u64,
    table: BlockTable,
}

impl Altered {
    fn new(image: &Image) -> Self {
        let number = |at| u64::from_le_bytes(read(image, at));
        let is_valid = |at: &u64| Checksum::is_valid(&read::<HEADER_BYTES>(image, *at));
        let valid = HEADERS.into_iter().filter(is_valid);
        let header = valid.max_by_key(|at| number(at + 8)).unwrap();
        let region = |guid| number(entry(image, REGION_TABLES[0] + 16, guid) + 16);
        let (bat, metadata) = (region(BAT_REGION), region(METADATA_REGION));
        let item = |guid| {
            let offset = number(entry(image, metadata + 32, guid) + 16) & u64::from(u32::MAX);
            number(metadata + offset)
        };
        let block_bytes = item(FILE_PARAMETERS) as u32;
        let values = Metadata { block_bytes, stored_size_bytes: item(VIRTUAL_DISK_SIZE) };
        let table = BlockTable::new(HostOffset::new(bat), MIB as u32, &values).unwrap();
        let log = number(header + 72);
        Self { image: image.clone(), header, log, bat, metadata, table }
    }

    fn number(&self, at: u64) -> u64 {
        u64::from_le_bytes(read(&self.image, at))
    }

    /// Writes bytes, which is a change of the image.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Option<()> {
        self.image.overwrite(HostOffset::new(at), bytes);
        Some(())
    }

    /// Writes the checksum of the structure of `N` bytes at `at`.
    fn seal<const N: usize>(&mut self, at: u64) -> Option<()> {
        let checksum = Checksum::of_structure(&read::<N>(&self.image, at)).get();
        self.write(at + 4, &checksum.to_le_bytes())
    }

    /// Changes the header that counts.
    fn write_header(&mut self, delta: u64, bytes: &[u8]) -> Option<()> {
        self.write(self.header + delta, bytes);
        self.seal::<HEADER_BYTES>(self.header)
    }

    /// Changes both region tables with the same bytes, `delta` bytes after their entry of a region.
    fn write_region(&mut self, guid: [u8; 16], delta: u64, bytes: &[u8]) -> Option<()> {
        for table in REGION_TABLES {
            self.write(entry(&self.image, table + 16, guid) + delta, bytes);
            self.seal::<REGION_TABLE_BYTES>(table);
        }
        Some(())
    }

    fn write_entry(&mut self, index: u64, entry: u64) -> Option<()> {
        self.write(self.bat + index * 8, &entry.to_le_bytes())
    }

    /// Changes the entry of a stored block.
    fn change_stored(&mut self, change: fn(u64) -> u64) -> Option<()> {
        let index = self.stored()?;
        self.write_entry(index, change(self.number(self.bat + index * 8)))
    }

    /// Returns the first whole MiB past the end of the file.
    fn past_end(&self) -> u64 {
        self.image.length_bytes().next_multiple_of(MIB)
    }

    /// Returns the index of the first entry of a block for which `is_wanted` holds, among the first ones.
    fn find(&self, is_wanted: impl Fn(u64) -> bool) -> Option<u64> {
        let blocks = (0..400).filter(|index| !self.table.is_bitmap(*index));
        blocks.into_iter().find(|index| is_wanted(self.number(self.bat + index * 8)))
    }

    fn stored(&self) -> Option<u64> {
        self.find(|entry| entry & 7 == 6)
    }

    fn absent(&self) -> Option<u64> {
        self.find(|entry| entry < MIB && entry & 7 != 6)
    }
}

/// The fingerprints of a wrong entry.
const ENTRY: &str = "layout: VHDX entry of a block, ";
const BITMAP_ENTRY: &str = "layout: VHDX entry of a sector bitmap, ";

/// A bug: its name, the start of its fingerprint, and the change.
type VhdxBug = (&'static str, &'static str, fn(&mut Altered) -> Option<()>);

const BUGS: [VhdxBug; 22] = [
    ("the file has another signature", "layout: VHDX file signature, ", |it| it.write(0, b"V")),
    ("both headers have wrong checksums", "layout: VHDX header checksum, ", |it| {
        HEADERS.into_iter().try_for_each(|header| it.write(header + 100, &[1]))
    }),
    ("both headers count", "layout: VHDX headers that both count, ", |it| {
        let current: [u8; HEADER_BYTES] = read(&it.image, it.header);
        it.write(HEADERS[0] + HEADERS[1] - it.header, &current)
    }),
    ("the log has an identity", "layout: VHDX log that is not empty, ", |it| {
        it.write_header(48, &[7; 16])
    }),
    ("the log lies in the middle of a MiB", "layout: VHDX log offset, ", |it| {
        it.write_header(72, &(it.log + 4096).to_le_bytes())
    }),
    ("the log lies in the block allocation table", "layout: VHDX overlapping regions, ", |it| {
        it.write_header(72, &it.bat.to_le_bytes())
    }),
    (
        "the second region table has a wrong checksum",
        "layout: VHDX region tables that differ, ",
        |it| it.write(REGION_TABLES[1] + 4, &[0; 4]),
    ),
    ("both region tables have wrong checksums", "layout: VHDX region table checksum, ", |it| {
        REGION_TABLES.into_iter().try_for_each(|table| it.write(table + 4, &[0; 4]))
    }),
    ("a region does not begin with a MiB", "layout: VHDX region beside its boundary, ", |it| {
        it.write_region(BAT_REGION, 16, &(it.bat + 4096).to_le_bytes());
        it.write_region(BAT_REGION, 24, &(1u32 << 19).to_le_bytes())
    }),
    (
        "the table's region is as long as the table",
        "layout: VHDX region beside its boundary, ",
        |it| it.write_region(BAT_REGION, 24, &(1u32 << 19).to_le_bytes()),
    ),
    ("two metadata items lie in one place", "layout: two structures, ", |it| {
        let first = entry(&it.image, it.metadata + 32, FILE_PARAMETERS);
        let offset: [u8; 4] = read(&it.image, first + 16);
        it.write(entry(&it.image, it.metadata + 32, VIRTUAL_DISK_SIZE) + 16, &offset)
    }),
    ("a block of zeros has a state without a meaning", ENTRY, |it| it.write_entry(it.absent()?, 4)),
    ("a block has the state of QEMU's old drafts", ENTRY, |it| it.write_entry(it.absent()?, 5)),
    ("a part of a block lies in a parent", ENTRY, |it| it.change_stored(|entry| entry | 1)),
    ("a discarded block keeps its room", ENTRY, |it| it.change_stored(|entry| entry & !7 | 3)),
    ("a stored block has no offset", ENTRY, |it| it.write_entry(it.absent()?, 6)),
    ("an entry has a reserved bit", ENTRY, |it| it.change_stored(|entry| entry | 1 << 12)),
    ("the entry of a sector bitmap has a state", BITMAP_ENTRY, |it| {
        it.write_entry(it.table.chunk_blocks(), 1)
    }),
    ("the entry of a sector bitmap has an offset", BITMAP_ENTRY, |it| {
        it.write_entry(it.table.chunk_blocks(), it.past_end() | 6)
    }),
    ("two blocks lie in one place", "layout: two structures, ", |it| {
        let entry = it.number(it.bat + it.stored()? * 8);
        it.write_entry(it.absent()?, entry)
    }),
    ("a block lies in the metadata", "layout: two structures, ", |it| {
        it.write_entry(it.absent()?, it.metadata | 6)
    }),
    ("a block lies past the end of the file", "layout: structure, ", |it| {
        it.write_entry(it.absent()?, it.past_end() | 6)
    }),
];

/// Returns the bugs.
pub fn bugs() -> Vec<Bug> {
    let bug = |(name, expected, change): VhdxBug| {
        let plant = move |image: &mut Image, _: &Anatomy| {
            let mut altered = Altered::new(image);
            let planted = change(&mut altered).is_some();
            *image = altered.image;
            planted
        };
        (name, expected, Box::new(plant) as Box<Plant>)
    };
    BUGS.map(bug).into()
}

/// Returns `N` bytes of the image.
fn read<const N: usize>(image: &Image, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    image.read_at(HostOffset::new(at), &mut bytes).unwrap();
    bytes
}

/// Returns the offset of the entry with this identifier in the region table or the metadata table with entries at
/// `first`.
fn entry(image: &Image, first: u64, guid: [u8; 16]) -> u64 {
    let mut entries = (first..).step_by(32).take(16);
    entries.find(|at| read::<16>(image, *at) == guid).unwrap()
}

/// Reports whether a block of an image is stored whose entry lies behind that of a sector bitmap.
pub fn has_stored_behind_bitmap(image: &Image) -> bool {
    let it = Altered::new(image);
    let chunk = it.table.chunk_blocks();
    let end = u64::from(it.table.checked_entries);
    (chunk + 1..end).any(|index| it.number(it.bat + index * 8) & 7 == 6)
}

/// Reports whether a block of zeros has an offset.
pub fn has_zeros_with_offset(image: &Image) -> bool {
    Altered::new(image).find(|entry| entry & 7 == 2 && entry >= MIB).is_some()
}
