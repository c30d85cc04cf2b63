//! Memory: a walk allocates little for any image, and a run reuses the buffers of earlier runs.
//!
//! The test does not count the allocations inside the zstd library. The walker limits its window to one cluster.
#![allow(unsafe_code)]

#[path = "memory/formats.rs"]
mod formats;
#[path = "memory/hostile.rs"]
mod hostile;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use test_support::prelude::*;

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::formats::qcow2::constants::MAX_L1_ENTRIES;
use qcowfuzz::walkers::{CheckBounds, MapError, check_qcow2, lookup, map_extents, read};

/// Counts the allocations of each thread, so that parallel tests do not affect each other.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // While a thread ends, its counters may not exist any more.
    let _ = BYTES.try_with(|now| {
        now.set(now.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
    if bytes > 0 {
        let _ = ALLOCATIONS.try_with(|all| all.set(all.get() + 1));
    }
}

// SAFETY: every call is passed unchanged to the system's allocator. The counters are plain cells that need no
// allocation and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: `System` requires the same of its caller as this function does.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above. `System` allocated `pointer`, as all others.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the highest number of bytes that were allocated at a time while `work` ran, beyond those allocated before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, i64) {
    let before = BYTES.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// Returns the number of allocations that `work` makes.
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

/// The number of bytes that a reader may allocate for a hostile header: buffers of fixed size.
const HOSTILE_BYTES: i64 = 1 << 20;

/// The limit that the documentation of the `bounds` oracle states.
const WALK_BYTES: i64 = 16 << 20;

/// An image with the largest clusters and the largest L1 table. The first tables are full of entries that do not merge.
/// The bytes are computed, not stored.
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
        let mut scratch = WalkScratch::new();
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
    // Each entry gives an extent, and the hole behind them gives one more.
    assert_eq!(extents, FULL_TABLES * CLUSTER / 8 + 1);
    assert!(peak <= WALK_BYTES, "{peak} bytes");
}

/// The check keeps two bytes for each cluster, and no references. Its tables are full of entries, and an L1 table names
/// one of them three times.
#[test]
fn a_check_of_the_largest_tables_takes_two_bytes_for_each_cluster() {
    let huge = Huge::new();
    let check = |references, kept_bytes| {
        let bounds = CheckBounds { references, kept_bytes };
        peak_of(|| check_qcow2(&huge, bounds, &mut |_| {}).map(|checked| checked.guest.allocated))
    };
    let (entries, clusters) = (CLUSTER / 8, CLUSTER / 8);
    let (checked, peak) = check(u64::MAX, u64::MAX);
    assert_eq!(checked, Ok(FULL_TABLES * entries / 2));
    let most = 2 * clusters as i64 + HOSTILE_BYTES;
    assert!(peak <= most, "{peak} bytes");
    let too_large = |what| Err(MapError::TooLarge(what));
    assert_eq!(check(entries, u64::MAX).0, too_large("too many references to clusters"));
    let (bounded, peak) = check(u64::MAX, 1 << 10);
    assert_eq!(bounded, too_large("too many clusters"));
    assert!(peak <= most, "{peak} bytes");
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
            let mut scratch = WalkScratch::new();
            let disk = Disk::open(&[Layer::alone(image)]).unwrap();
            read(&disk, GuestOffset::ZERO, &mut into, &mut scratch).unwrap();
            map_extents(&disk, Window::ALL, &mut scratch, &mut |_: Extent| {
                ControlFlow::Continue(())
            })
            .unwrap();
        });
        assert!(into[12 * CLUSTER as usize..].iter().any(|byte| *byte != 0));
        assert!(peak <= WALK_BYTES, "{compression}: {peak} bytes");
    }
}

/// The most bytes of an open disk, in a box.
const MAX_DISK_BYTES: i64 = 2 << 10;

#[test]
fn a_run_allocates_nothing_once_the_buffers_have_grown() {
    let wanted = |rng_seed| GenerateSettings { operations: 24, compressed: rng_seed % 2 == 0 };
    let input = |rng_seed| {
        let mut program = generate(rng_seed, wanted(rng_seed));
        if rng_seed % 3 == 0 {
            // A header with all optional parts: counts out of date, names, extensions.
            program.operations.extend(lines::operations(&format!(
                "header length=104+{rng_seed} order={rng_seed} unknown=7 bytes=1 \
                 flags=out_of_date,compatible_bits,autoclear_bits,feature_names,unknown_names,junk"
            )));
        }
        program.encode()
    };
    let mut inputs: Vec<_> = (0..182).map(input).collect();
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/map_extents");
    let named =
        ["bitmaps", "bitmaps_left", "bitmaps_resized", "chain_sizes", "chain_raw", "data_file"];
    inputs.extend(named.map(|name| fs::read(seeds.join(name)).unwrap()));
    // A check has buffers of its own. The harness asks for it if the checksum of the input is a multiple of 8.
    inputs.retain(|input| !crc32fast::hash(input).is_multiple_of(32));
    let mut harness = Harness::new(Walker::default());
    let mut run = |input: &[u8]| {
        let outcome = harness.run(input, Checks::AtCheckpoints).unwrap();
        // The walker's report has each name of another file, and a list of them.
        let names = harness.images().layers().flat_map(|files| {
            [&files.declarations.backing_name, &files.declarations.data_file_name]
        });
        let names = names.filter(|name| !name.is_empty()).count();
        (outcome.images, names + names.div_ceil(4))
    };
    // The buffers of spare snapshots change places. After some rounds, each has held the longest L1 table.
    for _ in 0..6 {
        inputs.iter().for_each(|input| {
            run(input);
        });
    }
    let mut allocating = Vec::new();
    for (rng_seed, input) in inputs.iter().enumerate() {
        let (((images, names), allocations), peak) = peak_of(|| allocations_of(|| run(input)));
        // The harness boxes each disk that the engine opens: the active one, the same while a read fails, a snapshot.
        if allocations > (3 * images + names) as u64 || peak > MAX_DISK_BYTES {
            allocating.push(format!("program {rng_seed}: {allocations} allocations, {peak} bytes"));
        }
    }
    assert!(allocating.is_empty(), "{}", allocating.join("\n"));
}
