//! The rules by which QEMU refuses to use a table entry of a qcow2 image. They judge the words of an entry alone.

use std::ops::Range;

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    COPIED, INCOMPATIBLE_DATA_FILE, INCOMPATIBLE_EXTENDED_L2, L2_COMPRESSED, L2_ZERO, OFFSET_MASK,
};
use crate::images::image::Image;

use super::rules::FirstBytes;
use crate::images::rule::BrokenRule;

/// The header on which the meaning of table entries depends. QEMU opens the image.
pub(in crate::images) struct EntryRules<'i>(FirstBytes<'i>);

const L2_TABLE_OFFSET: BrokenRule = "L2 table off a cluster boundary";
const CLUSTER_OFFSET: BrokenRule = "cluster off a cluster boundary";
const ZERO_IN_V2: BrokenRule = "zero flag in version 2";
const BITMAP: BrokenRule = "contradictory subcluster bitmap";
const DATA_FILE_OFFSET: BrokenRule = "cluster at another offset of the data file";
const DATA_FILE_COMPRESSED: BrokenRule = "compressed cluster with a data file";

/// The names of all rules.
pub const ENTRY_RULES: [BrokenRule; 6] =
    [L2_TABLE_OFFSET, CLUSTER_OFFSET, ZERO_IN_V2, BITMAP, DATA_FILE_OFFSET, DATA_FILE_COMPRESSED];

impl<'i> EntryRules<'i> {
    /// Reads the header of an image.
    pub(in crate::images) fn new(image: &'i Image) -> Self {
        Self(FirstBytes::read(image))
    }

    fn word(&self, at: HostOffset) -> u64 {
        self.0.image().number(at, 8)
    }

    fn is_off_boundary(&self, offset: u64) -> bool {
        !offset.is_multiple_of(self.0.cluster_bytes())
    }

    /// Returns the rule that the L1 entry at `at` breaks (QEMU `block/qcow2-cluster.c`, `qcow2_get_host_offset`).
    pub(in crate::images) fn broken_l1(&self, at: HostOffset) -> Option<BrokenRule> {
        self.is_off_boundary(self.word(at) & OFFSET_MASK).then_some(L2_TABLE_OFFSET)
    }

    /// Returns the rule that the L2 entry breaks whose subcluster bitmap lies at `bitmap`.
    pub(in crate::images) fn broken_bitmap(
        &self,
        bitmap: HostOffset,
        guest: &Range<u64>,
    ) -> Option<BrokenRule> {
        let at = bitmap.get().checked_sub(8)?;
        self.broken_l2(HostOffset::new(at), guest)
    }

    /// Returns the rule that the L2 entry at `at`, for the cluster `guest`, breaks (QEMU `block/qcow2.h`,
    /// `qcow2_get_cluster_type`; `block/qcow2-cluster.c`, `qcow2_get_subcluster_range_type` and
    /// `qcow2_get_host_offset`).
    pub(in crate::images) fn broken_l2(
        &self,
        at: HostOffset,
        guest: &Range<u64>,
    ) -> Option<BrokenRule> {
        let word = self.word(at);
        let data_file = self.0.has(INCOMPATIBLE_DATA_FILE);
        if word & L2_COMPRESSED != 0 {
            return data_file.then_some(DATA_FILE_COMPRESSED);
        }
        let host = word & OFFSET_MASK;
        let mut allocated = host != 0 || data_file && word & COPIED != 0;
        if self.0.has(INCOMPATIBLE_EXTENDED_L2) {
            let bitmap = self.word(at + 8);
            let (stored, zero) = (bitmap & 0xFFFF_FFFF, bitmap >> 32);
            if stored & zero != 0 || !allocated && stored != 0 {
                return Some(BITMAP);
            }
        } else if word & L2_ZERO != 0 {
            if !self.0.is_v3() {
                return Some(ZERO_IN_V2);
            }
            allocated = host != 0;
        }
        if !allocated {
            None
        } else if self.is_off_boundary(host) {
            Some(CLUSTER_OFFSET)
        } else {
            (data_file && host != guest.start).then_some(DATA_FILE_OFFSET)
        }
    }
}
