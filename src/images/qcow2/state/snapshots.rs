//! The internal snapshots that an image has.

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::SNAPSHOT_V3_EXTRA_BYTES as V3_EXTRA_BYTES;
use crate::images::content::WriteNumber;

use super::l1::L1;
use super::place::Place;

/// The snapshots of an image, and where their table lies.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// The snapshots, and behind them spare ones whose buffers are reused.
    pub all: Vec<Snapshot>,
    pub live: usize,
    /// Where the snapshot table lies.
    pub table: Place,
    /// Snapshots taken so far: ids are not used again.
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
    /// The disk's size when it was taken.
    pub size_bytes: u64,
    /// Its id, from 1.
    pub number: u32,
    /// The length of its VM state.
    pub vm_state_bytes: u64,
    pub details: SnapshotDetails,
}

/// What a snapshot says of itself, and what it holds beside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotDetails {
    /// How many bytes of extra data its entry has; in version 3 at least 16. Without the disk's size
    /// among them, which takes 16, no disk may change its size while the snapshot is there.
    pub extra_bytes: u32,
    /// The state of the guest's memory and devices, where it is saved.
    pub vm_state: Option<VmState>,
    /// How long the id is, which is a number in decimal with zeros before it. It is at least as long as
    /// the number, or empty where no other is.
    pub id_bytes: u16,
    /// How long the name is, which is the same number.
    pub name_bytes: u16,
    /// Date, clock and instruction count are not zero.
    pub timed: bool,
}

impl SnapshotDetails {
    /// Of a snapshot that nothing is asked of.
    pub const PLAIN: Self = Self {
        extra_bytes: V3_EXTRA_BYTES,
        vm_state: None,
        id_bytes: 1,
        name_bytes: 1,
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
    /// How many clusters of it are written.
    pub clusters: u64,
    /// log2 of the distance from one to the next in clusters: the state has holes, and may be longer
    /// than 4 GiB.
    pub spread_bits: u32,
    /// Which write they are.
    pub write: WriteNumber,
}
