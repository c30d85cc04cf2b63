//! Images with long tables and logs, most of which are holes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::disk::error::StorageError;
use crate::disk::extent::{Extent, Window};
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Data, Layer, Storage, Stored, read_widened};
use crate::formats::error::MapError;
use crate::formats::vhdx::constants::{
    BAT_REGION, FILE_PARAMETERS, LOGICAL_SECTOR_SIZE, METADATA_REGION, PAGE_83,
    PHYSICAL_SECTOR_SIZE, VIRTUAL_DISK_SIZE,
};
use crate::formats::vhdx::header::Checksum;
use crate::formats::vhdx::log::LOG_TO_REPLAY;
use crate::walkers::{Disk, WalkScratch, lookup, map_extents};

const MIB: u64 = 1 << 20;
const LOG: u64 = 16 * MIB;
const BAT: u64 = 1 << 33;
/// The host offset of the only stored block.
const BLOCK: u64 = 1 << 35;
/// The number of bytes that an open and a walk may read: the headers and tables of fixed size, and some pieces.
const READ_BYTES: u64 = 400 << 10;

/// A file with holes, which counts the bytes that are read.
#[derive(Default)]
struct Sparse {
    parts: BTreeMap<u64, Vec<u8>>,
    read_bytes: Cell<u64>,
}

impl Sparse {
    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.parts.insert(offset, bytes.to_vec());
    }

    /// Adds a structure with its checksum.
    fn put_sealed(&mut self, offset: u64, mut bytes: Vec<u8>) {
        let checksum = Checksum::of_structure(&bytes).get();
        bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
        self.put(offset, &bytes);
    }
}

impl Storage for Sparse {
    fn length_bytes(&self) -> u64 {
        BLOCK + MIB
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.read_bytes.set(self.read_bytes.get() + into.len() as u64);
        into.fill(0);
        for (start, bytes) in &self.parts {
            for (at, byte) in (*start..).zip(bytes) {
                let place = at.checked_sub(offset.get()).and_then(|at| into.get_mut(at as usize));
                place.into_iter().for_each(|place| *place = *byte);
            }
        }
        Ok(())
    }

    fn stored(&self, from: HostOffset, until: HostOffset) -> Result<Stored, StorageError> {
        let mut ends = self.parts.iter().map(|(start, part)| (*start, start + part.len() as u64));
        let at = |end: u64| HostOffset::new(end).min(until);
        Ok(match ends.find(|(_, end)| *end > from.get()) {
            Some((start, end)) if start <= from.get() => Stored { stored: true, end: at(end) },
            Some((start, _)) => Stored { stored: false, end: at(start) },
            None => Stored { stored: false, end: until },
        })
    }

    fn next_data<'a>(
        &'a self,
        from: HostOffset,
        until: HostOffset,
        scratch: &'a mut [u8],
    ) -> Result<Option<Data<'a>>, StorageError> {
        let here = self.stored(from, until)?;
        let first = if here.stored { from } else { here.end };
        match first < until {
            true => {
                let end = self.stored(first, until)?.end;
                read_widened(self, from, first, end.max(HostOffset::new(first.get() + 16)), scratch)
            }
            false => Ok(None),
        }
    }
}

/// Returns an image with these numbers of bytes, and a list of `(offset, bytes)` of unknown regions.
fn image(size: u64, log_length: u32, bat_length: u32, unknown: &[(u64, u32)]) -> Sparse {
    let mut file = Sparse::default();
    file.put(0, b"vhdxfile");
    for (sequence, offset) in [(1u8, 64 << 10), (2, 128 << 10)] {
        let mut header = vec![0; 4096];
        header[..4].copy_from_slice(b"head");
        header[8] = sequence;
        header[48..64].fill(7);
        header[66] = 1;
        header[68..72].copy_from_slice(&log_length.to_le_bytes());
        header[72..80].copy_from_slice(&LOG.to_le_bytes());
        file.put_sealed(offset, header);
    }
    let known = [(METADATA_REGION, 2 * MIB, 1 << 20), (BAT_REGION, BAT, bat_length)];
    let count = known.len() + unknown.len();
    let unknown = unknown.iter().map(|(offset, length)| ([1; 16], *offset, *length));
    let regions = known.into_iter().chain(unknown);
    let mut table = vec![0; 64 << 10];
    table[..4].copy_from_slice(b"regi");
    for ((guid, offset, length), into) in regions.zip(table[16..].chunks_exact_mut(32)) {
        into[..16].copy_from_slice(&guid);
        into[16..24].copy_from_slice(&offset.to_le_bytes());
        into[24..28].copy_from_slice(&length.to_le_bytes());
    }
    table[8..12].copy_from_slice(&(count as u32).to_le_bytes());
    file.put_sealed(192 << 10, table);
    let items = [
        (FILE_PARAMETERS, MIB),
        (VIRTUAL_DISK_SIZE, size),
        (LOGICAL_SECTOR_SIZE, 512),
        (PHYSICAL_SECTOR_SIZE, 512),
        (PAGE_83, 1),
    ];
    let mut metadata = vec![0; 192];
    metadata[..8].copy_from_slice(b"metadata");
    metadata[10] = 5;
    for ((at, (guid, value)), into) in (0u32..).zip(items).zip(metadata[32..].chunks_mut(32)) {
        let offset = (64 << 10) + at * 8;
        into[..16].copy_from_slice(&guid);
        into[16..20].copy_from_slice(&offset.to_le_bytes());
        file.put(2 * MIB + u64::from(offset), &value.to_le_bytes());
    }
    file.put(2 * MIB, &metadata);
    file
}

/// Returns the extents of the disk, and the error of the walk.
fn extents_of(disk: &Disk<Sparse>) -> (Vec<Extent>, Option<MapError>) {
    let mut extents = Vec::new();
    let mut keep = |extent| {
        extents.push(extent);
        ControlFlow::Continue(())
    };
    let walked = map_extents(disk, Window::ALL, &mut WalkScratch::new(), &mut keep);
    (extents, walked.err())
}

fn open(file: &Sparse) -> Result<Disk<'_, Sparse>, MapError> {
    Disk::open_as(ImageFormat::Vhdx, &[Layer::alone(file)])
}

#[test]
fn the_holes_of_a_log_are_not_read() {
    let length = 0xfff0_0000u32;
    let entry = |entry_length: u32, is_valid: bool| {
        let mut file = image(MIB, length, 8, &[]);
        let mut header = vec![0; 64];
        header[..4].copy_from_slice(b"loge");
        header[8..12].copy_from_slice(&entry_length.to_le_bytes());
        header[16] = 1;
        header[32..48].fill(7);
        let mut checksum = Checksum::of_structure(&header);
        checksum.append_zeros(u64::from(entry_length) - 64);
        header[4..8].copy_from_slice(&checksum.get().to_le_bytes());
        header[7] ^= u8::from(!is_valid);
        file.put(LOG + u64::from(length) - 4096, &header);
        let opened = open(&file).map(|disk| disk.virtual_size_bytes());
        assert!(file.read_bytes.get() < READ_BYTES, "{:?}", file.read_bytes);
        opened
    };
    let replay = Err(MapError::Unsupported(LOG_TO_REPLAY));
    for entry_length in [4096, 1 << 31, length] {
        // All of these continue at the beginning of the log, except the first one.
        assert_eq!(entry(entry_length, true), replay, "{entry_length}");
        // If the checksum is wrong and the entry is as long as the log, QEMU loops for ever.
        assert_eq!(entry(entry_length, false), Ok(MIB), "{entry_length}");
    }
}

#[test]
fn the_holes_of_a_table_are_not_read() {
    // A table of 1 GiB, with an entry in its last sector.
    let mut file = image(1 << 47, 0, 1 << 31 >> 1, &[]);
    let last = (1u64 << 27) - 1 + ((1 << 27) - 1) / 4096;
    assert!(open(&file).is_err(), "there is no room for the sector bitmaps");
    file = image((1 << 47) - (1 << 40), 0, 1 << 30, &[]);
    let index = last - (1 << 20) - (1 << 8);
    file.put(BAT + index * 8, &(BLOCK | 6).to_le_bytes());
    let disk = open(&file).unwrap();
    let (extents, error) = extents_of(&disk);
    assert!(file.read_bytes.get() < READ_BYTES, "{:?}", file.read_bytes);
    let offsets: Vec<_> = extents.iter().map(|extent| extent.mapping.offset).collect();
    assert_eq!((offsets, error), (vec![None, Some(HostOffset::new(BLOCK))], None));
    assert_eq!(extents[1].start.get() + MIB, disk.virtual_size_bytes());
}

#[test]
fn blocks_past_the_table_are_errors() {
    let file = image((1 << 52) + MIB, 0, 8, &[]);
    let disk = open(&file).unwrap();
    let past = MapError::BlockEntry { index: 1, what: "the entry lies past the end of the table" };
    assert_eq!(lookup(&disk, GuestOffset::new(MIB)), Err(past.clone()));
    let (extents, error) = extents_of(&disk);
    assert_eq!((extents[0].length_bytes, extents.len(), error), (MIB, 1, Some(past)));
    let (extents, error) = extents_of(&disk.as_qemu_reports());
    assert_eq!((extents[0].length_bytes, error), ((1 << 52) + MIB, None));
}

#[test]
fn no_block_overlaps_one_of_many_regions() {
    let regions: Vec<(u64, u32)> = (0..2045).map(|at| (BLOCK - (at + 1) * 4096, 4095)).collect();
    let mut file = image(MIB, 0, 8, &regions);
    for (start, is_allowed) in [(BLOCK, true), (BLOCK - MIB, false), (BLOCK - 16 * MIB, true)] {
        file.put(BAT, &(start | 6).to_le_bytes());
        assert_eq!(open(&file).is_ok(), is_allowed, "{start:#x}");
    }
    let one_more = [&regions[..], &[(0, 1)]].concat();
    assert!(open(&image(MIB, 0, 8, &one_more)).is_err(), "2048 regions");
}
