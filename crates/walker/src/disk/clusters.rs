//! Typed cluster numbers and the cluster size. They offer only arithmetic with a meaning: nothing adds a guest offset
//! to a host offset, or a cluster number to a byte offset.

use crate::disk::offsets::{GuestOffset, HostOffset, quantity};

quantity! {
    /// A cluster of the virtual disk, counted from 0.
    GuestCluster, "{}"
}
quantity! {
    /// A cluster of the image file, counted from 0; cluster 0 holds the header.
    HostCluster, "{}"
}

/// A cluster size: a power of two from 512 bytes to 1 GiB. A format may allow fewer sizes. In formats other than
/// qcow2, a cluster is a block or a grain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSize {
    bits: u32,
}

impl ClusterSize {
    /// The smallest number of bits in any format.
    pub const MIN_BITS: u32 = 9;
    /// The largest number of bits in any format.
    pub const MAX_BITS: u32 = 30;

    /// 512 bytes.
    pub const SMALLEST: Self = Self { bits: Self::MIN_BITS };

    /// Creates a size from `cluster_bits`; `None` outside 9 to 30.
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits < Self::MIN_BITS || bits > Self::MAX_BITS { None } else { Some(Self { bits }) }
    }

    /// Returns `cluster_bits`, 9 to 30.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.bits
    }

    /// Returns the size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.bits
    }

    /// Returns the size in bytes as a `usize`.
    #[inline]
    pub const fn bytes_usize(self) -> usize {
        1 << self.bits
    }

    /// Returns the mask of the offset bits within a cluster.
    #[inline]
    pub const fn mask(self) -> u64 {
        self.bytes() - 1
    }

    /// Returns the distance from the first byte of the guest cluster to `offset`.
    #[inline]
    pub const fn inside(self, offset: GuestOffset) -> u64 {
        offset.get() & self.mask()
    }

    /// Reports whether a host cluster begins at `offset`.
    #[inline]
    pub const fn is_aligned(self, offset: HostOffset) -> bool {
        offset.get() & self.mask() == 0
    }

    /// Returns the first byte of the guest cluster that holds `offset`.
    #[inline]
    pub const fn cluster_start(self, offset: GuestOffset) -> GuestOffset {
        GuestOffset::new(offset.get() & !self.mask())
    }

    /// Returns the number of clusters that hold `bytes`.
    #[inline]
    pub const fn clusters_for(self, bytes: u64) -> u64 {
        (bytes >> self.bits) + if bytes & self.mask() == 0 { 0 } else { 1 }
    }

    /// Returns the host cluster that holds `offset`.
    #[inline]
    pub const fn host_cluster(self, offset: HostOffset) -> HostCluster {
        HostCluster::new(offset.get() >> self.bits)
    }

    /// Returns the guest cluster that holds `offset`.
    #[inline]
    pub const fn guest_cluster(self, offset: GuestOffset) -> GuestCluster {
        GuestCluster::new(offset.get() >> self.bits)
    }

    /// Returns the first byte of a host cluster, or the start of the last cluster below 2^64 if that is lower.
    #[inline]
    pub const fn host_offset(self, cluster: HostCluster) -> HostOffset {
        HostOffset::new(self.saturating_bytes(cluster.get()))
    }

    /// Returns the first byte of a guest cluster, or the start of the last cluster below 2^64 if that is lower.
    #[inline]
    pub const fn guest_offset(self, cluster: GuestCluster) -> GuestOffset {
        GuestOffset::new(self.saturating_bytes(cluster.get()))
    }

    /// Returns `clusters` in bytes, or the start of the last cluster below 2^64 if that is lower.
    #[inline]
    pub const fn saturating_bytes(self, clusters: u64) -> u64 {
        if clusters > u64::MAX >> self.bits { !self.mask() } else { clusters << self.bits }
    }
}

/// The number of subclusters in a cluster under extended L2.
pub const SUBCLUSTERS: u32 = 32;

/// A set of subclusters: `count` of them, every `stride`-th one from `first` on. It ends at the cluster's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubclusterRange {
    /// The first subcluster, 0 to 31.
    pub first: u32,
    /// The number of subclusters, 1 to 32.
    pub count: u32,
    /// The distance between two subclusters, 1 to 8.
    pub stride: u32,
}

impl SubclusterRange {
    /// Returns the subclusters, in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (self.first..SUBCLUSTERS).step_by(self.stride.max(1) as usize).take(self.count as usize)
    }

    /// Returns a mask in which bit i stands for subcluster i.
    pub fn mask(self) -> u32 {
        self.iter().fold(0, |mask, subcluster| mask | 1 << subcluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_sizes_are_those_of_all_formats() {
        assert!(ClusterSize::from_bits(8).is_none());
        assert!(ClusterSize::from_bits(31).is_none());
        for bits in 9..=30 {
            let size = ClusterSize::from_bits(bits).unwrap();
            assert_eq!(size.bytes(), 1 << bits);
            assert_eq!(size.clusters_for(0), 0);
            assert_eq!(size.clusters_for(1), 1);
            assert_eq!(size.clusters_for(size.bytes()), 1);
            assert_eq!(size.clusters_for(size.bytes() + 1), 2);
        }
    }

    #[test]
    fn offsets_saturate_instead_of_wrapping() {
        let size = ClusterSize::from_bits(16).unwrap();
        assert_eq!(size.host_offset(HostCluster::new(u64::MAX)).get(), !0xFFFF);
        assert_eq!(HostOffset::new(u64::MAX).checked_add(1), None);
    }
}
