//! VHDX images.

use test_support::prelude::*;

use qcowfuzz::formats::anatomy::{Anatomy, Part};
use qcowfuzz::formats::vhdx::block_table::BlockState;
use qcowfuzz::formats::vhdx::constants::{BAT_REGION, METADATA_REGION, PAGE_83, PARENT_LOCATOR};
use qcowfuzz::walkers;

use super::commands::WITH_RULE;
use super::comparison::{self, Kind, TestedFormat, one_of, walk};
use super::vhdx_writer::{self, LOG_GUID, MIB, PartKind, Written, WrittenPart, log_entry};

pub struct Vhdx;

impl TestedFormat for Vhdx {
    const FORMAT: ImageFormat = ImageFormat::Vhdx;
    const VALID: u64 = 510;
    const DAMAGED: u64 = 480;
    const MADE_BY_QEMU: u64 = 155;
    const LARGE: u64 = 14;
    const LARGE_PROGRAMS: u64 = 60;
    const PROGRAMS: (u64, Base) = (520, Base::of(ImageFormat::Vhdx));
    const PAIRS: usize = 1700;
    const ATTACKED: (u64, &[Part]) =
        (320, &[Part::Header, Part::Directory, Part::Metadata, Part::Table]);
    const BOUNDS: &[(&str, u64)] = &[
        ("valid images", 500),
        (WITH_RULE, 270),
        ("damaged images that open", 100),
        ("damaged images that are refused", 100),
        ("images that qemu makes", 150),
        ("images of programs", 500),
        ("images of large disks", 14),
        ("maps of the command", 40),
        ("attacked images that open", 100),
        ("attacked images that are refused", 100),
        ("attacks on header: open", 30),
        ("attacks on header: refused", 20),
        ("attacks on directory: open", 30),
        ("attacks on directory: refused", 20),
        ("attacks on metadata: open", 30),
        ("attacks on metadata: refused", 20),
        ("attacks on block table: open", 30),
        ("attacks on block table: refused", 20),
        (BLOCK_AT_START, 1),
        ("records of info", 600),
        ("images that info refuses", 100),
        ("checks that exit with 0", 700),
        ("checks that exit with 1", 100),
        ("checks that exit with 2", 30),
        ("extents", 700),
        ("windows", 150),
        ("whole disks", 150),
        ("disks that cannot be read", 10),
        ("extents of zeros by the table", 700),
        ("extents of data by the table", 1000),
        ("walks that meet a block that cannot be read", 30),
        ("parts of disks", 100),
    ];
    const DATA_OF: u64 = 3;

    fn write(path: &Path, kind: Kind, entropy: &mut Entropy) -> Checked<()> {
        match kind {
            Kind::MadeByQemu => return make(path, entropy),
            Kind::Large => return make_large(path, entropy),
            _ => {}
        }
        let mut written = vhdx_writer::write(entropy);
        if kind == Kind::Damaged {
            (0..=entropy.below(2)).for_each(|_| damage(&mut written, entropy));
        }
        written.save(path).described()
    }

    fn data_difference(path: &Path) -> Checked<Option<&'static str>> {
        let storage = FileStorage::open(path).described()?;
        let mut anatomy = Anatomy::default();
        anatomy.read(ImageFormat::Vhdx, &storage).described()?;
        let mut has_block_at_start = false;
        for entry in anatomy.of(Part::Table) {
            let mut bytes = [0; 8];
            storage.read_at(entry.at, &mut bytes).described()?;
            let state = BlockState::of_entry(u64::from_le_bytes(bytes));
            has_block_at_start |= state == BlockState::Stored(HostOffset::ZERO);
        }
        Ok(has_block_at_start.then_some(BLOCK_AT_START))
    }

    fn check_more(path: &Path, entropy: &mut Entropy, tally: &mut Tally) -> Checked<()> {
        let storage = FileStorage::open(path).described()?;
        let disk = Disk::open_as(ImageFormat::Vhdx, &[Layer::alone(&storage)]);
        let disk = disk.described()?;
        let (extents, error) = walk(&disk, Window::ALL);
        for extent in &extents {
            check_extent(&storage, &disk, extent)?;
            let content = if extent.mapping.data { "data" } else { "zeros" };
            tally.add(format!("extents of {content} by the table"), 1);
        }
        let end = extents.last().and_then(Extent::end).unwrap_or(GuestOffset::ZERO);
        match error {
            None if end.get() == disk.virtual_size_bytes() => {}
            None => return Err(format!("the walk ends at {end}")),
            Some(error) => {
                let mut byte = [0];
                let read = walkers::read(&disk, end, &mut byte, &mut WalkScratch::new());
                let found = walkers::lookup(&disk, end);
                if read.as_ref().err() != Some(&error) || found.err() != Some(error) {
                    return Err(format!("the walk fails at {end}, and the read: {read:?}"));
                }
                tally.add("walks that meet a block that cannot be read", 1);
            }
        }
        if end.get() > MAX_READ_BYTES && entropy.one_in(2) {
            let windows = windows(entropy, &extents);
            for (window, theirs) in windows.iter().zip(qemu::read_with(path, "vhdx", &windows)?) {
                let ours = read(&disk, window.start, window.length_bytes as usize)?;
                compare::same_bytes("our read", window.start.get(), &ours, &theirs)?;
            }
            tally.add("parts of disks", windows.len() as u64);
        }
        Ok(())
    }
}

/// The intended difference: QEMU takes the offset 0 for none, and does not add the distance inside the block to it
/// (`block/vhdx.c`, `vhdx_block_translate`). Then every part of the block reads as the beginning of the file. No writer
/// stores a block there.
const BLOCK_AT_START: &str = "data: QEMU reads one place for all parts of a block at host offset 0";

/// The length from which on a disk is compared in parts.
const MAX_READ_BYTES: u64 = 16 << 20;
/// The length of a part.
const PART_BYTES: u64 = 512;

/// The smallest block.
const BLOCK_BYTES: u64 = 1 << 20;

/// Returns parts of the disk to compare: at the ends of extents, and at the first blocks of long extents of zeros. The
/// entries of these blocks have different states.
fn windows(entropy: &mut Entropy, extents: &[Extent]) -> Vec<Window> {
    let mut windows = Vec::new();
    for _ in 0..8 {
        let extent = &extents[entropy.below(extents.len() as u64) as usize];
        let last = extent.length_bytes - PART_BYTES.min(extent.length_bytes);
        let block = entropy.below(16) * BLOCK_BYTES;
        for delta in [0, last, block.min(last)] {
            let start = extent.start + delta;
            let length_bytes = PART_BYTES.min(extent.length_bytes - delta);
            windows.push(Window { start, length_bytes });
        }
    }
    windows
}

/// Checks that an extent of our walk says where the data are.
fn check_extent(storage: &FileStorage, disk: &Disk<FileStorage>, extent: &Extent) -> Checked<()> {
    let length = extent.length_bytes.min(PART_BYTES);
    for delta in [0, (extent.length_bytes - length) / 2, extent.length_bytes - length] {
        let start = extent.start + delta;
        let ours = read(disk, start, length as usize)?;
        let mut there = vec![0; length as usize];
        let mapping = extent.mapping.advanced(delta).ok_or("an offset")?;
        if let Some(offset) = mapping.offset {
            storage.read_at(offset, &mut there).described()?;
        }
        compare::same_bytes(&format!("{extent}"), start.get(), &ours, &there)?;
        let found = walkers::lookup(disk, start);
        let has_flags = mapping.present && mapping.zero != mapping.data;
        if found.as_ref() != Ok(&mapping) || !has_flags || mapping.zero == mapping.offset.is_some()
        {
            return Err(format!("look-up of byte {delta} of {extent}: {found:?}"));
        }
    }
    Ok(())
}

fn read(disk: &Disk<FileStorage>, start: GuestOffset, length: usize) -> Checked<Vec<u8>> {
    let mut bytes = vec![0xA5; length];
    walkers::read(disk, start, &mut bytes, &mut WalkScratch::new())
        .map_err(|error| format!("our read at {start}: {error}"))?;
    Ok(bytes)
}

/// Makes an image of a disk on one side of a size from which on QEMU chooses larger blocks, or of the largest disk.
fn make_large(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    const GIB: u64 = 1 << 30;
    let limit = one_of(entropy, [GIB, 100 * GIB, 32 << 40, 64 << 40]);
    let size = if limit < 64 << 40 && entropy.one_in(2) { limit + BLOCK_BYTES } else { limit };
    let zero = one_of(entropy, ["on", "off"]);
    let options = format!("block_size=0,block_state_zero={zero}");
    comparison::create(path, ImageFormat::Vhdx, &options, size, &[])?;
    comparison::change(path, ImageFormat::Vhdx, size, entropy)
}

/// Makes an image with qemu-img, and changes it with qemu-io.
fn make(path: &Path, entropy: &mut Entropy) -> Checked<()> {
    let bits = 1 + entropy.below(15);
    let size = 512 * (1 + entropy.below(1 << bits));
    let subformat = one_of(entropy, ["dynamic", "dynamic", "dynamic", "fixed"]);
    let block = one_of(entropy, ["0", "1M", "1M", "1M", "2M", "16M", "256M", "1000"]);
    let log = one_of(entropy, ["1", "1M", "2M", "3000000"]);
    let zero = one_of(entropy, ["on", "off"]);
    let options =
        format!("subformat={subformat},block_size={block},log_size={log},block_state_zero={zero}");
    comparison::create(path, ImageFormat::Vhdx, &options, size, &[])?;
    comparison::change(path, ImageFormat::Vhdx, size, entropy)
}

/// Changes a field, an entry, a byte or the length. Corrects the checksum, mostly.
pub fn damage(written: &mut Written, entropy: &mut Entropy) {
    match entropy.below(10) {
        0 => header(written, entropy),
        1 => region_table(written, entropy),
        2 => metadata_table(written, entropy),
        3 => item(written, entropy),
        4..=6 => block_table(written, entropy),
        7 => log(written, entropy),
        8 => {
            let any = entropy.below(written.length + 1);
            let length = one_of(entropy, [written.length, any]);
            let near = one_of(entropy, [0, 1, 511, 512, MIB]);
            written.length = length.saturating_sub(near);
        }
        _ => any_byte(written, entropy),
    }
}

/// Returns a part of a kind.
fn part_of<'w>(
    written: &'w mut Written,
    entropy: &mut Entropy,
    kind: PartKind,
) -> &'w mut WrittenPart {
    let parts: Vec<&mut WrittenPart> =
        written.parts.iter_mut().filter(|part| part.kind == kind).collect();
    let chosen = entropy.below(parts.len() as u64) as usize;
    parts.into_iter().nth(chosen).unwrap()
}

/// Returns a number that fields do not expect.
fn value(entropy: &mut Entropy) -> u64 {
    let (any, bit) = (entropy.next_u64(), 1u64 << entropy.below(64));
    one_of(entropy, [0, 1, any, bit, u64::MAX, 7 * MIB, 64 * MIB])
}

fn seal_mostly(part: &mut WrittenPart, entropy: &mut Entropy) {
    if !entropy.one_in(6) {
        part.seal();
    }
}

fn header(written: &mut Written, entropy: &mut Entropy) {
    let fields = [(0, 4), (8, 8), (48, 16), (64, 2), (66, 2), (68, 4), (72, 8)];
    let (at, length) = one_of(entropy, fields);
    let value = [value(entropy).to_le_bytes(), value(entropy).to_le_bytes()];
    for _ in 0..=entropy.below(2) {
        let part = part_of(written, entropy, PartKind::Header);
        part.put(at, &value.as_flattened()[..length]);
        seal_mostly(part, entropy);
    }
}

fn region_table(written: &mut Written, entropy: &mut Entropy) {
    let value = value(entropy);
    let guid = one_of(entropy, [BAT_REGION, METADATA_REGION, [3; 16]]);
    let part = part_of(written, entropy, PartKind::RegionTable);
    let entry = 16 + 32 * entropy.below(4) as usize;
    match entropy.below(7) {
        0 => part.put(0, &value.to_le_bytes()[..4]),
        1 => {
            let count: u32 = one_of(entropy, [0, 1, 2, 3, 4, 2048, value as u32]);
            part.put(8, &count.to_le_bytes());
        }
        2 => part.put(entry, &guid),
        3 => part.put(entry + 16, &(entropy.below(20) * MIB).to_le_bytes()),
        4 => part.put(entry + 16, &value.to_le_bytes()),
        5 => {
            // QEMU reads all of a long table: 2 GiB would take a second.
            let short = entropy.below(64 * MIB) as u32;
            let length = one_of(entropy, [0, 8, 64, short, 20 << 20, 1 << 31, u32::MAX]);
            part.put(entry + 24, &length.to_le_bytes());
        }
        _ => {
            part.put(8, &[4]);
            part.put(112, &[9; 16]);
            part.put(128, &(900 * MIB).to_le_bytes());
            part.put(140, &[entropy.below(2) as u8]);
        }
    }
    seal_mostly(part, entropy);
}

fn metadata_table(written: &mut Written, entropy: &mut Entropy) {
    let value = value(entropy);
    let guid = one_of(entropy, [PAGE_83, PARENT_LOCATOR, [4; 16]]);
    let part = part_of(written, entropy, PartKind::Metadata);
    let entry = 32 + 32 * entropy.below(6) as usize;
    match entropy.below(6) {
        0 => part.put(0, &value.to_le_bytes()),
        1 => part.put(10, &u16::to_le_bytes(one_of(entropy, [0, 4, 5, 6, 7, 2047, 2048]))),
        2 => part.put(entry, &guid),
        3 => part.put(entry + 16, &value.to_le_bytes()[..4]),
        4 => part.put(entry + 24, &[entropy.below(8) as u8]),
        _ => {
            part.put(10, &[6]);
            part.put(192, &guid);
            part.put(216, &[one_of(entropy, [0, 4])]);
        }
    }
}

fn item(written: &mut Written, entropy: &mut Entropy) {
    use PartKind::{OtherItem, Parameters, SectorSize, Size};
    let kind = one_of(entropy, [Parameters, Parameters, Size, Size, SectorSize, OtherItem]);
    let (value, size) = (value(entropy), entropy.below(40 * MIB));
    let part = part_of(written, entropy, kind);
    let value = match kind {
        Parameters if entropy.one_in(3) => {
            return part.put(4, &[one_of(entropy, [1, 2, 3, 4, 255])]);
        }
        Parameters => one_of(entropy, [MIB, 2 * MIB, 3 * MIB, 256 * MIB, 512 * MIB, value]),
        SectorSize => one_of(entropy, [512, 4096, 1024, value]),
        Size => one_of(entropy, [size, size, value]),
        _ => value,
    };
    let length = if kind == Size { 8 } else { 4 };
    part.put(0, &value.to_le_bytes()[..length]);
}

fn block_table(written: &mut Written, entropy: &mut Entropy) {
    let length = written.length;
    let other = u64::from(entropy.one_in(2)) * MIB;
    let part = part_of(written, entropy, PartKind::BlockTable);
    let Some(last) = (part.bytes.len() as u64 / 8).checked_sub(1) else { return };
    let (one, other_one) = (entropy.below(last + 1), entropy.below(last + 1));
    let at = 8 * one_of(entropy, [0, last, one, other_one]);
    let near = (length / MIB * MIB).saturating_sub(MIB * entropy.below(3)) + other;
    let (any, state) = (value(entropy), entropy.below(8));
    let low = MIB * entropy.below(24);
    let offset = one_of(entropy, [near, low, any & !(MIB - 1)]);
    let old = u64::from_le_bytes(part.bytes[at as usize..][..8].try_into().unwrap());
    let entry = match entropy.below(3) {
        0 => old & !7 | state,
        1 => offset | 6,
        _ => offset | state,
    };
    // QEMU reads the beginning of the file for every part of a block at offset 0.
    let entry = if entry & 7 == 6 && entry < MIB { entry | MIB } else { entry };
    part.put(at as usize, &entry.to_le_bytes());
}

/// Adds an entry to the log, mostly one that QEMU would replay.
fn log(written: &mut Written, entropy: &mut Entropy) {
    if written.log_length == 0 {
        return;
    }
    let mut log_offset = 0;
    for part in written.parts.iter_mut().filter(|part| part.kind == PartKind::Header) {
        part.put(48, &LOG_GUID);
        part.seal();
        log_offset = u64::from_le_bytes(part.bytes[72..80].try_into().unwrap());
    }
    let sectors = u64::from(written.log_length) / 4096;
    let any = entropy.below(sectors);
    let sector = one_of(entropy, [0, any, sectors - 1]);
    let mut part = log_entry(entropy, 0);
    let value = value(entropy).to_le_bytes();
    match entropy.below(6) {
        0 => part.put(32, &[8; 16]),
        1 => part.put(16, &value),
        2 => part.put(24, &[one_of(entropy, [0, 1, 127, 128])]),
        3 => part.put(64 + 8 * entropy.below(16) as usize, &value),
        _ => {}
    }
    seal_mostly(&mut part, entropy);
    // The log is a ring.
    for (delta, sector_bytes) in (sector..).zip(part.bytes.chunks(4096)) {
        let at = log_offset.wrapping_add(delta % sectors * 4096);
        if at < 1 << 40 {
            written.add(PartKind::Data, at, sector_bytes.to_vec());
        }
    }
}

fn any_byte(written: &mut Written, entropy: &mut Entropy) {
    let parts = written.parts.iter_mut().filter(|part| part.kind != PartKind::BlockTable);
    let parts: Vec<&mut WrittenPart> = parts.collect();
    let chosen = entropy.below(parts.len() as u64) as usize;
    let part = parts.into_iter().nth(chosen).unwrap();
    let at = entropy.below((part.bytes.len() as u64).min(256)) as usize;
    part.bytes[at] ^= 1 << entropy.below(8);
}
