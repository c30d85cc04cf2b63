//! Every bound on what a program may do, each with its reason. A program that asks for more is cut
//! to these, never rejected.

use crate::qcow2::header::{Geometry, MAX_L1_ENTRIES, MAX_REFCOUNT_TABLE_BYTES};

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

/// The longest compressed payload: 64 KiB that cannot be compressed, and the zeros of a 2 MiB cluster
/// behind them.
pub const MAX_PAYLOAD_BYTES: usize = 80 << 10;
/// The largest tolerance for growth of the refcount table, in clusters: what a program's operand can
/// say, and enough for a table to grow into it more than once.
pub const MAX_TABLE_TOLERANCE: u64 = 3;
/// How many operations a program can have; libFuzzer's default `-max_len` of 4,096 gives 509.
pub const MAX_OPERATIONS: usize = 4096;
/// How many layers a program's backing chain can have, the image itself among them.
pub const MAX_LAYERS: usize = 4;
/// How many images a chain of files can have, each of them opened because the one above names it.
pub const MAX_FILE_LAYERS: usize = 64;
/// How often the refcount table may move before the fixpoint is declared broken. Two moves are enough:
/// see `build::refcounts`.
pub const MAX_TABLE_ROUNDS: u32 = 16;
/// The steps that one walk may take for each byte of tables that it could read, and for each extent.
/// A walk that takes more hangs.
pub const FUEL_PER_UNIT: u64 = 4;
/// The steps that any walk may take.
pub const FUEL_BASE: u64 = 4096;
/// How many references to clusters, and how many runs of counts, a recount keeps: 4 TiB of data in
/// 64 KiB clusters, and some GiB of memory. An image of 33 MiB can ask for a thousand times as much, by
/// naming one table again and again.
pub const MAX_RECOUNTED: usize = 1 << 26;
/// How far into a compressed cluster the loop reads: all that most shapes fill (`content`), and zeros
/// behind it. A 2 MiB cluster takes a millisecond to inflate.
pub const MAX_INFLATED_BYTES: u64 = 16 << 10;
/// How many entries the log of a run keeps; a person reads a few hundred of them, a test all.
pub const MAX_LOGGED: usize = 1 << 16;
/// How many fields and entries of an image are kept, to be attacked: more than the operations of most programs
/// write, and some MiB.
pub const MAX_ELEMENTS: usize = 1 << 16;
/// How many extents of a walk are waited for by who wants to know what it reads.
pub const MAX_WATCHED_EXTENTS: usize = 4096;
/// How much of a file the embedded loop takes for an input: as much as libFuzzer does.
pub const MAX_INPUT_BYTES: u64 = 1 << 20;
/// How many fields and entries of each image are explained: more than anybody reads.
pub const MAX_EXPLAINED_ENTRIES: usize = 4096;
/// How many references and runs of counts of an image are explained: those of a file that is an input, and more.
pub const MAX_EXPLAINED_RUNS: usize = 1 << 18;
/// How many extents are explained: more than any program's disk has, of which each cluster has 32 subclusters.
pub const MAX_EXPLAINED_EXTENTS: usize = 1 << 18;
/// The steps that a walk may take that is explained: none is waited for longer than a second.
pub const EXPLAINED_FUEL: u64 = 1 << 24;
/// How many times all reducers of a minimization run: the second time they seldom find anything.
pub const MAX_MINIMIZE_ROUNDS: u32 = 16;
