use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::bitmap::{
    BitmapCluster, BitmapEntry, BitmapTableEntry, BitmapsExtension, bits_for, table_entries_for,
};
use crate::formats::qcow2::constants::{BITMAP_AUTO, BITMAP_FIXED_BYTES};
use crate::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry, Layout, SubclusterBitmap};
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot::{SnapshotEntry, SnapshotExtra};
use crate::images::qcow2::encoding::Sizes;

use super::{FixedPart, Subclusters, allocated, compressed, l1_entry, zeros, *};

fn geometries() -> impl Iterator<Item = Geometry> {
    (9..=21).flat_map(|bits| (0..=6).map(move |order| (bits, order))).flat_map(
        |(bits, refcount_order)| {
            [false, true].map(|extended_l2| Geometry {
                version: Version::V3,
                cluster_size: ClusterSize::from_bits(bits).unwrap(),
                refcount_order,
                extended_l2: extended_l2 && bits >= 14,
                compression: if extended_l2 { Compression::Zstd } else { Compression::Deflate },
                data_file: false,
            })
        },
    )
}

#[test]
fn entries_mean_what_was_written() {
    let host = HostOffset::new(0x12_3456_0000_0000);
    for geometry in geometries() {
        let kind = |word| L2Entry(word).kind(&geometry).unwrap();
        for copied in [false, true] {
            assert_eq!(L1Entry(l1_entry(host, copied)).table(), Some(host));
            assert_eq!(L1Entry(l1_entry(host, copied)).copied(), copied);
            let word = allocated(host, copied);
            let data = if geometry.extended_l2 {
                ClusterKind::Subclusters(host)
            } else {
                ClusterKind::Normal(host)
            };
            assert_eq!((kind(word), L2Entry(word).copied()), (data, copied));
            if !geometry.extended_l2 {
                assert_eq!(kind(zeros(Some(host), copied)), ClusterKind::ZeroAllocated(host));
                assert_eq!(kind(zeros(None, false)), ClusterKind::ZeroPlain);
            }
        }
        let cluster = geometry.cluster_size.bytes() as u32;
        for (offset, length) in
            [(0x1000, 1), (0x1001, 511), (0x11FF, 1), (0x11FF, 2), (0x11FF, cluster)]
        {
            let word = compressed(HostOffset::new(offset), length, geometry.cluster_size);
            let ClusterKind::Compressed(run) = kind(word) else { panic!("{word:#x}") };
            assert_eq!(run.offset.get(), offset);
            let room = run.length_bytes();
            assert!(
                room >= u64::from(length) && room < u64::from(length) + 512,
                "{room}, {length}"
            );
        }
    }
    let states = Subclusters { allocated: 0x8000_0001, zero: 0x7000_0000 };
    let bitmap = SubclusterBitmap(states.bitmap());
    assert_eq!((bitmap.allocated(), bitmap.zero()), (states.allocated, states.zero));
}

#[test]
fn both_sides_have_the_same_sizes() {
    for geometry in geometries() {
        let read = |of: fn(&Geometry) -> u64| of(&geometry);
        assert_eq!(Sizes::l2_entry_bytes(&geometry), read(Layout::l2_entry_bytes));
        assert_eq!(Sizes::l2_entries(&geometry), read(Layout::l2_entries));
        assert_eq!(Sizes::l2_bits(&geometry), Layout::l2_bits(&geometry));
        assert_eq!(Sizes::l2_span_bytes(&geometry), read(Layout::l2_span_bytes));
        assert_eq!(Sizes::cell_bytes(&geometry), read(Layout::cell_bytes));
        assert_eq!(Sizes::refcounts_per_block(&geometry), read(Layout::refcounts_per_block));
        assert_eq!(Sizes::max_refcount(&geometry), read(Layout::max_refcount));
        for size in [0, 1, geometry.cluster_size.bytes(), (1 << 40) + 1] {
            let entries = Layout::l1_entries_for(&geometry, size);
            assert_eq!(Sizes::l1_entries_for(&geometry, size), entries);
            let cluster_size = geometry.cluster_size;
            assert_eq!(bits_of_disk(size, 16), bits_for(size, 16));
            let entries = table_entries_for(size, 9, cluster_size);
            assert_eq!(table_entries(size, 9, cluster_size), entries);
        }
    }
}

#[test]
fn a_header_is_read_as_it_was_written() {
    for geometry in geometries() {
        let cluster = geometry.cluster_size.bytes();
        let written = FixedPart {
            geometry,
            size_bytes: 3 << 20,
            l1_entries: 200_000,
            l1_offset: HostOffset::new(cluster * 3),
            refcount_table_offset: HostOffset::new(cluster),
            refcount_table_clusters: 1,
            snapshots: 2,
            snapshots_offset: HostOffset::new(cluster * 9),
            backing_file_offset: HostOffset::new(300),
            backing_file_bytes: 7,
            incompatible: u64::from(geometry.extended_l2) * (1 << 4 | 1 << 3),
            compatible: 1 << 40,
            autoclear: 1 << 41,
            header_length_bytes: 112,
        };
        let mut bytes = [0; 112];
        written.write(&mut bytes);
        if Layout::l1_entries_for(&geometry, 3 << 20) > 200_000
            || geometry.extended_l2 != (geometry.compression == Compression::Zstd)
        {
            continue;
        }
        let read = Header::parse(&bytes).unwrap();
        assert_eq!(read.geometry, geometry);
        let fields = |h: &Header| {
            (h.size_bytes, h.l1_entries, h.l1_offset, h.refcount_table_offset, h.snapshots)
        };
        let FixedPart {
            size_bytes, l1_entries, l1_offset, refcount_table_offset, snapshots, ..
        } = written;
        assert_eq!(
            fields(&read),
            (size_bytes, l1_entries, l1_offset, refcount_table_offset, snapshots)
        );
        assert_eq!((read.backing_file_offset, read.backing_file_bytes), (HostOffset::new(300), 7));
        assert_eq!((read.compatible, read.autoclear), (1 << 40, 1 << 41));
        assert_eq!(
            (read.snapshots_offset, read.header_length_bytes),
            (HostOffset::new(cluster * 9), 112)
        );
    }
}

#[test]
fn directories_are_read_as_they_were_written() {
    let directory = Directory { bitmaps: 3, length_bytes: 96, offset: HostOffset::new(0x3000) };
    let read = BitmapsExtension::parse(&directory.extension(), ClusterSize::SMALLEST).unwrap();
    assert_eq!((read.bitmaps, read.directory_bytes, read.directory_offset.get()), (3, 96, 0x3000));
    let fields = BitmapFields {
        table_offset: HostOffset::new(0x400),
        table_entries: 7,
        flags: BITMAP_AUTO,
        granularity_bits: 16,
        name_bytes: 5,
    };
    let mut bytes = vec![0; fields.length_bytes() as usize];
    assert_eq!(fields.write(&mut bytes).len(), 5);
    let read = BitmapEntry::parse(bytes[..BITMAP_FIXED_BYTES].try_into().unwrap());
    assert_eq!((read.table_offset.get(), read.table_entries, read.flags), (0x400, 7, BITMAP_AUTO));
    assert_eq!(
        (read.granularity_bits, read.name_bytes, read.extra_bytes, read.kind),
        (16, 5, 0, 1)
    );
    assert_eq!(read.length_bytes(), fields.length_bytes());
    let host = HostOffset::new(0x600);
    let cluster = |word| BitmapTableEntry(word).cluster(ClusterSize::SMALLEST);
    assert_eq!(cluster(bits_at(host)), Ok(BitmapCluster::Data(host)));
    assert_eq!(cluster(ONES), Ok(BitmapCluster::AllOnes));
}

#[test]
fn snapshots_are_read_as_they_were_written() {
    for (extra_bytes, vm_state_bytes) in [(0, 7), (16, 1 << 33), (24, 7), (30, 7)] {
        let fields = SnapshotFields {
            l1_offset: HostOffset::new(0x30000),
            l1_entries: 7,
            id_bytes: 1,
            name_bytes: 5,
            date_seconds: 1_700_000_000,
            date_nanoseconds: 999_999_999,
            vm_clock_nanoseconds: 1 << 40,
            vm_state_bytes,
            disk_bytes: 7 << 20,
            instructions: 99,
            extra_bytes,
        };
        let mut bytes = vec![0; fields.length_bytes() as usize];
        let strings = fields.write(&mut bytes, 0xE7).len();
        assert_eq!(bytes.len() - strings, 40 + extra_bytes as usize);
        let read = SnapshotEntry::parse(bytes[..40].try_into().unwrap());
        assert_eq!(read.unpadded_bytes().next_multiple_of(8), fields.length_bytes());
        assert_eq!(
            (read.l1_offset, read.l1_entries, read.id_bytes, read.name_bytes),
            (fields.l1_offset, 7, 1, 5)
        );
        assert_eq!((read.date_seconds, read.date_nanoseconds), (1_700_000_000, 999_999_999));
        assert_eq!((read.vm_clock_nanoseconds, read.extra_bytes), (1 << 40, extra_bytes));
        assert_eq!(read.vm_state_bytes, if vm_state_bytes == 7 { 7 } else { 0 });
        let mut known = [0; 24];
        let there = (extra_bytes as usize).min(24);
        known[..there].copy_from_slice(&bytes[40..40 + there]);
        let extra = SnapshotExtra::parse(&known, extra_bytes);
        assert_eq!(extra.vm_state_bytes, (extra_bytes >= 8).then_some(vm_state_bytes));
        assert_eq!(extra.disk_bytes, (extra_bytes >= 16).then_some(7 << 20));
        assert_eq!(extra.instructions, (extra_bytes >= 24).then_some(99));
        assert!(bytes[40 + there..40 + extra_bytes as usize].iter().all(|byte| *byte == 0xE7));
    }
}

#[test]
fn runs_are_written_as_their_entries_one_by_one() {
    for order in 0..=6 {
        let width_bits = 1usize << order;
        for (start, end) in [(0, 64), (1, 63), (3, 4), (5, 17), (8, 8), (0, 1)] {
            let count = 0x0123_4567_89AB_CDEF;
            let (mut run, mut single) = ([0; 512], [0; 512]);
            put_run(&mut run, order, start..end, count);
            (start..end).for_each(|index| put_one(&mut single, width_bits, index, count));
            assert_eq!(run, single, "order {order}, {start}..{end}");
        }
    }
}

#[test]
fn counts_lie_where_the_specification_says() {
    let written = |order, index, count| {
        let mut block = [0; 16];
        put_run(&mut block, order, index..index + 1, count);
        block
    };
    assert_eq!(written(0, 9, 1)[1], 0b10);
    assert_eq!(written(1, 3, 2)[0], 0b1000_0000);
    assert_eq!(written(2, 1, 5)[0], 0x50);
    assert_eq!(written(3, 1, 200)[1], 200);
    assert_eq!(written(4, 1, 0x0102)[2..4], [1, 2]);
    assert_eq!(written(6, 1, 0x0102)[8..], [0, 0, 0, 0, 0, 0, 1, 2]);
    // Past the end.
    assert_eq!(written(6, 2, 1), [0; 16]);
}
