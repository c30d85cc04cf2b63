//! Writes VHDX images of every shape that QEMU opens. The files are sparse.

use std::io;
use std::os::unix::fs::FileExt;
use test_support::prelude::*;

use qcowfuzz::formats::vhdx::constants::{
    BAT_REGION, FILE_PARAMETERS, Guid, LOGICAL_SECTOR_SIZE, METADATA_REGION, PAGE_83,
    PHYSICAL_SECTOR_SIZE, VIRTUAL_DISK_SIZE,
};

use crate::formats::comparison::one_of;

pub const MIB: u64 = 1 << 20;
/// The identity of the log's entries, in images that have one.
pub const LOG_GUID: Guid = [7; 16];

/// An image, as parts of a file.
pub struct Written {
    pub parts: Vec<WrittenPart>,
    pub length: u64,
    /// The length of the log in bytes.
    pub log_length: u32,
}

/// A part of a file.
pub struct WrittenPart {
    pub kind: PartKind,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    Signature,
    Header,
    RegionTable,
    Metadata,
    Parameters,
    Size,
    SectorSize,
    OtherItem,
    BlockTable,
    Log,
    Data,
}

impl PartKind {
    /// Reports whether the part has a checksum, and not the file as a whole.
    fn is_sealed(self) -> bool {
        matches!(self, Self::Header | Self::RegionTable)
    }
}

impl WrittenPart {
    /// Corrects the checksum.
    pub fn seal(&mut self) {
        if self.kind.is_sealed() || self.kind == PartKind::Log {
            self.bytes[4..8].fill(0);
            let checksum = crc32c::crc32c(&self.bytes);
            self.put(4, &checksum.to_le_bytes());
        }
    }

    /// Writes bytes at an offset of the part.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Written {
    /// Adds a part, and returns it.
    pub fn add(&mut self, kind: PartKind, offset: u64, bytes: Vec<u8>) -> &mut WrittenPart {
        self.parts.push(WrittenPart { kind, offset, bytes });
        self.parts.last_mut().unwrap()
    }

    /// Writes the parts that lie in the file.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        for WrittenPart { offset, bytes, .. } in &self.parts {
            let room = self.length.saturating_sub(*offset).min(bytes.len() as u64);
            file.write_all_at(&bytes[..room as usize], *offset)?;
        }
        file.set_len(self.length)
    }
}

/// The sizes of an image, and the places of its structures.
struct Shape {
    block_bytes: u64,
    size: u64,
    log: (u64, u32),
    metadata: u64,
    bat: (u64, u64),
    /// A region that only newer readers know.
    unknown: Option<u64>,
    entries: Vec<u64>,
    /// The indices of stored blocks that lie on regions and log. QEMU takes them for sector bitmaps.
    on_regions: Vec<usize>,
    length: u64,
}

/// A structure or a block at a place of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Thing {
    Log,
    Metadata,
    Bat,
    Unknown,
    /// The block with the entry at this index.
    Block(usize),
}

/// Returns the number of bytes of a block and of a disk.
fn sizes(entropy: &mut Entropy) -> (u64, u64) {
    let block = MIB << one_of(entropy, [0, 0, 0, 0, 0, 1, 2, 5, 8]);
    let most = match block {
        MIB if entropy.one_in(12) => 4100,
        MIB => 13,
        0x1000_0000 => 40,
        _ => 5,
    };
    let cut = if entropy.one_in(2) { entropy.below(block) } else { 0 };
    // A disk without blocks has the longest table.
    let none = entropy.one_in(20) && block == MIB;
    let blocks = match most {
        4100 => 4094 + entropy.below(7),
        _ => 1 + entropy.below(most),
    };
    (block, if none { 0 } else { blocks * block - cut })
}

impl Shape {
    fn new(entropy: &mut Entropy) -> Self {
        let (block_bytes, size) = sizes(entropy);
        let chunk = (1u64 << 32) / block_bytes;
        let blocks = size.div_ceil(block_bytes);
        let count = match blocks {
            0 => u64::from(u32::MAX >> chunk.trailing_zeros()),
            _ => blocks + (blocks - 1) / chunk,
        };
        let spare = one_of(entropy, [0, 0, 3]);
        let bat_bytes = 8 * (count + spare);
        let rounded = if entropy.one_in(3) { bat_bytes } else { bat_bytes.next_multiple_of(MIB) };
        let log_bytes = one_of(entropy, [MIB, MIB, MIB, 3 * MIB, 0]) as u32;
        let mut shape = Self {
            block_bytes,
            size,
            log: (MIB, log_bytes),
            metadata: 0,
            bat: (0, rounded),
            unknown: entropy.one_in(4).then_some(0),
            entries: vec![0; count as usize + spare as usize],
            on_regions: Vec::new(),
            length: 0,
        };
        // Blocks past the table's checked part, and most of a long table, stay empty.
        let stored = shape.choose_states(entropy, blocks, chunk);
        shape.place(entropy, &stored);
        shape
    }

    /// Fills the table with states, and returns the indices of the entries of stored blocks.
    fn choose_states(&mut self, entropy: &mut Entropy, blocks: u64, chunk: u64) -> Vec<usize> {
        let fails = entropy.one_in(10);
        let first = if blocks > 4000 { 4090 } else { 0 };
        let most = if chunk < blocks { 40 } else { 9 };
        let (is_dense, mut stored) = (entropy.one_in(3), Vec::new());
        for index in first..(blocks + blocks.saturating_sub(1) / chunk) as usize {
            let is_bitmap = index as u64 % (chunk + 1) == chunk;
            let states = match (is_bitmap, fails) {
                (true, _) => [0, 0, 0, 6, 1, 7],
                (false, false) => [6, 6, 0, 2, 3, 5],
                (false, true) => [6, 6, 1, 4, 7, 2],
            };
            let state = if is_dense { 6 } else { one_of(entropy, states) };
            let junk = if entropy.one_in(4) { entropy.next_u64() & !7 } else { 0 };
            if state == 6 && stored.len() < most {
                self.entries[index] = junk & 0xffff8 | 6;
                if stored.len() as u64 % (chunk + 1) == chunk && entropy.one_in(2) {
                    self.on_regions.push(index);
                }
                stored.push(index);
            } else {
                self.entries[index] = if state == 6 { 0 } else { junk | state };
            }
        }
        stored
    }

    /// Chooses places for all structures.
    fn place(&mut self, entropy: &mut Entropy, stored: &[usize]) {
        let mut things = vec![Thing::Log, Thing::Metadata, Thing::Bat, Thing::Unknown];
        things.extend(stored.iter().map(|index| Thing::Block(*index)));
        let fixed = if entropy.one_in(2) { 4 } else { 0 };
        for at in fixed..things.len() {
            let left = (things.len() - at) as u64;
            things.swap(at, at + entropy.below(left) as usize);
        }
        let mut next = MIB;
        for thing in &things {
            next = next.next_multiple_of(MIB) + MIB * one_of(entropy, [0, 0, 0, 1, 2]);
            // Only the log and blocks lie at whole MiB.
            let odd = next + one_of(entropy, [0, 0, 0, 4096, 512, 8]);
            next = match *thing {
                Thing::Log => {
                    self.log.0 = next;
                    next + u64::from(self.log.1)
                }
                Thing::Metadata => {
                    self.metadata = odd;
                    odd + MIB
                }
                Thing::Bat => {
                    self.bat.0 = odd;
                    odd + self.bat.1
                }
                Thing::Unknown => {
                    self.unknown = self.unknown.map(|_| odd);
                    odd + 4096
                }
                Thing::Block(index) if self.on_regions.contains(&index) => {
                    self.entries[index] |= MIB;
                    next
                }
                Thing::Block(index) => {
                    self.entries[index] |= next;
                    next + self.block_bytes
                }
            };
        }
        self.length = next.next_multiple_of(one_of(entropy, [MIB, MIB, 512, 1]));
        // The last block of a disk may be cut to the disk's size, if its index is its number.
        let rest = self.size % self.block_bytes;
        let last = (self.size / self.block_bytes) as usize;
        if rest > 0 && things.last() == Some(&Thing::Block(last)) && self.size < 1 << 32 {
            self.length = next - self.block_bytes + rest / 512 * 512;
        }
        if self.entries.iter().all(|entry| *entry == 0) && entropy.one_in(4) {
            self.bat.0 = 1 << 40;
        }
    }
}

/// Writes an image.
pub fn write(entropy: &mut Entropy) -> Written {
    let shape = Shape::new(entropy);
    let log_length = shape.log.1;
    let mut written = Written { parts: Vec::new(), length: shape.length, log_length };
    written.add(PartKind::Signature, 0, b"vhdxfileq\0c\0".to_vec());
    let has_log = entropy.one_in(3);
    headers(entropy, &mut written, &shape, has_log);
    region_tables(entropy, &mut written, &shape);
    metadata(entropy, &mut written, &shape);
    if has_log && log_length > 0 {
        let at = shape.log.0 + 4096 * entropy.below(u64::from(log_length) / 4096);
        match entropy.below(3) {
            0 => {
                written.add(PartKind::Log, at, vec![0xee; 4096]);
            }
            _ => stale_entry(entropy, &mut written, at),
        }
    }
    let last = shape.entries.iter().rposition(|entry| *entry != 0).map_or(0, |last| last + 1);
    let table = shape.entries[..last.max(shape.entries.len().min(50))].iter();
    let table = table.flat_map(|entry| entry.to_le_bytes()).collect();
    written.add(PartKind::BlockTable, shape.bat.0, table);
    for (index, entry) in shape.entries.iter().enumerate() {
        if entry & 7 == 6 && !shape.on_regions.contains(&index) {
            data(entropy, &mut written, entry >> 20 << 20, shape.block_bytes, index as u8 | 1);
        }
    }
    written
}

/// Writes a few runs of bytes to a block.
fn data(entropy: &mut Entropy, written: &mut Written, at: u64, block: u64, byte: u8) {
    let middle = entropy.below(block / 512 - 8) * 512;
    for (delta, length) in [(0, 4096), (middle, 700), (block - 512, 512)] {
        written.add(PartKind::Data, at + delta, vec![byte; length]);
    }
}

fn headers(entropy: &mut Entropy, written: &mut Written, shape: &Shape, has_log: bool) {
    let header = |sequence: u64, offset| {
        let mut part = WrittenPart { kind: PartKind::Header, offset, bytes: vec![0; 4096] };
        part.put(0, b"head");
        part.put(8, &sequence.to_le_bytes());
        part.put(16, &[sequence as u8; 32]);
        part.put(48, if has_log { &LOG_GUID } else { &[0; 16] });
        part.put(66, &[1]);
        part.put(68, &shape.log.1.to_le_bytes());
        part.put(72, &shape.log.0.to_le_bytes());
        part.seal();
        part
    };
    let (one, other) = one_of(entropy, [(1, 2), (2, 1), (5, 5), (u64::MAX, 0), (1, 2)]);
    let (mut first, mut second) = (header(one, 64 << 10), header(other, 128 << 10));
    // A header that does not count, because it is older or not valid, may say anything.
    match entropy.below(6) {
        0 => first.put(4, &[0; 4]),
        1 => second.put(72, &[0; 8]),
        2 if one < other => first.put(72, &[9; 8]),
        3 if one < other => {
            first.put(66, &[2]);
            first.put(48, &[9; 16]);
            first.seal();
        }
        4 if one < other => {
            first.put(64, &[1]);
            first.put(68, &[1; 12]);
            first.seal();
        }
        _ => {}
    }
    written.parts.extend([first, second]);
}

fn region_tables(entropy: &mut Entropy, written: &mut Written, shape: &Shape) {
    let mut regions = vec![
        (BAT_REGION, shape.bat.0, shape.bat.1, 1u32),
        (METADATA_REGION, shape.metadata, one_of(entropy, [MIB, MIB, 4096]), 1),
    ];
    if let Some(unknown) = shape.unknown {
        regions.push(([3; 16], unknown, one_of(entropy, [4096, 1, 0]), 0));
    }
    let turned = entropy.below(regions.len() as u64) as usize;
    regions.rotate_left(turned);
    let mut bytes = vec![0; 64 << 10];
    bytes[..4].copy_from_slice(b"regi");
    bytes[8] = regions.len() as u8;
    for (into, (guid, offset, length, flags)) in bytes[16..].chunks_exact_mut(32).zip(regions) {
        into[..16].copy_from_slice(&guid);
        into[16..24].copy_from_slice(&offset.to_le_bytes());
        into[24..28].copy_from_slice(&(length as u32).to_le_bytes());
        into[28..].copy_from_slice(&flags.to_le_bytes());
    }
    written.add(PartKind::RegionTable, 192 << 10, bytes.clone()).seal();
    // The second table does not count.
    if entropy.one_in(2) {
        bytes.truncate(64);
        written.add(PartKind::Data, 256 << 10, bytes);
    }
}

fn metadata(entropy: &mut Entropy, written: &mut Written, shape: &Shape) {
    let parameters = [shape.block_bytes as u32, one_of(entropy, [0, 0, 1])];
    let parameters = parameters.map(u32::to_le_bytes).as_flattened().to_vec();
    let physical = one_of(entropy, [512u32, 4096, 77]);
    let mut items = vec![
        (FILE_PARAMETERS, PartKind::Parameters, parameters),
        (VIRTUAL_DISK_SIZE, PartKind::Size, shape.size.to_le_bytes().to_vec()),
        (LOGICAL_SECTOR_SIZE, PartKind::SectorSize, 512u32.to_le_bytes().to_vec()),
        (PHYSICAL_SECTOR_SIZE, PartKind::OtherItem, physical.to_le_bytes().to_vec()),
        (PAGE_83, PartKind::OtherItem, vec![9; 16]),
    ];
    if entropy.one_in(4) {
        items.push(([4; 16], PartKind::OtherItem, vec![1; 8]));
    }
    let turned = entropy.below(items.len() as u64) as usize;
    items.rotate_left(turned);
    let mut table = vec![0; 512];
    table[..8].copy_from_slice(b"metadata");
    table[10] = items.len() as u8;
    let mut next = one_of(entropy, [64 << 10, 64 << 10, 4096u32]);
    for (into, (guid, kind, value)) in table[32..].chunks_exact_mut(32).zip(items) {
        into[..16].copy_from_slice(&guid);
        into[16..20].copy_from_slice(&next.to_le_bytes());
        into[20..24].copy_from_slice(&(value.len() as u32).to_le_bytes());
        into[24] = if guid == [4; 16] { 1 } else { 6 };
        written.add(kind, shape.metadata + u64::from(next), value);
        next += one_of(entropy, [16, 32, 100]);
    }
    written.add(PartKind::Metadata, shape.metadata, table);
}

/// Returns an entry of the log, which QEMU would replay.
pub fn log_entry(entropy: &mut Entropy, offset: u64) -> WrittenPart {
    let descriptors = one_of(entropy, [0, 0, 1, 2, 126]);
    let length = 4096 * (1 + entropy.below(3)) as usize;
    let mut part = WrittenPart { kind: PartKind::Log, offset, bytes: vec![0; length] };
    part.put(0, b"loge");
    part.put(8, &(length as u32).to_le_bytes());
    part.put(16, &5u64.to_le_bytes());
    part.put(24, &u32::to_le_bytes(descriptors));
    part.put(32, &LOG_GUID);
    for at in 0..descriptors as usize {
        let at = 64 + 32 * at;
        part.put(at, one_of(entropy, [b"desc", b"zero"]));
        part.put(at + 8, &(4096u64).to_le_bytes());
        part.put(at + 16, &(8 * MIB).to_le_bytes());
        part.put(at + 24, &5u64.to_le_bytes());
    }
    part.seal();
    part
}

/// Writes an entry of the log that QEMU ignores.
fn stale_entry(entropy: &mut Entropy, written: &mut Written, at: u64) {
    let mut part = log_entry(entropy, at);
    match entropy.below(6) {
        0 => part.put(0, b"LOGE"),
        1 => part.put(32, &[8; 16]),
        2 => part.put(16, &[0; 8]),
        3 => part.put(9, &[0x11]),
        4 => part.put(8, &(written.log_length + 4096).to_le_bytes()),
        // A wrong checksum.
        _ => {
            part.put(4, &[1, 2, 3, 4]);
            part.bytes.truncate(4096);
        }
    }
    if !part.bytes.starts_with(&[b'l', b'o', b'g', b'e', 1, 2, 3, 4]) {
        part.seal();
    }
    // The end of the log is its beginning: only the first sector stays.
    part.bytes.truncate(4096);
    written.parts.push(part);
}
