//! The bytes between the stamps of guest data. No byte of the fill is 0, so a reader that returns zeros for a part of
//! the data is found. An image refers to the fill, which costs no copy.
//!
//! Some clusters of more than 64 KiB are deep: they have data behind their first 64 KiB, where other clusters have only
//! zeros and a stamp at the end. So a reader that drops these bytes is found. Beside the stamps at its edges, a deep
//! cluster has a stamp at the start of each of its parts, and fill in its first and in its last 64 KiB. A part has 64
//! KiB. In a cluster of more than 2 MiB, it is a 32nd of the cluster, which bounds the cost of the cluster.

use std::ops::Range;
use std::sync::LazyLock;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::GuestOffset;

use super::entropy::Entropy;
use super::{STAMP_BYTES, WriteNumber};

/// The number of bytes at the beginning of a cluster that the fill covers at most; zeros follow. QEMU's default cluster
/// size has all its bytes filled, and larger ones do not make exported images large.
pub const MAX_FILL_BYTES: usize = 64 << 10;

/// The number of different fills. Two clusters have the same one only by chance.
const FILLS: usize = 1 << 13;
/// The distance in bytes between the beginnings of two fills.
const FILL_STRIDE_BYTES: usize = 8;

/// Bytes in random order, none of them 0. The process makes them once.
static NOISE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut entropy = Entropy::new(0x66_69_6c_6c);
    let length = MAX_FILL_BYTES + FILLS * FILL_STRIDE_BYTES;
    let not_zero = |byte: u8| if byte == 0 { 0xff } else { byte };
    let words = (0..length / 8).flat_map(|_| entropy.next_u64().to_le_bytes().map(not_zero));
    words.collect()
});

/// Returns the bytes of the fill in a part of a cluster, without the zeros that follow it. `guest` is the first byte of
/// the cluster, and `part` counts from there.
pub fn fill(guest: GuestOffset, write: WriteNumber, part: Range<usize>) -> &'static [u8] {
    // Sizes are powers of two from 512 on: the low bits of an offset say nothing.
    let mixed = (guest.get() >> 9 ^ u64::from(write.0) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let first = (mixed >> 48) as usize % FILLS * FILL_STRIDE_BYTES;
    let end = part.end.min(MAX_FILL_BYTES);
    let start = part.start.min(end);
    &NOISE[first + start..first + end]
}

/// Returns the part of a piece of data that lies between the stamps at its edges. The piece has 512 bytes at least.
pub fn between_stamps(piece: &Range<usize>) -> Range<usize> {
    piece.start + STAMP_BYTES..piece.end - STAMP_BYTES
}

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

    /// Returns the offset in the cluster at which the fill of its tail begins, and the bytes of this fill. `guest` is
    /// the first byte of the cluster.
    pub fn tail_fill(self, guest: GuestOffset, write: WriteNumber) -> (u64, &'static [u8]) {
        let part: Range<usize> = between_stamps(&(0..MAX_FILL_BYTES));
        let tail = fill(guest + self.tail_at(), write, part);
        (self.tail_at() + STAMP_BYTES as u64, tail)
    }

    /// Returns the offsets in the cluster of two short reads: one of an inner stamp, whose position changes from
    /// cluster to cluster, and one of bytes of the tail. Each read has the length of a stamp.
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
    fn a_fill_has_no_zeros_and_differs_from_cluster_to_cluster() {
        let whole =
            |cluster: u64, write| fill(GuestOffset::new(cluster << 9), WriteNumber(write), 0..512);
        assert!(!whole(3, 1).contains(&0));
        let mut different: Vec<_> = (0..64).flat_map(|it| [whole(it, 1), whole(it, 2)]).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 120, "{}", different.len());
    }

    #[test]
    fn a_part_is_cut_at_the_end_of_the_fill() {
        let part = |part| fill(GuestOffset::ZERO, WriteNumber(1), part);
        let whole = part(0..1 << 21);
        assert_eq!(whole.len(), MAX_FILL_BYTES);
        assert_eq!(part(16..500), &whole[16..500]);
        assert!(part(MAX_FILL_BYTES + 1..1 << 21).is_empty());
    }

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
