//! Tests of bounds that neither `qemu_images.rs` nor the recount can see.

use super::*;
use crate::disk::clusters::ClusterSize;
use crate::formats::qcow2::geometry::{Compression, Geometry};
use crate::images::limits::Limits;
use crate::images::qcow2::ImagePlan;
use crate::images::qcow2::refcounts::RefcountPlacement;

const WRITE: WriteNumber = WriteNumber(1);

/// Returns a builder of a disk of `size_bytes` in clusters of 512 bytes. The file may grow by at most
/// `host_clusters`.
fn builder(version: Version, size_bytes: u64, host_clusters: u64) -> Builder {
    let geometry = Geometry {
        version,
        cluster_size: ClusterSize::SMALLEST,
        refcount_order: 4,
        extended_l2: false,
        compression: Compression::Deflate,
        data_file: false,
    };
    let refcounts = RefcountPlacement::default();
    let plan = ImagePlan { refcounts, ..ImagePlan::new(geometry, size_bytes) };
    let mut builder = Builder::new();
    builder.begin(plan, Limits::WALKED);
    let begun = builder.placement.append_at();
    builder.begin(plan, Limits { host_clusters: begun + host_clusters, ..Limits::WALKED });
    builder
}

fn plain(granularity_bits: u8) -> NewBitmap {
    NewBitmap { granularity_bits, ..NewBitmap::default() }
}

fn allocated(builder: &Builder) -> u64 {
    builder.placement.clusters.runs().iter().map(|run| run.end - run.first).sum()
}

/// The guest bytes of one table cluster: one bit for each sector, 4096 bits for each entry, 64 entries.
const SPAN: u64 = 64 * 4096 * 512;

#[test]
fn everything_is_freed_again() {
    let mut builder = builder(Version::V3, SPAN * 3, 1000);
    let before = allocated(&builder);
    assert!(builder.bitmap(plain(9)));
    assert!(builder.bitmap(plain(31)));
    assert!(builder.fill_bitmap(0, 100, 32, Fill::Bits, WRITE));
    assert!(builder.fill_bitmap(0, 110, 9, Fill::Ones, WRITE));
    assert!(!builder.fill_bitmap(0, 110, 9, Fill::Ones, WRITE));
    // Three clusters of one table, one of the other, the directory, and bits.
    assert_eq!(allocated(&builder) - before, 3 + 1 + 1 + 23);
    assert!(builder.delete_bitmap(0, Leaving::Nothing));
    assert_eq!(allocated(&builder) - before, 1 + 1);
    assert!(builder.delete_bitmap(0, Leaving::Nothing));
    assert_eq!(allocated(&builder), before);
    assert_eq!((builder.bitmaps_autoclear(), builder.bitmaps_extension()), (0, None));
}

#[test]
fn tables_follow_the_disk() {
    let mut builder = builder(Version::V3, SPAN, 3000);
    assert!(builder.bitmap(plain(9)));
    assert!(builder.fill_bitmap(0, 60, 4, Fill::Bits, WRITE));
    let entries = |builder: &Builder| {
        let bitmap = &builder.bitmaps.live()[0];
        (bitmap.table_entries, bitmap.table.1, bitmap.entries.len())
    };
    for (size, expected) in [(SPAN + 1, (64, 1, 4)), (SPAN + 512, (65, 2, 4)), (1, (0, 0, 0))] {
        // A disk of less than a sector is empty.
        let expected = if size == 1 { (65, 2, 4) } else { expected };
        assert!(builder.resize(size).is_some());
        assert_eq!(entries(&builder), expected, "{size}");
        assert_eq!(builder.bitmaps.live()[0].in_use, size == 1);
    }
    // A bitmap in use stays as it is.
    assert!(builder.resize(SPAN).is_some());
    assert_eq!(entries(&builder), (65, 2, 4));
}

#[test]
fn entries_past_a_smaller_disk_are_freed() {
    let mut builder = builder(Version::V3, SPAN, 3000);
    assert!(builder.bitmap(plain(9)));
    let before = allocated(&builder);
    assert!(builder.fill_bitmap(0, 30, 10, Fill::Bits, WRITE));
    assert!(builder.resize(SPAN / 2).is_some());
    assert_eq!(allocated(&builder), before + 2);
}

#[test]
fn a_bitmap_that_cannot_follow_is_in_use() {
    let mut builder = builder(Version::V3, SPAN * 2, 9);
    // The L1 table does not shrink, and does not have to grow.
    assert!(builder.resize(SPAN).is_some());
    assert!(builder.bitmap(plain(9)));
    while builder.placement.allocate(1, Default::default()).is_some() {}
    assert!(builder.resize(SPAN * 2).is_some());
    let bitmap = &builder.bitmaps.live()[0];
    assert_eq!((bitmap.in_use, bitmap.table.1, bitmap.table_entries), (true, 1, 64));
}

#[test]
fn what_cannot_be_done_changes_nothing() {
    let mut full = builder(Version::V3, SPAN, 1);
    let before = allocated(&full);
    // There is room for the table, but not for the directory.
    assert!(!full.bitmap(plain(9)));
    assert_eq!((full.bitmap_count(), allocated(&full)), (0, before));

    let mut version_2 = builder(Version::V2, SPAN, 9);
    assert!(!version_2.bitmap(plain(9)) && !version_2.delete_bitmap(0, Leaving::Bit));

    let mut empty = builder(Version::V3, 511, 9);
    assert!(!empty.bitmap(plain(9)));
    assert!(empty.bitmap(NewBitmap { in_use: true, ..plain(9) }));

    let mut large = builder(Version::V3, SPAN, 900);
    large.limits.bitmap_bits = SPAN / 512;
    assert!(large.bitmap(plain(9)));
    assert_eq!(large.resize(SPAN + 512), None);
    assert!(large.bitmap(plain(10)));
    assert!(large.delete_bitmap(0, Leaving::Nothing));
    assert!(large.resize(SPAN + 512).is_some());
    assert!(!large.bitmap(plain(9)));
}

#[test]
fn names_differ() {
    let mut builder = builder(Version::V3, SPAN, 900);
    for wanted in [0, 0, 1, 1, 1023, 2] {
        assert!(builder.bitmap(NewBitmap { name_bytes: wanted, ..plain(31) }));
    }
    let lengths: Vec<u16> = builder.bitmaps.live().iter().map(|one| one.name_bytes).collect();
    assert_eq!(lengths, [0, 1, 1, 1, 1023, 2]);
    // The tenth has a number of two digits.
    assert!(builder.delete_bitmap(0, Leaving::Extension));
    for _ in 6..10 {
        assert!(builder.bitmap(NewBitmap { name_bytes: 1, ..plain(31) }));
    }
    assert_eq!(builder.bitmaps.live().last().map(|one| one.name_bytes), Some(2));
}
