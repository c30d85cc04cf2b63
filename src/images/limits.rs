//! Limits on programs. A program that asks for more is cut to these limits, and never rejected.

use crate::base::limits::MAX_LAYERS;
use crate::formats::qcow2::constants::{MAX_L1_ENTRIES, MAX_REFCOUNT_TABLE_BYTES};
use crate::formats::qcow2::geometry::Geometry;
use crate::images::qcow2::Sizes;

/// The end of the host offsets that a file with a far gap may have. Entries have 56 bits for an offset. The last TiB is
/// kept back for the refcount structures, which need much less.
const MAX_HOST_BYTES: u64 = (1 << 56) - (1 << 40);

/// The limits of one fuzz target's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest L1 table, in clusters. With 512, clusters of 64 KiB and more reach the format's own bound (32
    /// MiB). For smaller clusters, it keeps the refcounts of the table itself cheap.
    pub l1_clusters: u64,
    /// The longest file, in clusters. `qemu-img check` counts every cluster of a file, also in holes. This limit
    /// keeps it at milliseconds, and allows files past 4 GiB and refcount tables of more than 64 clusters.
    pub host_clusters: u64,
    /// The number of clusters that all operations together may write, zero, discard or allocate. Clusters of VM state
    /// and entries of bitmaps count, too.
    pub touched_clusters: u64,
    /// The number of clusters that runs of preallocation may allocate. Each build writes, reads and counts their
    /// entries, and nothing else. With clusters of 64 KiB, they make up 1 GiB.
    pub preallocated_clusters: u64,
    /// The number of layers in a chain, the image itself included.
    pub layers: usize,
    /// The number of bytes of payload that `compress_as` may place. Unlike `compress`, it has payloads of 64 KiB, and
    /// the walker may read each of them. A compressed grain counts with its whole length, because the walker inflates
    /// all of it. Unstamped data count with the number of their bytes in each cluster, and a deep cluster counts with
    /// 16 KiB.
    pub payload_bytes: u64,
    /// The number of snapshots at a time.
    pub snapshots: usize,
    /// The number of bitmaps at a time.
    pub bitmaps: usize,
    /// The number of bits in a bitmap. QEMU keeps all bits in memory while an image is open, and scans them once;
    /// above 2^41 it aborts. 2^27 bits are 16 MiB, enough for 256 PiB of disk at the largest granularity. With
    /// 512-byte clusters, they need a table of 512 clusters.
    pub bitmap_bits: u64,
    /// The number of checkpoints: builds and verifications before the end of the program.
    pub checkpoints: u32,
    /// The number of walks, look-ups and reads that a program may ask for in one build.
    pub questions: usize,
    /// The number of attacks that a program may make.
    pub attacks: usize,
    /// The number of requests to an engine that writes.
    pub requests: usize,
    /// The number of these requests that are cuts. Each costs a copy of the image.
    pub cuts: usize,
    /// The number of requests that may be in flight together.
    pub in_flight: u8,
    /// The number of bytes of the disk that all requests together may zero, discard or add: whole clusters of 2 MiB,
    /// too. They may write a sixteenth of it, because each byte is written, logged, read and compared.
    pub request_bytes: u64,
}

impl Limits {
    /// Limits of programs whose images are walked.
    pub const WALKED: Self = Self {
        l1_clusters: 512,
        host_clusters: 1 << 18,
        touched_clusters: 1 << 12,
        preallocated_clusters: 1 << 14,
        layers: MAX_LAYERS,
        payload_bytes: 1 << 20,
        snapshots: 8,
        bitmaps: 8,
        bitmap_bits: 1 << 27,
        checkpoints: 4,
        questions: 32,
        attacks: 0,
        requests: 0,
        cuts: 0,
        in_flight: 0,
        request_bytes: 0,
    };

    /// Limits of programs whose images are damaged: [`Self::WALKED`] with attacks.
    pub const HOSTILE: Self = Self { attacks: 16, ..Self::WALKED };

    /// Limits of programs whose images an engine writes: [`Self::WALKED`] with requests, and without questions.
    pub const WRITTEN: Self = Self {
        questions: 0,
        requests: 32,
        cuts: 4,
        in_flight: 4,
        request_bytes: 4 << 20,
        ..Self::WALKED
    };

    /// Limits of programs whose images are damaged before an engine writes to them: [`Self::WRITTEN`] with attacks. Too
    /// little is known about these images to judge cuts and requests in flight.
    pub const HOSTILE_WRITTEN: Self = Self { attacks: 16, cuts: 0, in_flight: 1, ..Self::WRITTEN };

    /// Limits of programs for the allocator alone: L1 tables of 65,536 clusters, and refcount tables as long as QEMU
    /// opens.
    pub const ALLOCATED: Self = Self {
        l1_clusters: 1 << 16,
        host_clusters: 1 << 32,
        touched_clusters: 1 << 14,
        preallocated_clusters: 1 << 16,
        layers: 1,
        payload_bytes: 1 << 20,
        snapshots: 16,
        bitmaps: 16,
        bitmap_bits: 1 << 32,
        checkpoints: 4,
        questions: 0,
        attacks: 0,
        requests: 0,
        cuts: 0,
        in_flight: 0,
        request_bytes: 0,
    };

    /// Reports whether a target with these limits asks an engine about its images.
    pub fn asks_engines(&self) -> bool {
        self.questions > 0 || self.attacks > 0 || self.requests > 0
    }

    /// Returns the number of L1 entries that an image may have: the lower of the format's bound and `l1_clusters`.
    pub fn l1_entries(&self, geometry: &Geometry) -> u64 {
        let fitting = geometry.cluster_size.saturating_bytes(self.l1_clusters) / 8;
        fitting.min(u64::from(MAX_L1_ENTRIES))
    }

    /// Returns the number of clusters that a file may have: the lower of `host_clusters` and the clusters that the
    /// largest refcount table of QEMU can count. An eighth of that table is kept back for the refcount structures,
    /// which are allocated last and without a limit.
    pub fn file_clusters(&self, geometry: &Geometry) -> u64 {
        self.host_clusters.min(counted_clusters(geometry))
    }

    /// Returns the number of clusters that a file with a far gap may have: as many as the largest refcount table of
    /// QEMU can count, and entries can name. No target limits it further, because no target's cost depends on the
    /// length of a file.
    pub fn far_clusters(geometry: &Geometry) -> u64 {
        counted_clusters(geometry).min(MAX_HOST_BYTES >> geometry.cluster_size.bits())
    }
}

/// Returns the number of clusters that the largest refcount table of QEMU can count, if an eighth of it is kept back.
fn counted_clusters(geometry: &Geometry) -> u64 {
    let table_bytes = MAX_REFCOUNT_TABLE_BYTES / 8 * 7;
    // At least one cluster of the table, too. Only formats without refcounts have clusters of more than half of it.
    let kept = geometry.cluster_size.bytes().min(MAX_REFCOUNT_TABLE_BYTES / 2);
    let table_bytes = table_bytes.min(MAX_REFCOUNT_TABLE_BYTES - kept);
    (table_bytes / 8).saturating_mul(geometry.refcounts_per_block())
}
