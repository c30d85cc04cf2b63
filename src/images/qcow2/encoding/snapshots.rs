//! Entries of the snapshot table (specification, "Snapshots").

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    SNAPSHOT_FIXED_BYTES, SNAPSHOT_KNOWN_EXTRA_BYTES, snapshot_entry,
};

use super::{padded, put_field};

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
        let known_bytes = SNAPSHOT_KNOWN_EXTRA_BYTES.min(self.extra_bytes as usize);
        let (entry, strings) = out.split_at_mut(SNAPSHOT_FIXED_BYTES + self.extra_bytes as usize);
        let (known, others) = entry.split_at_mut(SNAPSHOT_FIXED_BYTES + known_bytes);
        others.fill(unknown);
        let mut whole = [0; SNAPSHOT_FIXED_BYTES + SNAPSHOT_KNOWN_EXTRA_BYTES];
        let short_state = u32::try_from(self.vm_state_bytes).unwrap_or(0);
        for (field, number) in [
            (snapshot_entry::L1_TABLE_OFFSET, self.l1_offset.get()),
            (snapshot_entry::L1_SIZE, self.l1_entries.into()),
            (snapshot_entry::ID_STR_SIZE, self.id_bytes.into()),
            (snapshot_entry::NAME_SIZE, self.name_bytes.into()),
            (snapshot_entry::DATE_SEC, self.date_seconds.into()),
            (snapshot_entry::DATE_NSEC, self.date_nanoseconds.into()),
            (snapshot_entry::VM_CLOCK_NSEC, self.vm_clock_nanoseconds),
            (snapshot_entry::VM_STATE_SIZE, short_state.into()),
            (snapshot_entry::EXTRA_DATA_SIZE, self.extra_bytes.into()),
            (snapshot_entry::VM_STATE_SIZE_LARGE, self.vm_state_bytes),
            (snapshot_entry::DISK_SIZE, self.disk_bytes),
            (snapshot_entry::ICOUNT, self.instructions),
        ] {
            put_field(&mut whole, field, number);
        }
        // The extra data may end inside a field.
        known.copy_from_slice(&whole[..known.len()]);
        strings
    }
}
