//! Hostile files: the memory that a reader allocates is not proportional to the numbers in the file.

use test_support::prelude::*;

use miniz_oxide::deflate::core::{
    CompressorOxide, TDEFLFlush, compress_to_output, create_comp_flags_from_zip_params,
};
use qcowfuzz::internal::harness::oracles::qcow2::recount::Recount;
use qcowfuzz::internal::programs::journal::JournalRecord;
use qcowfuzz::walkers::{lookup, map_extents, read};

use crate::{CLUSTER, HOSTILE_BYTES, peak_of};

/// Returns an image whose only cluster has `payload`, with the longest length that a descriptor can have.
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
    let JournalRecord::Compressed { host, length_bytes, .. } = harness.vm().journal().records[0]
    else {
        panic!("nothing was compressed");
    };
    assert!(payload.len() <= length_bytes as usize);
    file[host.get() as usize..][..payload.len()].copy_from_slice(payload);
    file
}

/// For the longest payloads, which inflate to gigabytes, the reader allocates a cluster of output and two of input.
#[test]
fn payloads_of_gigabytes_take_a_cluster_of_memory() {
    // Repeats a piece of 8 MiB that ends at a byte boundary and refers to nothing before it.
    let mut piece = Vec::new();
    let flags = create_comp_flags_from_zip_params(6, -15, 0);
    let zeros = vec![0; 8 << 20];
    compress_to_output(&mut CompressorOxide::new(flags), &zeros, TDEFLFlush::Full, |bytes| {
        piece.extend_from_slice(bytes);
        true
    });
    let deflate = piece.repeat((4 << 20) / piece.len() - 1);
    assert!(deflate.len() / piece.len() * zeros.len() > 2 << 30);
    // RLE blocks of 128 KiB each without a last block, with and without a content size.
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
            let mut scratch = WalkScratch::new();
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
    }
}

#[test]
fn hostile_headers_do_not_allocate_in_proportion() {
    // Without data, which a reader would take for entries of a longer table.
    let valid = lines::file(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0\npreallocate at=start+0 clusters=4\nsnapshot\n",
    );
    let snapshots = u64::from_be_bytes(valid[64..72].try_into().unwrap()) as usize;
    // The name, the offset and the width of each field, in bytes.
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
            // Extension type 1, which is not the end of the extensions, so that the reader reads the length.
            bytes[107] = u8::from(name == "extension length");
            let (_, peak) = peak_of(|| visit(&bytes));
            assert!(peak <= HOSTILE_BYTES, "{name} = {value}: {peak} bytes");
        }
    }
}

#[test]
fn hostile_bitmaps_do_not_allocate_in_proportion() {
    let valid = lines::file(
        "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 rng_seed=0 \
         blocks=append table=append tolerance=0\nbitmap granularity=9 flags=in_use name=9\n\
         fill_bitmap index=0 entry=0 entries=1 fill=bits\n",
    );
    // The extension follows the header. Its content begins eight bytes later.
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

/// Opens, recounts, walks and reads a file. Ignores all errors.
fn visit(bytes: &[u8]) {
    let _ = Recount::new().recount(bytes);
    let Ok(disk) = Disk::open(&[Layer::alone(bytes)]) else { return };
    let mut scratch = WalkScratch::new();
    let _ =
        map_extents(&disk, Window::ALL, &mut scratch, &mut |_: Extent| ControlFlow::Continue(()));
    for guest in [0, disk.virtual_size_bytes().saturating_sub(1), u64::MAX] {
        let _ = lookup(&disk, GuestOffset::new(guest));
        let _ = read(&disk, GuestOffset::new(guest), &mut [0; 1], &mut scratch);
    }
}
