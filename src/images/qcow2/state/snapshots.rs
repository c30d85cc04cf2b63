//! The internal snapshots of an image.

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::SNAPSHOT_V3_EXTRA_BYTES as V3_EXTRA_BYTES;
use crate::images::content::WriteNumber;

use super::given::GivenString;
use super::l1::L1;
use super::place::TablePlace;

/// The snapshots of an image, and the location of their table.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// The snapshots, followed by spare ones whose buffers are reused.
    pub all: Vec<Snapshot>,
    pub live: usize,
    /// The location of the snapshot table.
    pub table: TablePlace,
    /// The number of snapshots taken so far. Ids are not used again.
    pub taken: u32,
}

impl Snapshots {
    pub fn clear(&mut self) {
        (self.live, self.table, self.taken) = (0, (0, 0), 0);
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub fn live(&self) -> &[Snapshot] {
        &self.all[..self.live]
    }

    pub fn table_bytes(&self) -> u64 {
        self.live().iter().map(|one| one.entry(HostOffset::ZERO).length_bytes()).sum()
    }
}

#[derive(Debug, Default)]
pub struct Snapshot {
    pub l1: L1,
    /// The size of the disk when the snapshot was taken.
    pub size_bytes: u64,
    /// The number of the snapshot, from 1. It is the id.
    pub number: u32,
    /// The length of the VM state.
    pub vm_state_bytes: u64,
    pub details: SnapshotDetails,
}

/// The details of a snapshot beside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotDetails {
    /// The length of the entry's extra data; in version 3 at least 16. If they are too short for the disk's size,
    /// which needs 16 bytes, the disk keeps its size while the snapshot exists.
    pub extra_bytes: u32,
    /// The saved state of the guest's memory and devices, if any.
    pub vm_state: Option<VmState>,
    /// The length of the id, which is a number in decimal with leading zeros. It is at least as long as the number,
    /// or empty if no other id is.
    pub id_bytes: u16,
    /// The length of the name, which is the same number.
    pub name_bytes: u16,
    /// The id, if the program gives it. Its length is `id_bytes`.
    pub id: Option<GivenString>,
    /// The name, if the program gives it. Its length is `name_bytes`.
    pub name: Option<GivenString>,
    /// Date, clock and instruction count are not zero.
    pub timed: bool,
}

impl SnapshotDetails {
    /// The details of a plain snapshot.
    pub const PLAIN: Self = Self {
        extra_bytes: V3_EXTRA_BYTES,
        vm_state: None,
        id_bytes: 1,
        name_bytes: 1,
        id: None,
        name: None,
        timed: false,
    };
}

impl Default for SnapshotDetails {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// A VM state to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmState {
    /// The number of written clusters.
    pub clusters: u64,
    /// log2 of the distance between two written clusters, in clusters. The state has holes, and may be longer than 4
    /// GiB.
    pub spread_bits: u32,
    /// The number of the write.
    pub write: WriteNumber,
}
