//! Deep data: clusters of more than 64 KiB with data behind their first 64 KiB, where other clusters have only zeros
//! and a stamp at the end. So a reader that drops these bytes is found. Beside the stamps at its edges, a deep cluster
//! has a stamp at the start of each of its parts, and fill in its first and in its last 64 KiB. A part has 64 KiB, or a
//! 32nd of a larger cluster, so that the cost of a cluster is bounded.

use std::ops::Range;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::GuestOffset;
use crate::images::content::{STAMP_BYTES, WriteNumber};
use crate::images::fill::{MAX_FILL_BYTES, between_stamps, fill};

/// The smallest part of a deep cluster, and the length of its tail, in bytes.
const DEEP_TAIL_BYTES: u64 = MAX_FILL_BYTES as u64;
/// The largest number of parts of a cluster.
const MAX_PARTS: u64 = 32;

/// The places of the data of a deep cluster.
#[derive(Clone, Copy, Debug)]
pub struct DeepCluster {
    cluster_bytes: u64,
    part_bytes: u64,
}

impl DeepCluster {
    /// Returns the places in a cluster, or `None` if it has no bytes behind the first 64 KiB.
    pub fn new(cluster_size: ClusterSize) -> Option<Self> {
        let cluster_bytes = cluster_size.bytes();
        let part_bytes = DEEP_TAIL_BYTES.max(cluster_bytes / MAX_PARTS);
        (cluster_bytes > DEEP_TAIL_BYTES).then_some(Self { cluster_bytes, part_bytes })
    }

    /// Returns the offsets in the cluster of the stamps that are not at its edges, in ascending order.
    pub fn inner_stamps(self) -> impl Iterator<Item = u64> {
        let parts = (self.part_bytes..self.cluster_bytes).step_by(self.part_bytes as usize);
        let tail = self.tail_at();
        let own_tail = (!tail.is_multiple_of(self.part_bytes)).then_some(tail);
        parts.chain(own_tail)
    }

    /// Returns the offset in the cluster of its tail.
    pub fn tail_at(self) -> u64 {
        self.cluster_bytes - DEEP_TAIL_BYTES
    }

    /// Returns the offset in the cluster of the fill of its tail, and this fill. `guest` is the first byte of the
    /// cluster.
    pub fn tail_fill(self, guest: GuestOffset, write: WriteNumber) -> (u64, &'static [u8]) {
        let part: Range<usize> = between_stamps(&(0..MAX_FILL_BYTES));
        let tail = fill(guest + self.tail_at(), write, part);
        (self.tail_at() + STAMP_BYTES as u64, tail)
    }

    /// Returns the offsets in the cluster of two short reads: a stamp inside, which is another one in each cluster, and
    /// bytes of the tail. Each read has the length of a stamp.
    pub fn probes(self, guest: GuestOffset) -> [u64; 2] {
        let parts = self.cluster_bytes / self.part_bytes;
        let nth = guest.get() / self.cluster_bytes % (parts - 1);
        [(nth + 1) * self.part_bytes, self.tail_at() + DEEP_TAIL_BYTES / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_clusters_are_deep() {
        let stamps = |bits| {
            let deep = DeepCluster::new(ClusterSize::from_bits(bits).unwrap());
            deep.map(|deep| deep.inner_stamps().collect::<Vec<_>>())
        };
        assert_eq!(stamps(16), None);
        assert_eq!(stamps(17), Some(vec![64 << 10]));
        assert_eq!(stamps(18), Some(vec![64 << 10, 128 << 10, 192 << 10]));
        let large = stamps(25).unwrap();
        assert_eq!(large.len(), 32);
        assert_eq!(large.last(), Some(&((32 << 20) - (64 << 10))));
    }

    #[test]
    fn neighbours_are_read_at_different_stamps() {
        let deep = DeepCluster::new(ClusterSize::from_bits(21).unwrap()).unwrap();
        let probes = |cluster: u64| deep.probes(GuestOffset::new(cluster << 21));
        let inner: Vec<u64> = deep.inner_stamps().collect();
        let read: Vec<u64> = (0..31).map(|cluster| probes(cluster)[0]).collect();
        assert_eq!(read, inner);
    }
}
