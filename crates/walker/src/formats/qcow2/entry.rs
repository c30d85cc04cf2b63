//! Entries of L1 and L2 tables (specification, "Cluster mapping"), of the refcount table and of refcount blocks ("Host
//! cluster management"), and the sizes of tables that follow from a geometry.
//!
//! The build calculates these sizes with functions of its own (`images::qcow2::encoding`), so that an error on one side
//! shows as a disagreement.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{COPIED, L2_COMPRESSED, L2_ZERO, OFFSET_MASK};
use crate::formats::qcow2::geometry::{Geometry, Version};

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

/// An L1 table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Entry(pub u64);

impl L1Entry {
    /// Returns the host offset of the L2 table, or `None` without a table. Reserved bits are ignored.
    #[inline]
    pub fn table(self) -> Option<HostOffset> {
        match self.0 & OFFSET_MASK {
            0 => None,
            offset => Some(HostOffset::new(offset)),
        }
    }

    /// Reports whether the entry is COPIED: the table's refcount is exactly one.
    pub fn copied(self) -> bool {
        self.0 & COPIED != 0
    }
}

/// The cluster type that an L2 entry states. Under extended L2, the bitmap adds to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterKind {
    /// The image does not hold the cluster; a layer below may.
    Unallocated,
    /// The cluster reads as zeros and has no host cluster.
    ZeroPlain,
    /// The cluster reads as zeros and has a host cluster.
    ZeroAllocated(HostOffset),
    /// A data cluster.
    Normal(HostOffset),
    /// A compressed cluster.
    Compressed(CompressedRun),
    /// Extended L2 only: the cluster has a host cluster, and the bitmap states the type of each subcluster.
    Subclusters(HostOffset),
    /// Extended L2 only: the cluster has no host cluster, and the bitmap states which subclusters read as zeros.
    UnallocatedSubclusters,
}

/// An L2 table entry, without the bitmap that follows it under extended L2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Entry(pub u64);

impl L2Entry {
    /// Reports whether the entry is COPIED: the cluster's refcount is exactly one.
    pub fn copied(self) -> bool {
        self.0 & COPIED != 0
    }

    /// Returns the cluster type. Reserved bits are ignored, as in QEMU (`block/qcow2.h`, `qcow2_get_cluster_type`).
    /// An offset that is not on a cluster boundary is returned as it is; the caller decides what to do with it.
    ///
    /// # Errors
    /// The zero flag is set in a version 2 image.
    #[inline]
    pub fn kind(self, geometry: &Geometry) -> Result<ClusterKind, &'static str> {
        let offset = self.0 & OFFSET_MASK;
        let host = HostOffset::new(offset);
        // In a data file, 0 is an offset like any other.
        let allocated = offset != 0 || geometry.data_file && self.copied();
        if self.0 & L2_COMPRESSED != 0 {
            return Ok(ClusterKind::Compressed(CompressedRun::from_entry(self.0, geometry)));
        }
        if geometry.extended_l2 {
            return Ok(match allocated {
                false => ClusterKind::UnallocatedSubclusters,
                true => ClusterKind::Subclusters(host),
            });
        }
        if self.0 & L2_ZERO != 0 {
            if geometry.version == Version::V2 {
                return Err("the zero flag is set in a version 2 image");
            }
            return Ok(match offset {
                0 => ClusterKind::ZeroPlain,
                _ => ClusterKind::ZeroAllocated(host),
            });
        }
        Ok(match allocated {
            false => ClusterKind::Unallocated,
            true => ClusterKind::Normal(host),
        })
    }
}

/// The location of a compressed cluster's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressedRun {
    /// The first byte of the payload; it may lie anywhere in a cluster.
    pub offset: HostOffset,
    /// The number of 512-byte sectors after the sector that holds the first byte.
    pub additional_sectors: u64,
}

impl CompressedRun {
    fn from_entry(entry: u64, geometry: &Geometry) -> Self {
        let shift = Self::offset_bits(geometry.cluster_size);
        let sector_bits = geometry.cluster_size.bits() - 8;
        Self {
            offset: HostOffset::new(entry & ((1 << shift) - 1)),
            additional_sectors: (entry >> shift) & ((1 << sector_bits) - 1),
        }
    }

    /// Returns the specification's x: the number of offset bits in the descriptor, 49 to 61.
    const fn offset_bits(cluster_size: ClusterSize) -> u32 {
        70 - cluster_size.bits()
    }

    /// Returns the number of bytes that may belong to the payload, up to the end of the last sector. At most two
    /// clusters.
    pub fn length_bytes(self) -> u64 {
        (self.additional_sectors + 1) * 512 - (self.offset.get() & 511)
    }
}

/// The bitmap of an extended L2 entry. Bit i: subcluster i is allocated. Bit 32 + i: subcluster i reads as zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubclusterBitmap(pub u64);

impl SubclusterBitmap {
    /// Returns a mask in which bit i is set if subcluster i is allocated.
    #[inline]
    pub fn allocated(self) -> u32 {
        (self.0 & 0xFFFF_FFFF) as u32
    }

    /// Returns a mask in which bit i is set if subcluster i reads as zeros.
    #[inline]
    pub fn zero(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the contradiction in the bitmap, if any, of an entry with or without a host offset.
    #[inline]
    pub fn contradiction(self, has_host: bool) -> Option<&'static str> {
        if has_host && self.allocated() & self.zero() != 0 {
            Some("a subcluster is both allocated and zero")
        } else if !has_host && self.allocated() != 0 {
            Some("a subcluster is allocated, but the cluster is not")
        } else {
            None
        }
    }
}

/// Bits 9–63 of a refcount table entry: the host offset of the block.
const BLOCK_MASK: u64 = !511;

/// Returns the host offset of the block that a refcount table entry names, or `None` if it names no block.
pub fn refcount_block_offset(entry: u64) -> Option<HostOffset> {
    match entry & BLOCK_MASK {
        0 => None,
        offset => Some(HostOffset::new(offset)),
    }
}

/// Returns the refcount at `index` of `bytes`, a part of a block, or `None` past its end. Counts of less than 8 bits
/// are packed from the least significant bit of each byte; counts of 16 bits or more are big-endian.
#[inline]
pub fn refcount_at(bytes: &[u8], refcount_order: u32, index: usize) -> Option<u64> {
    if refcount_order < 3 {
        let per_byte_bits = 3 - refcount_order;
        let byte = *bytes.get(index >> per_byte_bits)?;
        let slot = index & ((1 << per_byte_bits) - 1);
        let width = 1 << refcount_order;
        return Some(u64::from(byte >> (slot * width)) & ((1 << width) - 1));
    }
    let width = 1usize << (refcount_order - 3);
    let start = index.checked_mul(width)?;
    let entry = bytes.get(start..start.checked_add(width)?)?;
    Some(entry.iter().fold(0, |count, byte| count << 8 | u64::from(*byte)))
}

/// Returns eight bytes of a block in which every entry is `count`.
#[inline]
pub fn uniform_refcounts(refcount_order: u32, count: u64) -> [u8; 8] {
    // Double the pattern until it fills the word. All entries are equal, so their order does not matter. From 16 bits
    // on, entries are big-endian, and so is the word.
    let mut word = count;
    for order in refcount_order..6 {
        word |= word << (1 << order);
    }
    word.to_be_bytes()
}

/// Calls `run` with each run of equal counts in `bytes`, a part of a block whose length is a multiple of eight: the
/// index of the first entry, the number of entries, and the count. Runs of zeros are skipped. Two neighbouring runs
/// may have the same count.
#[inline]
pub fn each_refcount_run(bytes: &[u8], refcount_order: u32, mut run: impl FnMut(u64, u64, u64)) {
    let one = uniform_refcounts(refcount_order, 1);
    let per_word = 64u64 >> refcount_order;
    for (first, word) in (0..).step_by(per_word as usize).zip(bytes.as_chunks::<8>().0) {
        if *word == [0; 8] {
            continue;
        }
        if *word == one {
            run(first, per_word, 1);
            continue;
        }
        for index in 0..per_word {
            match refcount_at(word, refcount_order, index as usize) {
                None | Some(0) => {}
                Some(count) => run(first + index, 1, count),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::qcow2::geometry::Compression;

    fn geometry(bits: u32, extended_l2: bool) -> Geometry {
        Geometry {
            version: Version::V3,
            cluster_size: ClusterSize::from_bits(bits).unwrap(),
            refcount_order: 4,
            extended_l2,
            compression: Compression::Deflate,
            data_file: false,
        }
    }

    #[test]
    fn the_descriptor_of_the_specification() {
        // 64 KiB clusters: x = 54; three sectors in all from 0x50200.
        let entry = L2Entry(L2_COMPRESSED | (2 << 54) | 0x5_0210);
        let Ok(ClusterKind::Compressed(run)) = entry.kind(&geometry(16, false)) else { panic!() };
        assert_eq!(run.offset, HostOffset::new(0x5_0210));
        assert_eq!(run.length_bytes(), 3 * 512 - 0x10);
    }

    #[test]
    fn kinds_follow_the_order_of_the_specification() {
        let standard = geometry(16, false);
        let host = HostOffset::new(0x5_0000);
        assert_eq!(L2Entry(0).kind(&standard), Ok(ClusterKind::Unallocated));
        assert_eq!(L2Entry(1).kind(&standard), Ok(ClusterKind::ZeroPlain));
        assert_eq!(L2Entry(0x5_0001).kind(&standard), Ok(ClusterKind::ZeroAllocated(host)));
        assert_eq!(L2Entry(0x5_0000).kind(&standard), Ok(ClusterKind::Normal(host)));
        assert!(matches!(
            L2Entry(L2_COMPRESSED | 1).kind(&standard),
            Ok(ClusterKind::Compressed(_))
        ));
        // Reserved bits 1–8 and 56–61 are masked; bit 0 means nothing under extended L2.
        let reserved = 0x3F00_0000_0000_01FE;
        assert_eq!(L2Entry(0x5_0000 | reserved).kind(&standard), Ok(ClusterKind::Normal(host)));
        let extended = geometry(16, true);
        assert_eq!(L2Entry(0x5_0001).kind(&extended), Ok(ClusterKind::Subclusters(host)));
        assert_eq!(L2Entry(1).kind(&extended), Ok(ClusterKind::UnallocatedSubclusters));
        let v2 = Geometry { version: Version::V2, ..standard };
        assert!(L2Entry(1).kind(&v2).is_err());
    }

    #[test]
    fn counts_lie_where_the_specification_says() {
        // Narrow counts are packed from the least significant bit; wide ones are big-endian.
        assert_eq!(refcount_at(&[0, 0b10], 0, 9), Some(1));
        assert_eq!(refcount_at(&[0b1000_0000], 1, 3), Some(2));
        assert_eq!(refcount_at(&[0xA0], 2, 1), Some(0xA));
        assert_eq!(refcount_at(&[0, 200], 3, 1), Some(200));
        assert_eq!(refcount_at(&[0, 0, 0x12, 0x34], 4, 1), Some(0x1234));
        assert_eq!(refcount_at(&[0xFF; 8], 6, 0), Some(u64::MAX));
        assert_eq!(refcount_at(&[0xFF; 8], 6, 1), None);
    }

    #[test]
    fn runs_agree_with_single_counts() {
        for order in 0..=6 {
            for pattern in
                [[0; 8], uniform_refcounts(order, 1), [0x11; 8], [0, 0, 0, 0, 0, 0, 0, 0xF0]]
            {
                let part = [[0; 8], pattern, uniform_refcounts(order, 1)].concat();
                let entries = (part.len() * 8) >> order;
                let singles =
                    (0..entries).filter_map(|at| Some((at, refcount_at(&part, order, at)?)));
                let singles: Vec<_> = singles.filter(|(_, count)| *count > 0).collect();
                let mut runs = Vec::new();
                each_refcount_run(&part, order, |first, length, count| {
                    runs.extend((first..first + length).map(|index| (index as usize, count)));
                });
                assert_eq!(runs, singles, "order {order}, {pattern:?}");
            }
        }
    }
}
