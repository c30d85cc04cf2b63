//! The guest bytes that a record of the journal maps, and the bytes of the file that hold their data.

use std::ops::Range;

use crate::disk::clusters::ClusterSize;

use super::journal::JournalRecord;

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
