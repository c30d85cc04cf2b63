//! The journal: a record of the meaning of each operation, with the host offsets that the build chose for it. The
//! reference model sees only the journal: no entry and no byte of the image.

use std::ops::Range;

use crate::base::file_parts::FileParts;
use crate::disk::clusters::{ClusterSize, GuestCluster, SubclusterRange};
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::images::content::unstamped::UnstampedData;
use crate::images::content::{CompressedContent, SubclusterChange, WriteContent, WriteNumber};

/// The meaning of one operation, or of one cluster of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JournalRecord {
    /// Consecutive clusters hold the data of one write. Their host clusters are consecutive too.
    Written {
        /// The first cluster.
        cluster: GuestCluster,
        /// The number of clusters.
        clusters: u64,
        /// The host offset of the first cluster.
        host: HostOffset,
        /// The number of the write.
        write: WriteNumber,
    },
    /// A cluster holds compressed data.
    Compressed {
        /// The guest cluster.
        cluster: GuestCluster,
        /// The host offset of its payload.
        host: HostOffset,
        /// The length of the payload in bytes.
        length_bytes: u32,
        /// Its content.
        content: CompressedContent,
        /// The number of the write.
        write: WriteNumber,
    },
    /// A cluster reads as zeros.
    Zeroed {
        /// The guest cluster.
        cluster: GuestCluster,
        /// The host cluster that stays allocated for it, if any.
        kept: Option<HostOffset>,
    },
    /// A cluster is unallocated.
    Discarded {
        /// The guest cluster.
        cluster: GuestCluster,
    },
    /// Subclusters of a cluster changed.
    Subclusters {
        /// The guest cluster.
        cluster: GuestCluster,
        /// The changed subclusters.
        range: SubclusterRange,
        /// The change.
        change: SubclusterChange,
        /// The host offset of the whole cluster from now on, if it has one.
        host: Option<HostOffset>,
    },
    /// The disk has a new size; whole clusters past it become unallocated.
    Resized {
        /// The new size.
        size_bytes: u64,
    },
    /// The current state of the disk becomes the last of its snapshots.
    SnapshotTaken,
    /// A snapshot is deleted; the ones behind it move up.
    SnapshotDeleted {
        /// The index of the snapshot in the list.
        index: usize,
    },
    /// The disk returns to the state and the size that it had when a snapshot was taken.
    SnapshotApplied {
        /// The index of the snapshot in the list.
        index: usize,
    },
}

/// All records of a layer, beginning with an empty disk.
#[derive(Clone, Debug)]
pub struct Journal {
    /// The cluster size.
    pub cluster_size: ClusterSize,
    /// The smallest unit of mapping in bytes: a cluster, or a subcluster.
    pub cell_bytes: u64,
    /// The size of the disk before the first record.
    pub size_bytes: u64,
    /// The format of the layer's image. A raw file keeps only the data that a guest reads.
    pub format: ImageFormat,
    /// The image is a raw file that has holes where the records leave no data.
    pub has_holes: bool,
    /// The parts of the disk by files. In a part without a table, host offsets in the records mean nothing.
    pub parts: FileParts,
    /// The records, in order.
    pub records: Vec<JournalRecord>,
    /// The content of compressed clusters that have no shape.
    pub given: Vec<u8>,
    /// The data without stamps, by the index in their writes.
    pub unstamped: Vec<UnstampedData>,
}

/// A position in a journal.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    records: usize,
    last: Option<JournalRecord>,
}

impl Journal {
    /// Returns the current end of the journal.
    pub fn mark(&self) -> Mark {
        Mark { records: self.records.len(), last: self.records.last().copied() }
    }

    /// Returns the records since `mark`. If the last record before `mark` has grown since then, the first one returned
    /// is its growth.
    pub fn since(&self, mark: Mark) -> impl Iterator<Item = JournalRecord> + '_ {
        let now = mark.records.checked_sub(1).and_then(|last| self.records.get(last));
        let grown = match (mark.last, now) {
            (
                Some(JournalRecord::Written { clusters: before, .. }),
                Some(JournalRecord::Written { cluster, clusters, host, write }),
            ) => {
                let more = clusters.saturating_sub(before);
                let host = *host + self.cluster_size.saturating_bytes(before);
                let further = cluster.checked_add(before).filter(|_| more > 0);
                further.map(|cluster| JournalRecord::Written {
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

    /// Reports whether some write gave the first cluster of the disk a look, or data without stamps, which may look
    /// like anything.
    pub fn had_look_at_start(&self) -> bool {
        let is_like_a_file = |write: WriteNumber| {
            matches!(write.content(), WriteContent::Look(_) | WriteContent::Unstamped(_))
        };
        self.records.iter().any(|record| match record {
            JournalRecord::Written { cluster, write, .. } => {
                *cluster == GuestCluster::new(0) && is_like_a_file(*write)
            }
            _ => false,
        })
    }

    /// Creates an empty journal.
    pub const fn new() -> Self {
        let cluster_size = ClusterSize::SMALLEST;
        let (format, parts) = (ImageFormat::Qcow2, FileParts::TABLED);
        let records = Vec::new();
        let given = Vec::new();
        let unstamped = Vec::new();
        let (cell_bytes, size_bytes, has_holes) = (cluster_size.bytes(), 0, false);
        Self {
            cluster_size,
            cell_bytes,
            size_bytes,
            format,
            has_holes,
            parts,
            records,
            given,
            unstamped,
        }
    }

    /// Begins again, and reuses the buffer.
    pub fn begin(
        &mut self,
        (cluster_size, cell_bytes, size_bytes): (ClusterSize, u64, u64),
        (format, parts): (ImageFormat, FileParts),
    ) {
        (self.cluster_size, self.cell_bytes) = (cluster_size, cell_bytes);
        self.size_bytes = size_bytes;
        (self.format, self.has_holes, self.parts) = (format, false, parts);
        self.records.clear();
        self.given.clear();
        self.unstamped.clear();
    }

    /// Keeps the content of a compressed cluster that has no shape.
    pub fn keep_content(&mut self, bytes: &[u8]) -> CompressedContent {
        // A program has far less than 4 GiB of payloads (`limits`).
        let start = self.given.len() as u32;
        self.given.extend_from_slice(bytes);
        CompressedContent::Given { start, length_bytes: bytes.len() as u32 }
    }

    /// Records a cluster of a write. A cluster that continues the last record, on the disk and in the file, joins that
    /// record.
    pub fn written(&mut self, at: GuestCluster, lies_at: HostOffset, number: WriteNumber) {
        self.written_run((at, 1), lies_at, number);
    }

    /// Records consecutive clusters of a write, whose host clusters are consecutive: the first, and their number.
    pub fn written_run(
        &mut self,
        (at, more): (GuestCluster, u64),
        lies_at: HostOffset,
        number: WriteNumber,
    ) {
        if let Some(JournalRecord::Written { cluster, clusters, host, write }) =
            self.records.last_mut()
            && *write == number
            && cluster.checked_add(*clusters) == Some(at)
            && host.checked_add(self.cluster_size.saturating_bytes(*clusters)) == Some(lies_at)
        {
            *clusters += more;
            return;
        }
        let record =
            JournalRecord::Written { cluster: at, clusters: more, host: lies_at, write: number };
        self.records.push(record);
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

/// The guest clusters that a record maps, and the bytes of the file that hold their data.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) guest: Range<u64>,
    pub(crate) host: Option<Range<u64>>,
}

impl Placed {
    /// Returns the guest and host bytes that `record` maps, or `None` if it changes the disk as a whole.
    pub(crate) fn of(record: &JournalRecord, cluster_size: ClusterSize) -> Option<Self> {
        let cluster_bytes = cluster_size.bytes();
        let (cluster, clusters, host) = match *record {
            JournalRecord::Written { cluster, clusters, host, .. } => {
                (cluster, clusters, Some((host, cluster_size.saturating_bytes(clusters))))
            }
            JournalRecord::Compressed { cluster, host, length_bytes, .. } => {
                (cluster, 1, Some((host, u64::from(length_bytes))))
            }
            JournalRecord::Zeroed { cluster, kept } => {
                (cluster, 1, kept.map(|host| (host, cluster_bytes)))
            }
            JournalRecord::Subclusters { cluster, host, .. } => {
                (cluster, 1, host.map(|host| (host, cluster_bytes)))
            }
            JournalRecord::Discarded { cluster } => (cluster, 1, None),
            JournalRecord::Resized { .. }
            | JournalRecord::SnapshotTaken
            | JournalRecord::SnapshotDeleted { .. }
            | JournalRecord::SnapshotApplied { .. } => return None,
        };
        let start = cluster_size.guest_offset(cluster).get();
        let guest = start..start.saturating_add(cluster_size.saturating_bytes(clusters));
        let host = host.map(|(host, length)| host.get()..(host + length).get());
        Some(Self { guest, host })
    }
}
