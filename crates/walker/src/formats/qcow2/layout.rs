//! Sizes that follow from a geometry, for the code that reads images. The build calculates them with functions of its
//! own (`images::qcow2::encoding`), so that an error on one side shows as a disagreement.

use super::geometry::Geometry;

/// Sizes that follow from a geometry.
pub trait Layout {
    /// Returns the length of an L2 entry.
    fn l2_entry_bytes(&self) -> u64;

    /// Returns log2 of the number of entries in an L2 table, which is always one cluster long.
    fn l2_bits(&self) -> u32;

    /// Returns the number of entries in an L2 table.
    fn l2_entries(&self) -> u64;

    /// Returns log2 of the guest bytes that an L2 table maps, at most 39.
    fn l2_span_bits(&self) -> u32;

    /// Returns the number of guest bytes that an L2 table maps.
    fn l2_span_bytes(&self) -> u64;

    /// Returns log2 of [`Layout::cell_bytes`].
    fn cell_bits(&self) -> u32;

    /// Returns the size of a cell, the smallest unit of mapping: a subcluster under extended L2, otherwise a cluster.
    fn cell_bytes(&self) -> u64;

    /// Returns the number of L1 entries that a disk of `virtual_size_bytes` needs.
    fn l1_entries_for(&self, virtual_size_bytes: u64) -> u64;

    /// Returns the number of clusters that a refcount block counts: from 64 (512-byte clusters, 64-bit counts) to
    /// 2^24.
    fn refcounts_per_block(&self) -> u64;

    /// Returns the largest refcount that a block can store.
    fn max_refcount(&self) -> u64;
}

impl Layout for Geometry {
    #[inline]
    fn l2_entry_bytes(&self) -> u64 {
        if self.extended_l2 { 16 } else { 8 }
    }

    #[inline]
    fn l2_bits(&self) -> u32 {
        self.cluster_size.bits() - if self.extended_l2 { 4 } else { 3 }
    }

    #[inline]
    fn l2_entries(&self) -> u64 {
        1 << self.l2_bits()
    }

    #[inline]
    fn l2_span_bits(&self) -> u32 {
        self.l2_bits() + self.cluster_size.bits()
    }

    #[inline]
    fn l2_span_bytes(&self) -> u64 {
        1 << self.l2_span_bits()
    }

    #[inline]
    fn cell_bits(&self) -> u32 {
        self.cluster_size.bits() - if self.extended_l2 { 5 } else { 0 }
    }

    #[inline]
    fn cell_bytes(&self) -> u64 {
        1 << self.cell_bits()
    }

    #[inline]
    fn l1_entries_for(&self, virtual_size_bytes: u64) -> u64 {
        virtual_size_bytes.div_ceil(self.l2_span_bytes())
    }

    #[inline]
    fn refcounts_per_block(&self) -> u64 {
        (self.cluster_size.bytes() * 8) >> self.refcount_order
    }

    #[inline]
    fn max_refcount(&self) -> u64 {
        let bits = 1u32 << self.refcount_order;
        if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
    }
}
