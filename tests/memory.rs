//! Memory: a walk takes little, whatever the image says; a run takes none that was there before.
//!
//! What the zstd library allocates for itself is not counted here; the walker bounds the window that
//! it may keep to one cluster.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, compress_to_output, create_comp_flags_from_zip_params,
};
use qcowfuzz::disk::error::StorageError;
use qcowfuzz::disk::extent::{Extent, Window};
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::disk::storage::{Layer, Storage};
use qcowfuzz::formats::qcow2::constants::MAX_L1_ENTRIES;
use qcowfuzz::harness::oracles::qcow2::recount::Recount;
use qcowfuzz::harness::{Checks, Harness, Walker};
use qcowfuzz::programs::Record;
use qcowfuzz::programs::generate::{Wanted, generate};
use qcowfuzz::programs::text::assemble;
use qcowfuzz::walkers::qcow2::{Disk, Scratch, lookup, map_extents, read};

/// Counts what each thread allocates, so that tests beside each other do not meet.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // While a thread ends, its counters may be gone.
    let _ = BYTES.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
    if bytes > 0 {
        let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + 1));
    }
}

// SAFETY: every call is handed to the system's allocator as it came; the counters are plain cells
// that need no allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promise is the one that is asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above; `pointer` is of `System`, as all are.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that were held at a time while `work` ran, beyond what was held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = BYTES.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// How many allocations `work` makes.
fn allocations_of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.get();
    let result = work();
    (result, ALLOCATIONS.get() - before)
}

#[test]
fn the_allocator_counts() {
    let (vec, peak) = peak_of(|| {
        drop(vec![0u8; 1 << 20]);
        vec![0u8; 1 << 10]
    });
    assert_eq!((vec.len(), peak), (1 << 10, 1 << 20));
    assert_eq!(allocations_of(|| Box::new(7)).1, 1);
}

/// The limit of the `bounds` oracle's doc.
const WALK_BYTES: i64 = 16 << 20;

/// An image with the largest clusters and the largest L1 table: the first tables are full of entries
/// that do not merge. Nothing of it is in memory.
struct Huge {
    header: Vec<u8>,
}

const CLUSTER: u64 = 2 << 20;
const FULL_TABLES: u64 = 3;

impl Huge {
    fn new() -> Self {
        let program = assemble(
            "image version=3 cluster_bits=21 refcount_order=4 features=none size=65535<<47+0 \
             rng_seed=0 blocks=append table=append tolerance=0",
        );
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.unwrap().encode());
        let mut header = vec![0; 4096];
        image.read_at(HostOffset::ZERO, &mut header).unwrap();
        assert_eq!(header[36..40], MAX_L1_ENTRIES.to_be_bytes());
        // The L1 table lies in cluster 1, an L2 table in cluster 1024.
        assert_eq!(header[40..48], CLUSTER.to_be_bytes());
        Self { header }
    }

    fn word(at: u64) -> u64 {
        let cluster = at / CLUSTER;
        match (cluster, at % CLUSTER / 8) {
            (1, index) if index < FULL_TABLES => 1024 * CLUSTER,
            (1024, index) if index % 2 == 0 => (2048 + index) * CLUSTER,
            (1024, _) => 1,
            _ => 0,
        }
    }
}

impl Storage for Huge {
    fn length_bytes(&self) -> u64 {
        1 << 50
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        for (at, byte) in (offset.get()..).zip(into) {
            *byte = match self.header.get(at as usize) {
                Some(byte) => *byte,
                None => Self::word(at).to_be_bytes()[(at % 8) as usize],
            };
        }
        Ok(())
    }
}

#[test]
fn a_walk_of_the_largest_tables_takes_little_memory() {
    let huge = Huge::new();
    let (extents, peak) = peak_of(|| {
        let mut scratch = Scratch::new();
        let disk = Disk::open(&[Layer::alone(&huge)]).unwrap();
        let mut extents = 0u64;
        let count = &mut |_: Extent| {
            extents += 1;
            ControlFlow::Continue(())
        };
        map_extents(&disk, Window::ALL, &mut scratch, count).unwrap();
        let byte = GuestOffset::new(CLUSTER * 17);
        lookup(&disk, byte).unwrap();
        read(&disk, byte, &mut [0; 512], &mut scratch).unwrap();
        extents
    });
    // Each entry its own extent, and the hole behind.
    assert_eq!(extents, FULL_TABLES * CLUSTER / 8 + 1);
    assert!(peak <= WALK_BYTES, "{peak} bytes");
    println!("the largest tables: {peak} bytes");
}

#[test]
fn reading_the_largest_compressed_clusters_takes_little_memory() {
    for compression in ["none", "zstd"] {
        let program = assemble(&format!(
            "image version=3 cluster_bits=21 refcount_order=4 features={compression} size=64<<21+0 \
             rng_seed=0 blocks=append table=append tolerance=0\n\
             compress at=start+0 clusters=4 shape=most skew=packed\n\
             compress at=start+9 clusters=4 shape=coins skew=fresh+32767\n"
        ));
        let mut harness = Harness::new(Walker::default());
        let image = harness.build(&program.unwrap().encode());
        let mut into = vec![0; 13 * CLUSTER as usize];
        let (_, peak) = peak_of(|| {
            let mut scratch = Scratch::new();
            let disk = Disk::open(&[Layer::alone(image)]).unwrap();
            read(&disk, GuestOffset::ZERO, &mut into, &mut scratch).unwrap();
            map_extents(&disk, Window::ALL, &mut scratch, &mut |_: Extent| {
                ControlFlow::Continue(())
            })
            .unwrap();
        });
        assert!(into[12 * CLUSTER as usize..].iter().any(|byte| *byte != 0));
        assert!(peak <= WALK_BYTES, "{compression}: {peak} bytes");
        println!("compressed, features={compression}: {peak} bytes");
    }
}

/// An image whose only cluster has `payload`, as long as a descriptor can say.
fn with_payload(features: &str, payload: &[u8]) -> Vec<u8> {
    let program = assemble(&format!(
        "image version=3 cluster_bits=21 refcount_order=4 features={features} size=1<<21+0 \
         rng_seed=0 blocks=append table=append tolerance=0\n\
         compress_as at=start+0 shape=zeros coding=largest skew=packed\n"
    ));
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&program.unwrap().encode());
    let mut file = vec![0; image.length_bytes() as usize];
    image.read_at(HostOffset::ZERO, &mut file).unwrap();
    let Record::Compressed { host, length_bytes, .. } = harness.vm().journal().records[0] else {
        panic!("nothing was compressed");
    };
    assert!(payload.len() <= length_bytes as usize);
    file[host.get() as usize..][..payload.len()].copy_from_slice(payload);
    file
}

/// The longest payloads, which inflate to gigabytes, cost a cluster of output and two of input.
#[test]
fn payloads_of_gigabytes_take_a_cluster_of_memory() {
    // A piece of 8 MiB that ends on a byte and needs nothing before it, again and again.
    let mut piece = Vec::new();
    let flags = create_comp_flags_from_zip_params(6, -15, 0);
    let zeros = vec![0; 8 << 20];
    compress_to_output(&mut CompressorOxide::new(flags), &zeros, TDEFLFlush::Full, |bytes| {
        piece.extend_from_slice(bytes);
        true
    });
    let deflate = piece.repeat((4 << 20) / piece.len() - 1);
    assert!(deflate.len() / piece.len() * zeros.len() > 2 << 30);
    // RLE blocks of 128 KiB each, of which none is the last: with and without a content size.
    let block = [&(128u32 << 13 | 0b010).to_le_bytes()[..3], &[0]].concat();
    let blocks = block.repeat(1_000_000);
    let unsized_frame = [&[0x28, 0xB5, 0x2F, 0xFD, 0, 11 << 3], blocks.as_slice()].concat();
    let sized = [&[0x28, 0xB5, 0x2F, 0xFD, 0xC0, 11 << 3][..], &(128u64 << 30).to_le_bytes()];
    let sized_frame = [&sized.concat(), blocks.as_slice()].concat();
    for (features, payload, readable) in
        [("none", &deflate, true), ("zstd", &unsized_frame, false), ("zstd", &sized_frame, false)]
    {
        let file = with_payload(features, payload);
        let mut into = vec![1; CLUSTER as usize];
        let (read, peak) = peak_of(|| {
            let disk = Disk::open(&[Layer::alone(file.as_slice())]).unwrap();
            let mut scratch = Scratch::new();
            let mut extents = 0;
            let count = &mut |extent: Extent| {
                extents += u32::from(extent.mapping.compressed);
                ControlFlow::Continue(())
            };
            map_extents(&disk, Window::ALL, &mut scratch, count).unwrap();
            assert_eq!(extents, 1);
            read(&disk, GuestOffset::ZERO, &mut into, &mut scratch).is_ok()
        });
        assert_eq!(read, readable, "{features}");
        assert!(!readable || into.iter().all(|byte| *byte == 0));
        let most = 3 * CLUSTER as i64 + HOSTILE_BYTES;
        assert!(peak <= most, "{features}: {peak} bytes");
        println!("a payload of gigabytes, features={features}: {peak} bytes");
    }
}

#[test]
fn a_run_allocates_nothing_once_the_buffers_have_grown() {
    let wanted = |rng_seed| Wanted { operations: 24, compressed: rng_seed % 2 == 0 };
    let input = |rng_seed| {
        let mut input = generate(rng_seed, wanted(rng_seed)).encode();
        if rng_seed % 3 == 0 {
            // A header with everything: counts out of date, names, extensions.
            input.extend([15, rng_seed as u8, 0, rng_seed as u8, 7, 1, 0xFC, 0]);
        }
        input
    };
    let mut inputs: Vec<_> = (0..182).map(input).collect();
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/map_extents");
    let named =
        ["bitmaps", "bitmaps_left", "bitmaps_resized", "chain_sizes", "chain_raw", "data_file"];
    inputs.extend(named.map(|name| fs::read(seeds.join(name)).unwrap()));
    let mut harness = Harness::new(Walker::default());
    let mut run = |input: &[u8]| harness.run(input, Checks::AtCheckpoints).unwrap();
    // Spare snapshots change places: it takes some rounds until each has had the longest L1 table.
    for _ in 0..6 {
        inputs.iter().for_each(|input| {
            run(input);
        });
    }
    let mut allocating = Vec::new();
    for (rng_seed, input) in inputs.iter().enumerate() {
        let ((_, allocations), peak) = peak_of(|| allocations_of(|| run(input)));
        if allocations > 0 {
            allocating.push(format!("program {rng_seed}: {allocations} allocations, {peak} bytes"));
        }
    }
    assert!(allocating.is_empty(), "{}", allocating.join("\n"));
}

/// What a hostile header may cost: buffers of fixed size.
const HOSTILE_BYTES: i64 = 1 << 20;

#[test]
fn hostile_headers_do_not_allocate_in_proportion() {
    let program = assemble(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0\nwrite at=start+0 clusters=4\nsnapshot\n",
    );
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&program.unwrap().encode());
    let mut valid = vec![0; image.length_bytes() as usize];
    image.read_at(HostOffset::ZERO, &mut valid).unwrap();
    let snapshots = u64::from_be_bytes(valid[64..72].try_into().unwrap()) as usize;
    // What, where, how wide.
    let fields = [
        ("backing_file_size", 16, 4),
        ("size", 24, 8),
        ("l1_size", 36, 4),
        ("refcount_table_clusters", 56, 4),
        ("nb_snapshots", 60, 4),
        ("header_length", 100, 4),
        ("extension length", 108, 4),
        ("a snapshot's l1_size", snapshots + 8, 4),
        ("a snapshot's id length", snapshots + 12, 2),
        ("a snapshot's extra length", snapshots + 36, 4),
    ];
    let values = [1, 127, 128, 1 << 10, 1 << 16, 4 << 20, (4 << 20) + 1, u64::from(u32::MAX)];
    for (name, at, width) in fields {
        for value in values.into_iter().chain([1 << 62, u64::MAX]) {
            let mut bytes = valid.clone();
            bytes[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
            // An extension that somebody reads, not the end of them.
            bytes[107] = u8::from(name == "extension length");
            let (_, peak) = peak_of(|| visit(&bytes));
            assert!(peak <= HOSTILE_BYTES, "{name} = {value}: {peak} bytes");
        }
    }
}

#[test]
fn hostile_bitmaps_do_not_allocate_in_proportion() {
    let program = assemble(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0\nbitmap granularity=9 flags=in_use name=9\n\
         fill_bitmap index=0 entry=0 entries=1 fill=bits\n",
    );
    let mut harness = Harness::new(Walker::default());
    let image = harness.build(&program.unwrap().encode());
    let mut valid = vec![0; image.length_bytes() as usize];
    image.read_at(HostOffset::ZERO, &mut valid).unwrap();
    // The extension lies behind the header, its content eight bytes further on.
    let directory = u64::from_be_bytes(valid[128..136].try_into().unwrap()) as usize;
    let table = u64::from_be_bytes(valid[directory..directory + 8].try_into().unwrap()) as usize;
    let fields = [
        ("extension length", 108, 4),
        ("nb_bitmaps", 112, 4),
        ("bitmap_directory_size", 120, 8),
        ("bitmap_directory_offset", 128, 8),
        ("bitmap_table_offset", directory, 8),
        ("bitmap_table_size", directory + 8, 4),
        ("name_size", directory + 18, 2),
        ("extra_data_size", directory + 20, 4),
        ("a table entry", table, 8),
    ];
    let values = [0, 1, 127, 1 << 13, 1 << 16, 65_535 << 10, u64::from(u32::MAX), 1 << 62];
    for (name, at, width) in fields {
        for value in values.into_iter().chain([u64::MAX]) {
            let mut bytes = valid.clone();
            bytes[at..at + width].copy_from_slice(&value.to_be_bytes()[8 - width..]);
            let (_, peak) = peak_of(|| visit(&bytes));
            assert!(peak <= HOSTILE_BYTES, "{name} = {value}: {peak} bytes");
        }
    }
}

/// Everything that is done with a file, whatever it answers.
fn visit(bytes: &[u8]) {
    let _ = Recount::new().recount(bytes);
    let Ok(disk) = Disk::open(&[Layer::alone(bytes)]) else { return };
    let mut scratch = Scratch::new();
    let _ =
        map_extents(&disk, Window::ALL, &mut scratch, &mut |_: Extent| ControlFlow::Continue(()));
    for guest in [0, disk.virtual_size_bytes().saturating_sub(1), u64::MAX] {
        let _ = lookup(&disk, GuestOffset::new(guest));
        let _ = read(&disk, GuestOffset::new(guest), &mut [0; 1], &mut scratch);
    }
}
