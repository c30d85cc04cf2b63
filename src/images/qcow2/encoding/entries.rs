//! Entries of L1 and L2 tables (specification, "L1 table entry", "L2 table entry").

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{COPIED, L2_COMPRESSED, L2_ZERO};

/// The length of a sector, the unit of lengths in descriptors of compressed clusters.
const SECTOR_BYTES: u64 = 512;

const fn flag(bit: u64, is_set: bool) -> u64 {
    if is_set { bit } else { 0 }
}

/// Returns an L1 entry that points to an L2 table.
pub fn l1_entry(table: HostOffset, copied: bool) -> u64 {
    table.get() + flag(COPIED, copied)
}

/// Returns the L2 entry of a host cluster. Under extended L2, the bitmap states the content.
pub fn allocated(host: HostOffset, copied: bool) -> u64 {
    host.get() + flag(COPIED, copied)
}

/// Returns the L2 entry of a cluster that reads as zeros, with or without a host cluster; not under extended L2.
pub fn zeros(host: Option<HostOffset>, copied: bool) -> u64 {
    let allocation = host.map_or(0, |host| allocated(host, copied));
    allocation + L2_ZERO
}

/// Returns the L2 entry of a compressed cluster. Its payload has `length_bytes` (at least 1) from `offset` on. The
/// descriptor has the offset in its lowest bits, and above it the number of sectors after the first one
/// (specification, "Compressed Clusters Descriptor").
pub fn compressed(offset: HostOffset, length_bytes: u32, cluster_size: ClusterSize) -> u64 {
    let offset_bits = 62 - (cluster_size.bits() - 8);
    let in_first_sector = offset.get() % SECTOR_BYTES;
    let sectors = (in_first_sector + u64::from(length_bytes)).div_ceil(SECTOR_BYTES);
    L2_COMPRESSED + (sectors.saturating_sub(1) << offset_bits) + offset.get()
}

/// The states of the 32 subclusters of a cluster. Bit i stands for subcluster i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subclusters {
    /// The subclusters whose data lie in the host cluster.
    pub allocated: u32,
    /// The subclusters that read as zeros.
    pub zero: u32,
}

impl Subclusters {
    /// Every subcluster is allocated.
    pub const ALL_ALLOCATED: Self = Self { allocated: u32::MAX, zero: 0 };
    /// Every subcluster reads as zeros.
    pub const ALL_ZERO: Self = Self { allocated: 0, zero: u32::MAX };

    /// Returns the second half of an extended L2 entry (specification, "Extended L2 Entries").
    pub fn bitmap(self) -> u64 {
        u64::from(self.zero) * (1 << 32) + u64::from(self.allocated)
    }
}
