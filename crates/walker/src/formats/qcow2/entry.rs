//! Entries of L1 and L2 tables (specification, "Cluster mapping").

use super::constants::{COPIED, L2_COMPRESSED, L2_ZERO, OFFSET_MASK};
use super::geometry::{Geometry, Version};
use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;

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
}
