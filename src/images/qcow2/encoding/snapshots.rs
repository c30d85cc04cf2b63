//! Entries of the snapshot table (specification, "Snapshots").

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{SNAPSHOT_FIXED_BYTES, SNAPSHOT_KNOWN_EXTRA_BYTES};

use super::{padded, put};

/// An entry of the snapshot table, without its strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFields {
    /// The host offset of the snapshot's L1 table.
    pub l1_offset: HostOffset,
    /// The number of entries in this L1 table.
    pub l1_entries: u32,
    /// The length of the id string.
    pub id_bytes: u16,
    /// The length of the name.
    pub name_bytes: u16,
    /// The date of the snapshot, in seconds since 1970.
    pub date_seconds: u32,
    /// The nanoseconds within this second.
    pub date_nanoseconds: u32,
    /// The running time of the guest in nanoseconds.
    pub vm_clock_nanoseconds: u64,
    /// The length of the VM state. The fixed part contains it if it fits into 32 bits, and 0 if not.
    pub vm_state_bytes: u64,
    /// The size of the disk.
    pub disk_bytes: u64,
    /// The number of instructions that the guest has run; 0 if unknown.
    pub instructions: u64,
    /// The length of the extra data: the last three fields, as far as they fit, followed by unknown data.
    pub extra_bytes: u32,
}

impl SnapshotFields {
    /// Returns the length of the whole entry, with its padding.
    pub fn length_bytes(&self) -> u64 {
        let strings = u64::from(self.id_bytes) + u64::from(self.name_bytes);
        padded(SNAPSHOT_FIXED_BYTES as u64 + u64::from(self.extra_bytes) + strings)
    }

    /// Writes the fixed part and the extra data to the beginning of `out`, and returns the rest. Unknown extra data are
    /// filled with `unknown`.
    pub fn write<'o>(&self, out: &'o mut [u8], unknown: u8) -> &'o mut [u8] {
        let (fixed, behind) = out.split_at_mut(SNAPSHOT_FIXED_BYTES);
        put(fixed, 0, &self.l1_offset.get().to_be_bytes());
        put(fixed, 8, &self.l1_entries.to_be_bytes());
        put(fixed, 12, &self.id_bytes.to_be_bytes());
        put(fixed, 14, &self.name_bytes.to_be_bytes());
        put(fixed, 16, &self.date_seconds.to_be_bytes());
        put(fixed, 20, &self.date_nanoseconds.to_be_bytes());
        put(fixed, 24, &self.vm_clock_nanoseconds.to_be_bytes());
        put(fixed, 32, &u32::try_from(self.vm_state_bytes).unwrap_or(0).to_be_bytes());
        put(fixed, 36, &self.extra_bytes.to_be_bytes());
        let (extra, strings) = behind.split_at_mut(self.extra_bytes as usize);
        extra.fill(unknown);
        let mut known = [0; SNAPSHOT_KNOWN_EXTRA_BYTES];
        put(&mut known, 0, &self.vm_state_bytes.to_be_bytes());
        put(&mut known, 8, &self.disk_bytes.to_be_bytes());
        put(&mut known, 16, &self.instructions.to_be_bytes());
        let fitting = extra.len().min(known.len());
        put(extra, 0, &known[..fitting]);
        strings
    }
}
