//! VHDX images.

use std::path::Path;

use qcowfuzz::disk::extent::{Extent, Window};
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::disk::storage::{FileStorage, Layer, Storage};
use qcowfuzz::formats::anatomy::{Anatomy, Part};
use qcowfuzz::formats::vhdx::block_table::BlockState;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::internal::programs::operand::Base;
use qcowfuzz::walkers::{self, Disk, WalkScratch};

use crate::comparison::{Kind, TestedFormat, one_of, walk};
use crate::qemu::{self, Checked, compare};
use crate::rules::WITH_RULE;
use crate::tally::Tally;
use crate::{maker, vhdx_damage, vhdx_writer};

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
            (0..=entropy.below(2)).for_each(|_| vhdx_damage::damage(&mut written, entropy));
        }
        written.save(path).map_err(|error| error.to_string())
    }

    fn data_difference(path: &Path) -> Checked<Option<&'static str>> {
        let storage = FileStorage::open(path).map_err(|error| error.to_string())?;
        let mut anatomy = Anatomy::default();
        anatomy.read(ImageFormat::Vhdx, &storage).map_err(|error| error.to_string())?;
        let mut has_block_at_start = false;
        for entry in anatomy.of(Part::Table) {
            let mut bytes = [0; 8];
            storage.read_at(entry.at, &mut bytes).map_err(|error| error.to_string())?;
            let state = BlockState::of_entry(u64::from_le_bytes(bytes));
            has_block_at_start |= state == BlockState::Stored(HostOffset::ZERO);
        }
        Ok(has_block_at_start.then_some(BLOCK_AT_START))
    }

    fn check_more(path: &Path, entropy: &mut Entropy, tally: &mut Tally) -> Checked<()> {
        let storage = FileStorage::open(path).map_err(|error| error.to_string())?;
        let disk = Disk::open_as(ImageFormat::Vhdx, &[Layer::alone(&storage)]);
        let disk = disk.map_err(|error| error.to_string())?;
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
            storage.read_at(offset, &mut there).map_err(|error| error.to_string())?;
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
    maker::create(path, ImageFormat::Vhdx, &options, size, &[])?;
    maker::change(path, ImageFormat::Vhdx, size, entropy)
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
    maker::create(path, ImageFormat::Vhdx, &options, size, &[])?;
    maker::change(path, ImageFormat::Vhdx, size, entropy)
}
