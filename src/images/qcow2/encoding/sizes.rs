//! Sizes that follow from a geometry.

use crate::disk::clusters::SUBCLUSTERS;
use crate::formats::qcow2::geometry::Geometry;

/// Sizes that follow from a geometry, for the code that builds images.
pub trait Sizes {
    /// Returns the length of an L2 entry.
    fn l2_entry_bytes(&self) -> u64;

    /// Returns log2 of the number of entries in an L2 table, which is always one cluster long.
    fn l2_bits(&self) -> u32;

    /// Returns the number of entries in an L2 table.
    fn l2_entries(&self) -> u64;

    /// Returns the number of guest bytes that an L2 table maps, at most 2^39.
    fn l2_span_bytes(&self) -> u64;

    /// Returns the size of a cell, the smallest unit of mapping: a subcluster under extended L2, otherwise a cluster.
    fn cell_bytes(&self) -> u64;

    /// Returns the number of L1 entries that a disk of `size_bytes` needs.
    fn l1_entries_for(&self, size_bytes: u64) -> u64;

    /// Returns the number of clusters that a refcount block counts: from 64 (512-byte clusters, 64-bit counts) to
    /// 2^24.
    fn refcounts_per_block(&self) -> u64;

    /// Returns the largest refcount that a block can store.
    fn max_refcount(&self) -> u64;
}

impl Sizes for Geometry {
    #[inline]
    fn l2_entry_bytes(&self) -> u64 {
        // The entry, and the bitmap of its subclusters.
        8 + if self.extended_l2 { 8 } else { 0 }
    }

    #[inline]
    fn l2_bits(&self) -> u32 {
        // A cluster has 2^cluster_bits bytes, and an entry 2^3 of them; the bitmap doubles that.
        self.cluster_size.bits() - 3 - u32::from(self.extended_l2)
    }

    #[inline]
    fn l2_entries(&self) -> u64 {
        1 << self.l2_bits()
    }

    #[inline]
    fn l2_span_bytes(&self) -> u64 {
        self.l2_entries() << self.cluster_size.bits()
    }

    #[inline]
    fn cell_bytes(&self) -> u64 {
        let cells = if self.extended_l2 { SUBCLUSTERS } else { 1 };
        self.cluster_size.bytes() >> cells.ilog2()
    }

    #[inline]
    fn l1_entries_for(&self, size_bytes: u64) -> u64 {
        size_bytes.div_ceil(self.l2_span_bytes())
    }

    #[inline]
    fn refcounts_per_block(&self) -> u64 {
        let block_bits = self.cluster_size.bytes() * 8;
        block_bits >> self.refcount_order
    }

    #[inline]
    fn max_refcount(&self) -> u64 {
        u64::MAX >> (64 - (1 << self.refcount_order))
    }
}
