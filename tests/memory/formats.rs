//! The largest tables of VHD, VHDX and VMDK images that QEMU opens. Most of each table is a hole of the file, and a
//! part of it has entries that do not merge. The bytes are computed, not stored.

use std::cell::Cell;
use test_support::prelude::*;

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::disk::storage::{Data, GRAIN_BYTES, Stored};
use qcowfuzz::formats::vhdx::constants::{
    BAT_REGION, FILE_PARAMETERS, LOGICAL_SECTOR_SIZE, METADATA_REGION, PAGE_83,
    PHYSICAL_SECTOR_SIZE, VIRTUAL_DISK_SIZE,
};
use qcowfuzz::formats::vhdx::header::Checksum;
use qcowfuzz::formats::vpc::headers::checksums;
use qcowfuzz::walkers::{lookup, map_extents, read};

use crate::peak_of;

/// The number of bytes that an open, a walk, look-ups and reads may allocate for an image in any of these formats: two
/// pieces of tables of 32 KiB each, a descriptor of VMDK, and small structures. `docs/oracles.md` promises it.
const TABLES_BYTES: i64 = 96 << 10;
/// The number of bytes that they may read, apart from entries: headers, descriptors, and pieces at the edges of holes.
const BASE_BYTES: u64 = 96 << 10;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// The bytes of a table that are no hole.
const ENTRIES_BYTES: u64 = 512 * KIB;

/// A part of a file.
enum Part {
    Bytes(Vec<u8>),
    /// The length in bytes, and the function that returns the entry of eight bytes at an index.
    Entries(u64, fn(u64) -> [u8; 8]),
}

impl Part {
    fn length_bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Entries(length_bytes, _) => *length_bytes,
        }
    }

    fn byte(&self, at: u64) -> u8 {
        match self {
            Self::Bytes(bytes) => bytes[at as usize],
            Self::Entries(_, entry) => entry(at / 8)[at as usize % 8],
        }
    }
}

/// A file with holes, which counts the bytes that are read. Its parts begin and end at whole grains.
struct Sparse {
    length_bytes: u64,
    parts: BTreeMap<u64, Part>,
    read_bytes: Cell<u64>,
}

impl Sparse {
    fn new(length_bytes: u64) -> Self {
        Self { length_bytes, parts: BTreeMap::new(), read_bytes: Cell::new(0) }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        bytes.resize(bytes.len().next_multiple_of(GRAIN_BYTES as usize), 0);
        self.parts.insert(offset, Part::Bytes(bytes));
    }

    fn entries(&mut self, offset: u64, length_bytes: u64, entry: fn(u64) -> [u8; 8]) {
        self.parts.insert(offset, Part::Entries(length_bytes, entry));
    }

    /// Returns the part that holds `offset`, or the next one, as its start and its end.
    fn part_at(&self, offset: u64) -> Option<(u64, u64, &Part)> {
        let ending = |(start, part): (&u64, _)| (*start, *start + Part::length_bytes(part), part);
        let before = self.parts.range(..=offset).next_back().map(|(at, part)| ending((at, part)));
        let next = || self.parts.range(offset..).next().map(|(at, part)| ending((at, part)));
        before.filter(|(_, end, _)| *end > offset).or_else(next)
    }
}

impl Storage for Sparse {
    fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.read_bytes.set(self.read_bytes.get() + into.len() as u64);
        into.fill(0);
        let (from, until) = (offset.get(), offset.get().saturating_add(into.len() as u64));
        let mut at = from;
        while let Some((start, end, part)) = self.part_at(at).filter(|(start, ..)| *start < until) {
            for byte in at.max(start)..end.min(until) {
                into[(byte - from) as usize] = part.byte(byte - start);
            }
            at = end;
        }
        Ok(())
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        let at = |end: u64| HostOffset::new(end).min(until);
        Ok(match self.part_at(from.get()) {
            Some((start, end, _)) if start <= from.get() => Stored { stored: true, end: at(end) },
            Some((start, ..)) => Stored { stored: false, end: at(start) },
            None => Stored { stored: false, end: until },
        })
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let Some((start, end, _)) = self.part_at(from.get()) else { return Ok(None) };
        let skipped = start.saturating_sub(from.get()) / GRAIN_BYTES * GRAIN_BYTES;
        let offset = HostOffset::new(from.get() + skipped);
        if offset >= until {
            return Ok(None);
        }
        let wanted = (end.min(until.get()) - offset.get()).next_multiple_of(GRAIN_BYTES);
        let room = scratch.len() as u64 / GRAIN_BYTES * GRAIN_BYTES;
        let bytes = &mut scratch[..wanted.min(room) as usize];
        self.read_at(offset, bytes)?;
        Ok(Some(Data { offset, bytes }))
    }
}

/// Opens and walks an image whole and in a window, looks bytes up and reads them. Checks the memory and the bytes that
/// this takes. In VHD and VHDX, an open and the whole walk read each stored entry once; in VMDK, both walks do. Returns
/// the number of extents.
fn visit(format: ImageFormat, file: &Sparse, entries_bytes: u64) -> u64 {
    let (extents, peak) = peak_of(|| {
        let mut scratch = WalkScratch::new();
        let disk = Disk::open_as(format, &[Layer::alone(file)]).unwrap();
        let mut count = |window| {
            let (mut extents, mut end) = (0u64, 0);
            let each = &mut |extent: Extent| {
                extents += 1;
                end = extent.start.get() + extent.length_bytes;
                ControlFlow::Continue(())
            };
            map_extents(&disk, window, &mut scratch, each).unwrap();
            (extents, end)
        };
        let (extents, end) = count(Window::ALL);
        assert_eq!(end, disk.virtual_size_bytes());
        let middle = GuestOffset::new(end / 2);
        assert_eq!(count(Window { start: middle, length_bytes: u64::MAX }).1, end);
        for byte in [0, end / 2, end - 512].map(GuestOffset::new) {
            lookup(&disk, byte).unwrap();
            read(&disk, byte, &mut [0; 512], &mut scratch).unwrap();
        }
        extents
    });
    assert!(peak <= TABLES_BYTES, "{peak} bytes are allocated");
    let (read_bytes, most) = (file.read_bytes.get(), BASE_BYTES + 2 * entries_bytes);
    assert!(read_bytes <= most, "{read_bytes} bytes are read, {most} allowed");
    extents
}

/// A VHD table of nearly 2 GiB, for the largest disk. Only the last blocks of the disk have entries of their own. Zeros
/// name the block in sector 0, and behind the disk's end is another block.
#[test]
fn the_largest_table_of_vhd_takes_little_memory() {
    const TABLE: u64 = 2 * KIB;
    const ENTRIES: u32 = (1 << 29) - 1;
    const BLOCK: u32 = 16 << 20;
    const DISK: u64 = 2040 << 30;
    const BLOCKS: u64 = DISK / BLOCK as u64;
    let mut file = Sparse::new(8 << 30);
    let mut footer = vec![0; 512];
    footer[..8].copy_from_slice(b"conectix");
    footer[16..24].copy_from_slice(&512u64.to_be_bytes());
    footer[28..32].copy_from_slice(b"qem2");
    footer[48..56].copy_from_slice(&DISK.to_be_bytes());
    footer[63] = 3;
    let (checksum, _) = checksums(&footer, 64);
    footer[64..68].copy_from_slice(&checksum.to_be_bytes());
    file.put(0, &footer);
    let mut header = vec![0; 1024];
    header[..8].copy_from_slice(b"cxsparse");
    header[16..24].copy_from_slice(&TABLE.to_be_bytes());
    header[28..32].copy_from_slice(&ENTRIES.to_be_bytes());
    header[32..36].copy_from_slice(&BLOCK.to_be_bytes());
    file.put(512, &header);
    // A stored block and one that is not stored, in turn. The entries go on behind the end of the disk.
    let first = BLOCKS / 2;
    file.entries(TABLE + first * 4, ENTRIES_BYTES, |_| {
        let mut entry = [0xff; 8];
        entry[..4].copy_from_slice(&9u32.to_be_bytes());
        entry
    });
    file.entries(TABLE + (1 << 30), 4 * KIB, |_| [0, 0x70, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    let extents = visit(ImageFormat::Vpc, &file, ENTRIES_BYTES);
    // No blocks merge.
    assert_eq!(extents, BLOCKS);
}

/// A VHDX table of nearly 2 GiB, the most that QEMU reads, for a disk with blocks of 1 MiB.
#[test]
fn the_largest_table_of_vhdx_takes_little_memory() {
    const TABLE: u64 = 1 << 33;
    const TABLE_BYTES: u32 = 0x7fff_fe00 / (4097 * 8) * (4097 * 8);
    let blocks = u64::from(TABLE_BYTES / 8) / 4097 * 4096;
    let mut file = Sparse::new(1 << 40);
    file.put(0, b"vhdxfile");
    let sealed = |mut bytes: Vec<u8>| {
        let checksum = Checksum::of_structure(&bytes).get();
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        bytes
    };
    let mut header = vec![0; 4096];
    header[..4].copy_from_slice(b"head");
    (header[8], header[66]) = (1, 1);
    header[72..80].copy_from_slice(&MIB.to_le_bytes());
    file.put(64 * KIB, &sealed(header));
    let mut regions = vec![0; 64 << 10];
    regions[..4].copy_from_slice(b"regi");
    regions[8] = 2;
    let known = [(METADATA_REGION, 2 * MIB, 1 << 20), (BAT_REGION, TABLE, TABLE_BYTES)];
    for ((guid, offset, length), into) in known.into_iter().zip(regions[16..].chunks_mut(32)) {
        into[..16].copy_from_slice(&guid);
        into[16..24].copy_from_slice(&offset.to_le_bytes());
        into[24..28].copy_from_slice(&length.to_le_bytes());
    }
    file.put(192 * KIB, &sealed(regions));
    let items = [
        (FILE_PARAMETERS, MIB),
        (VIRTUAL_DISK_SIZE, blocks * MIB),
        (LOGICAL_SECTOR_SIZE, 512),
        (PHYSICAL_SECTOR_SIZE, 512),
        (PAGE_83, 1),
    ];
    let mut metadata = vec![0; 192];
    metadata[..8].copy_from_slice(b"metadata");
    metadata[10] = 5;
    for ((at, (guid, value)), into) in (0u32..).zip(items).zip(metadata[32..].chunks_mut(32)) {
        let offset = (64 << 10) + at * 16;
        into[..16].copy_from_slice(&guid);
        into[16..20].copy_from_slice(&offset.to_le_bytes());
        file.put(2 * MIB + u64::from(offset), &value.to_le_bytes());
    }
    file.put(2 * MIB, &metadata);
    // Whole chunks: the entry of a sector bitmap has an even number in every second one.
    file.entries(TABLE + 4097 * 8 * 1000, ENTRIES_BYTES, |index| match index % 2 {
        0 => (((1 << 36) + index * MIB) | 6).to_le_bytes(),
        _ => 2u64.to_le_bytes(),
    });
    let extents = visit(ImageFormat::Vhdx, &file, ENTRIES_BYTES);
    let bitmaps = ENTRIES_BYTES / 8 / 4097;
    assert!(extents.abs_diff(ENTRIES_BYTES / 8) <= bitmaps * 2 + 2, "{extents} extents");
}

/// A VMDK directory of 128 MiB. Some of its entries name tables, which lie far from each other.
#[test]
fn the_largest_directory_of_vmdk_takes_little_memory() {
    const DIRECTORY: u64 = 1 << 30;
    const DIRECTORY_ENTRIES: u64 = 33_554_432;
    const TABLES: u64 = 128;
    let mut file = Sparse::new(1 << 41);
    let mut header = vec![0; 512];
    header[..4].copy_from_slice(b"KDMV");
    header[4] = 1;
    for (at, value) in
        [(12, DIRECTORY_ENTRIES * 512 * 128), (20, 128), (28, 1), (56, DIRECTORY / 512)]
    {
        header[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    header[44..48].copy_from_slice(&512u32.to_le_bytes());
    file.put(0, &header);
    file.put(512, b"CID=1\nparentCID=ffffffff\n");
    // Entries without tables, and then a few with a table of 2 KiB each.
    file.entries(DIRECTORY + (64 << 20), ENTRIES_BYTES, |index| {
        let behind = index.checked_sub(ENTRIES_BYTES / 8 - TABLES / 2);
        let sector = |at: u64| (1u32 << 24) + 4 * at as u32;
        let pair = behind.map_or([0; 2], |at| [sector(2 * at), sector(2 * at + 1)]);
        (u64::from(pair[1]) << 32 | u64::from(pair[0])).to_le_bytes()
    });
    file.entries(512 << 24, TABLES * 2 * KIB, |index| {
        (1u64 << 25 | (2 * index) << 7).to_le_bytes()
    });
    let extents = visit(ImageFormat::Vmdk, &file, ENTRIES_BYTES + TABLES * 2 * KIB);
    // Every second grain of the tables is stored, and the hole before them is one more.
    assert_eq!(extents, TABLES * 512 + 1);
}
