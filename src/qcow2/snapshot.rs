//! Entries of the snapshot table (specification, "Snapshots").

use bytes::{Buf, BufMut};

use super::units::HostOffset;

/// The fixed part of an entry.
pub const FIXED_BYTES: usize = 40;
/// The largest `extra_data_size` that QEMU opens (`QCOW_MAX_SNAPSHOT_EXTRA_DATA`).
pub const MAX_EXTRA_BYTES: u32 = 1024;

/// The fixed part of a snapshot table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotEntry {
    /// Where the snapshot's L1 table lies.
    pub l1_offset: HostOffset,
    /// Its entries.
    pub l1_entries: u32,
    /// The length of the id string.
    pub id_bytes: u16,
    /// The length of the name.
    pub name_bytes: u16,
    /// The length of the extra data that follows the fixed part.
    pub extra_bytes: u32,
}

impl SnapshotEntry {
    /// From the fixed part's bytes.
    pub fn parse(fixed: &[u8; FIXED_BYTES]) -> Self {
        let mut bytes = fixed.as_slice();
        let l1_offset = HostOffset::new(bytes.get_u64());
        let l1_entries = bytes.get_u32();
        let id_bytes = bytes.get_u16();
        let name_bytes = bytes.get_u16();
        // Date, time of the guest's clock and the length of the VM state: nothing is mapped by them.
        bytes.advance(4 + 4 + 8 + 4);
        let extra_bytes = bytes.get_u32();
        Self { l1_offset, l1_entries, id_bytes, name_bytes, extra_bytes }
    }

    /// The length of the whole entry, padded to 8.
    pub fn length_bytes(&self) -> u64 {
        let strings = u64::from(self.id_bytes) + u64::from(self.name_bytes);
        (FIXED_BYTES as u64 + u64::from(self.extra_bytes) + strings).next_multiple_of(8)
    }

    /// Writes the fixed part; dates and VM state are zero.
    pub fn write(&self, out: &mut impl BufMut) {
        out.put_u64(self.l1_offset.get());
        out.put_u32(self.l1_entries);
        out.put_u16(self.id_bytes);
        out.put_u16(self.name_bytes);
        out.put_bytes(0, 4 + 4 + 8 + 4);
        out.put_u32(self.extra_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let entry = SnapshotEntry {
            l1_offset: HostOffset::new(0x30000),
            l1_entries: 7,
            id_bytes: 1,
            name_bytes: 5,
            extra_bytes: 16,
        };
        let mut bytes = Vec::new();
        entry.write(&mut bytes);
        assert_eq!(bytes.len(), FIXED_BYTES);
        assert_eq!(SnapshotEntry::parse(bytes.as_slice().try_into().unwrap()), entry);
        assert_eq!(entry.length_bytes(), 64);
    }
}
