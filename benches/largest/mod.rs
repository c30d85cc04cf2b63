//! The growth of an open and a walk with the disk, from 1 MiB to the largest disk of each format. Both disks store one
//! block. A program builds the small one, and its header is changed into that of the large one.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::Duration;

use qcowfuzz::disk::extent::{Extent, Window};
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::{Layer, Storage};
use qcowfuzz::formats::vhdx::constants::{
    BAT_REGION, METADATA_REGION, REGION_TABLE_OFFSET, VIRTUAL_DISK_SIZE,
};
use qcowfuzz::formats::vhdx::header::Checksum;
use qcowfuzz::formats::vpc::headers::checksums;
use qcowfuzz::harness::{Harness, Walker};
use qcowfuzz::images::Image;
use qcowfuzz::programs::text::assemble;
use qcowfuzz::walkers::{Disk, WalkScratch, map_extents};

use crate::sets::{ROUNDS, cpu_time};

const SMALL: &str = "1<<20+0";
/// The number of opens and walks in a round.
const WALKS: u32 = 50;

/// A format and its largest disk.
struct Row {
    name: &'static str,
    format: ImageFormat,
    /// The operands of the image but for its size.
    operands: &'static str,
    /// The size of the largest disk that programs build.
    size: &'static str,
    /// Makes the image that of a larger disk. Returns the number of bytes by which the stored table is longer.
    enlarge: fn(&mut Image) -> u64,
}

const ROWS: [Row; 5] = [
    Row {
        name: "qcow2, 64 KiB clusters → 2 EiB",
        format: ImageFormat::Qcow2,
        operands: "cluster_bits=16",
        size: "16384<<47+0",
        enlarge: |_| 0,
    },
    Row {
        name: "qcow2, 2 MiB clusters → 8 EiB",
        format: ImageFormat::Qcow2,
        operands: "cluster_bits=21",
        size: "65535<<47+0",
        enlarge: |_| 0,
    },
    Row {
        name: "vpc, 2 MiB blocks → 2040 GiB",
        format: ImageFormat::Vpc,
        operands: "cluster_bits=21 base=vpc",
        size: SMALL,
        enlarge: enlarge_vpc,
    },
    Row {
        name: "vhdx, 64 MiB blocks → 64 TiB",
        format: ImageFormat::Vhdx,
        operands: "cluster_bits=15 base=vhdx",
        size: SMALL,
        enlarge: enlarge_vhdx,
    },
    Row {
        name: "vmdk, 64 KiB grains → 1 PiB",
        format: ImageFormat::Vmdk,
        operands: "cluster_bits=16 base=vmdk",
        size: SMALL,
        enlarge: enlarge_vmdk,
    },
];

/// Prints how the time of an open and a walk grows, and its cost for each KiB by which the stored table is longer.
pub fn growth() {
    println!(
        "| 1 MiB → the largest disk, one block stored | open and walk | longer table | cost |"
    );
    println!("|---|---|---|---|");
    for Row { name, format, operands, size, enlarge } in ROWS {
        let (small, mut large) = (built(operands, SMALL), built(operands, size));
        let longer_bytes = enlarge(&mut large);
        let [from, to] = fastest(format, [&small, &large]).map(|time| time.as_secs_f64() * 1e6);
        let cost = match longer_bytes / 1024 {
            0 => "–".to_string(),
            kib => format!("{:.3} µs a KiB", (to - from) / kib as f64),
        };
        let longer = longer_bytes / 1024;
        println!("| {name} | {from:.2} → {to:.2} µs, {:.2} × | {longer} KiB | {cost} |", to / from);
    }
}

/// Returns the times of the fastest open and walk of both images, which take turns.
fn fastest(format: ImageFormat, images: [&Image; 2]) -> [Duration; 2] {
    let mut times = [Duration::MAX; 2];
    let mut scratch = WalkScratch::new();
    for _ in 0..ROUNDS {
        for (time, image) in times.iter_mut().zip(images) {
            let start = cpu_time();
            for _ in 0..WALKS {
                let chain = [Layer::alone(image)];
                let disk = Disk::open_as(format, &chain).expect("an image that opens");
                let mut extents = 0;
                let count = &mut |extent: Extent| {
                    extents += u32::from(black_box(extent).length_bytes > 0);
                    ControlFlow::Continue(())
                };
                map_extents(&disk, Window::ALL, &mut scratch, count).expect("a walk");
                assert!(extents > 0);
            }
            *time = ((cpu_time() - start) / WALKS).min(*time);
        }
    }
    times
}

/// Returns the image of a program that writes the first block.
fn built(operands: &str, size: &str) -> Image {
    let defaults = "version=3 refcount_order=4 features=none rng_seed=0 blocks=append \
                    table=append tolerance=0";
    let text = format!("image {defaults} size={size} {operands}\nwrite at=start+0 clusters=1\n");
    let program = assemble(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    Harness::new(Walker::default()).build(&program.encode()).clone()
}

fn bytes_of(image: &Image, at: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    image.read_at(HostOffset::new(at), &mut bytes).expect("memory");
    bytes
}

fn word(bytes: &[u8], at: usize) -> [u8; 8] {
    bytes[at..at + 8].try_into().expect("eight bytes")
}

/// Gives the image a table of 4 MiB at its end, of blocks that are not stored but for the first one.
fn enlarge_vpc(image: &mut Image) -> u64 {
    const SIZE: u64 = 2040 << 30;
    const ENTRIES: u32 = (SIZE >> 21) as u32;
    let mut footer = bytes_of(image, 0, 512);
    footer[48..56].copy_from_slice(&SIZE.to_be_bytes());
    let (checksum, _) = checksums(&footer, 64);
    footer[64..68].copy_from_slice(&checksum.to_be_bytes());
    let header_at = u64::from_be_bytes(word(&footer, 16));
    let mut header = bytes_of(image, header_at, 1024);
    let old = u64::from_be_bytes(word(&header, 16));
    let at = image.length_bytes().next_multiple_of(512);
    header[16..24].copy_from_slice(&at.to_be_bytes());
    header[28..32].copy_from_slice(&ENTRIES.to_be_bytes());
    let mut table = vec![0xff; ENTRIES as usize * 4];
    table[..4].copy_from_slice(&bytes_of(image, old, 4));
    image.set_length((at + table.len() as u64).next_multiple_of(512));
    for (at, bytes) in [(0, &footer), (header_at, &header), (at, &table)] {
        image.overwrite(HostOffset::new(at), bytes);
    }
    table.len() as u64 - 4
}

/// Gives the image a table of 9 MiB at its end, which is a hole but for the first entry.
fn enlarge_vhdx(image: &mut Image) -> u64 {
    const SIZE: u64 = 64 << 40;
    const TABLE_BYTES: u32 = 9 << 20;
    let mut regions = bytes_of(image, REGION_TABLE_OFFSET, 64 << 10);
    let find = |from: &[u8], first: usize, guid: [u8; 16]| {
        let mut places = (first..).step_by(32);
        places.find(|at| from[*at..*at + 16] == guid).expect("an entry")
    };
    let metadata = find(&regions, 16, METADATA_REGION);
    let metadata = u64::from_le_bytes(word(&regions, metadata + 16));
    let table = find(&regions, 16, BAT_REGION);
    let first = bytes_of(image, u64::from_le_bytes(word(&regions, table + 16)), 16);
    let at = image.length_bytes().next_multiple_of(1 << 20);
    regions[table + 16..table + 24].copy_from_slice(&at.to_le_bytes());
    regions[table + 24..table + 28].copy_from_slice(&TABLE_BYTES.to_le_bytes());
    let checksum = Checksum::of_structure(&regions).get();
    regions[4..8].copy_from_slice(&checksum.to_le_bytes());
    let items = bytes_of(image, metadata, 4096);
    let item = find(&items, 32, VIRTUAL_DISK_SIZE) + 16;
    let place = metadata + (u64::from_le_bytes(word(&items, item)) & u64::from(u32::MAX));
    image.set_length(at + u64::from(TABLE_BYTES));
    // Zeros between the entries of the table would no longer be a hole.
    let used = 16 + 32 * 8;
    let size = SIZE.to_le_bytes();
    for (at, bytes) in
        [(REGION_TABLE_OFFSET, &regions[..used]), (place, &size[..]), (at, &first[..])]
    {
        image.overwrite(HostOffset::new(at), bytes);
    }
    0
}

/// Gives the image a directory of 128 MiB at its end, the longest, which is a hole but for the first entry.
fn enlarge_vmdk(image: &mut Image) -> u64 {
    const ENTRIES: u64 = 1 << 25;
    let mut header = bytes_of(image, 0, 512);
    let grain = u64::from_le_bytes(word(&header, 20));
    let table = u64::from_le_bytes(word(&header, 44)) & u64::from(u32::MAX);
    let old = u64::from_le_bytes(word(&header, 56)) * 512;
    let first = bytes_of(image, old, 4);
    let at = image.length_bytes().next_multiple_of(512);
    header[12..20].copy_from_slice(&(ENTRIES * grain * table).to_le_bytes());
    header[56..64].copy_from_slice(&(at / 512).to_le_bytes());
    image.set_length(at + ENTRIES * 4);
    image.overwrite(HostOffset::ZERO, &header);
    image.overwrite(HostOffset::new(at), &[&first[..], &[0; 12]].concat());
    0
}
