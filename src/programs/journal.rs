//! The journal: what each operation meant, and the host offsets that were chosen for it. It is all
//! that the reference model sees: no entry, no bit, no byte of the image.

use crate::disk::clusters::ClusterSize;
use crate::disk::clusters::GuestCluster;
use crate::disk::clusters::SubclusterRange;
use crate::disk::offsets::HostOffset;
use crate::images::content::{Shape, SubclusterChange, WriteNumber};

/// One thing that was meant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Record {
    /// Clusters hold the data of a write, one after the other in the file.
    Written {
        /// The first.
        cluster: GuestCluster,
        /// How many.
        clusters: u64,
        /// Where the first one lies.
        host: HostOffset,
        /// Which write.
        write: WriteNumber,
    },
    /// A cluster holds compressed data.
    Compressed {
        /// The cluster.
        cluster: GuestCluster,
        /// Where its payload lies.
        host: HostOffset,
        /// The payload's length.
        length_bytes: u32,
        /// What it holds.
        shape: Shape,
        /// Which write.
        write: WriteNumber,
    },
    /// A cluster reads as zeros.
    Zeroed {
        /// The cluster.
        cluster: GuestCluster,
        /// The host cluster that stays allocated for it.
        kept: Option<HostOffset>,
    },
    /// A cluster is unallocated.
    Discarded {
        /// The cluster.
        cluster: GuestCluster,
    },
    /// Subclusters of a cluster changed.
    Subclusters {
        /// The cluster.
        cluster: GuestCluster,
        /// Which of its subclusters.
        range: SubclusterRange,
        /// What became of them.
        change: SubclusterChange,
        /// The host cluster that the whole cluster has from now on, if any.
        host: Option<HostOffset>,
    },
    /// The disk has another size; what lies in whole clusters past it is unallocated.
    Resized {
        /// The size.
        size_bytes: u64,
    },
    /// The disk as it is now is kept as the last of its snapshots.
    SnapshotTaken,
    /// A snapshot is gone; those behind it move up.
    SnapshotDeleted {
        /// Its place among them.
        index: usize,
    },
    /// The disk, its size with it, is what it was when a snapshot was taken.
    SnapshotApplied {
        /// Its place among them.
        index: usize,
    },
}

/// What was meant so far, from the empty disk on.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The cluster size.
    pub cluster_size: ClusterSize,
    /// The size of the disk before the first record.
    pub size_bytes: u64,
    /// Whether the layer becomes a raw file: all that is left of it is what a guest reads.
    pub raw: bool,
    /// What was meant, in order.
    pub records: Vec<Record>,
}

/// How far a journal was.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    records: usize,
    last: Option<Record>,
}

impl Journal {
    /// How far it is.
    pub fn mark(&self) -> Mark {
        Mark { records: self.records.len(), last: self.records.last().copied() }
    }

    /// What was recorded since it was as far as `mark`; of a record that has grown since, what it grew by.
    pub fn since(&self, mark: Mark) -> impl Iterator<Item = Record> + '_ {
        let now = mark.records.checked_sub(1).and_then(|last| self.records.get(last));
        let grown = match (mark.last, now) {
            (
                Some(Record::Written { clusters: before, .. }),
                Some(Record::Written { cluster, clusters, host, write }),
            ) => {
                let more = clusters.saturating_sub(before);
                let host = host.saturating_add(self.cluster_size.saturating_bytes(before));
                let further = cluster.checked_add(before).filter(|_| more > 0);
                further.map(|cluster| Record::Written {
                    cluster,
                    clusters: more,
                    host,
                    write: *write,
                })
            }
            _ => None,
        };
        grown.into_iter().chain(self.records.iter().skip(mark.records).copied())
    }

    /// An empty one.
    pub const fn new() -> Self {
        let cluster_size = ClusterSize::SMALLEST;
        Self { cluster_size, size_bytes: 0, raw: false, records: Vec::new() }
    }

    /// Begins anew, in the buffer that is there.
    pub fn begin(&mut self, cluster_size: ClusterSize, size_bytes: u64) {
        self.cluster_size = cluster_size;
        self.size_bytes = size_bytes;
        self.raw = false;
        self.records.clear();
    }

    /// Records a cluster of a write; one that goes on where the last one ended, on the disk and in
    /// the file, belongs to the same record.
    pub fn written(&mut self, at: GuestCluster, lies_at: HostOffset, number: WriteNumber) {
        if let Some(Record::Written { cluster, clusters, host, write }) = self.records.last_mut()
            && *write == number
            && cluster.checked_add(*clusters) == Some(at)
            && host.checked_add(self.cluster_size.saturating_bytes(*clusters)) == Some(lies_at)
        {
            *clusters += 1;
            return;
        }
        let record = Record::Written { cluster: at, clusters: 1, host: lies_at, write: number };
        self.records.push(record);
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}
