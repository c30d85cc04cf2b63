//! What a program may build: a program that asks for more is cut to these limits, never rejected.

use crate::disk::limits::MAX_LAYERS;
use crate::formats::qcow2::constants::{MAX_L1_ENTRIES, MAX_REFCOUNT_TABLE_BYTES};
use crate::formats::qcow2::geometry::Geometry;
use crate::images::qcow2::Sizes;

/// What one run may cost: a set for each fuzz target that runs programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest L1 table, in clusters. 512 let 64 KiB clusters and larger reach the format's own
    /// bound (32 MiB); below, it keeps the refcounts of the table itself cheap.
    pub l1_clusters: u64,
    /// The longest file, in clusters. qemu-img check counts every cluster of a file, holes too: this
    /// keeps it at milliseconds, and still reaches past 4 GiB and over 64 refcount table clusters.
    pub host_clusters: u64,
    /// How many clusters all operations together may write, zero, discard or allocate, clusters of VM state
    /// and entries of bitmaps among them.
    pub touched_clusters: u64,
    /// How many layers a chain may have, the image itself among them.
    pub layers: usize,
    /// How many bytes of payload `compress_as` may place: unlike `compress`, it has some of 64 KiB, each
    /// of which the walker may read.
    pub payload_bytes: u64,
    /// How many snapshots there may be at a time.
    pub snapshots: usize,
    /// How many bitmaps there may be at a time.
    pub bitmaps: usize,
    /// How many bits a bitmap may have. QEMU has all of them in memory whenever an image is open, and
    /// goes through them once; of more than 2^41 it aborts. 2^27 bits are 16 MiB, and 256 PiB of disk
    /// at the largest granularity; with 512-byte clusters, a table of 512 clusters.
    pub bitmap_bits: u64,
    /// How many times a program may build and verify before its end.
    pub checkpoints: u32,
    /// How many walks, look-ups and reads a program may ask for in one build.
    pub questions: usize,
    /// How many attacks a program may make on what it has built.
    pub attacks: usize,
}

impl Limits {
    /// For programs whose images are walked.
    pub const WALKED: Self = Self {
        l1_clusters: 512,
        host_clusters: 1 << 18,
        touched_clusters: 1 << 12,
        layers: MAX_LAYERS,
        payload_bytes: 1 << 20,
        snapshots: 8,
        bitmaps: 8,
        bitmap_bits: 1 << 27,
        checkpoints: 4,
        questions: 32,
        attacks: 0,
    };

    /// For programs whose images are damaged: as those that are walked.
    pub const HOSTILE: Self = Self { questions: 0, attacks: 16, ..Self::WALKED };

    /// For the allocator alone: L1 tables of 65,536 clusters, and refcount tables as long as QEMU
    /// opens.
    pub const ALLOCATED: Self = Self {
        l1_clusters: 1 << 16,
        host_clusters: 1 << 32,
        touched_clusters: 1 << 14,
        layers: 1,
        payload_bytes: 1 << 20,
        snapshots: 16,
        bitmaps: 16,
        bitmap_bits: 1 << 32,
        checkpoints: 4,
        questions: 0,
        attacks: 0,
    };

    /// How many L1 entries an image may have: the format's bound, and `l1_clusters`.
    pub fn l1_entries(&self, geometry: &Geometry) -> u64 {
        let fitting = geometry.cluster_size.saturating_bytes(self.l1_clusters) / 8;
        fitting.min(u64::from(MAX_L1_ENTRIES))
    }

    /// How many clusters a file may have: `host_clusters`, and what a refcount table of the size that
    /// QEMU opens can count. An eighth of the table is kept back: the refcount structures themselves
    /// come last, and are not limited.
    pub fn file_clusters(&self, geometry: &Geometry) -> u64 {
        let table_bytes = MAX_REFCOUNT_TABLE_BYTES / 8 * 7;
        let table_bytes = table_bytes.min(MAX_REFCOUNT_TABLE_BYTES - geometry.cluster_size.bytes());
        let counted = (table_bytes / 8).saturating_mul(geometry.refcounts_per_block());
        self.host_clusters.min(counted)
    }
}
