//! The snapshot table (specification, "Snapshots"), entry by entry. The walker reads it to open an image, and the
//! recount to find every snapshot.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::anatomy::StructureField;
use crate::formats::error::MapError;
use crate::formats::qcow2::constants::{
    MAX_FILE_BYTES, MAX_L1_ENTRIES, SNAPSHOT_FIXED_BYTES, SNAPSHOT_KNOWN_EXTRA_BYTES,
    snapshot_entry,
};
use crate::formats::qcow2::header::Header;

/// The largest `extra_data_size` that QEMU opens (`QCOW_MAX_SNAPSHOT_EXTRA_DATA`).
pub const MAX_EXTRA_BYTES: u32 = 1024;

/// The longest snapshot table that QEMU opens (`QCOW_MAX_SNAPSHOTS_SIZE`).
pub const MAX_TABLE_BYTES: u64 = 1024 * 65_536;

/// The fixed part of a snapshot table entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotEntry {
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
    /// The length of the VM state. It is 0 if there is none, or if the length needs more than 32 bits.
    pub vm_state_bytes: u32,
    /// The length of the extra data that follows the fixed part.
    pub extra_bytes: u32,
}

impl SnapshotEntry {
    /// Parses the fixed part.
    pub fn parse(fixed: &[u8; SNAPSHOT_FIXED_BYTES]) -> Self {
        Self {
            l1_offset: HostOffset::new(snapshot_entry::L1_TABLE_OFFSET.big(fixed)),
            l1_entries: snapshot_entry::L1_SIZE.big_32(fixed),
            id_bytes: snapshot_entry::ID_STR_SIZE.big_16(fixed),
            name_bytes: snapshot_entry::NAME_SIZE.big_16(fixed),
            date_seconds: snapshot_entry::DATE_SEC.big_32(fixed),
            date_nanoseconds: snapshot_entry::DATE_NSEC.big_32(fixed),
            vm_clock_nanoseconds: snapshot_entry::VM_CLOCK_NSEC.big(fixed),
            vm_state_bytes: snapshot_entry::VM_STATE_SIZE.big_32(fixed),
            extra_bytes: snapshot_entry::EXTRA_DATA_SIZE.big_32(fixed),
        }
    }

    /// Returns the length of the whole entry, without padding.
    pub fn unpadded_bytes(&self) -> u64 {
        let strings = u64::from(self.id_bytes) + u64::from(self.name_bytes);
        SNAPSHOT_FIXED_BYTES as u64 + u64::from(self.extra_bytes) + strings
    }

    /// Returns the offsets of the id and of the name of the entry at `at`.
    pub fn strings_at(&self, at: HostOffset) -> [HostOffset; 2] {
        let id = at + SNAPSHOT_FIXED_BYTES as u64 + u64::from(self.extra_bytes);
        [id, id + u64::from(self.id_bytes)]
    }

    /// Returns the fault in the location or the length of the L1 table, if any. QEMU opens an image with such a
    /// snapshot, but refuses to use the snapshot.
    pub fn l1_fault(&self, cluster_size: ClusterSize) -> Option<&'static str> {
        if self.l1_offset.get() & cluster_size.mask() != 0 {
            return Some("the L1 table is not on a cluster boundary");
        }
        let long = self.l1_entries > MAX_L1_ENTRIES;
        long.then_some("the L1 table has more than 4194304 entries")
    }
}

/// The known fields of an entry's extra data. A field is `None` if the entry is too short for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotExtra {
    /// The length of the VM state. It overrides the length in the fixed part.
    pub vm_state_bytes: Option<u64>,
    /// The size of the disk. If this is `None`, the snapshot has the size of the active disk.
    pub disk_bytes: Option<u64>,
    /// The number of instructions that the guest has run.
    pub instructions: Option<u64>,
}

impl SnapshotExtra {
    /// Parses the first `extra_bytes` of `known`. A field that is cut is `None`.
    pub fn parse(known: &[u8; SNAPSHOT_KNOWN_EXTRA_BYTES], extra_bytes: u32) -> Self {
        let field = |field: StructureField| {
            // The fields of an entry count from its fixed part.
            let at = field.at - SNAPSHOT_FIXED_BYTES;
            let is_whole = at + field.width_bytes <= extra_bytes as usize;
            is_whole.then(|| StructureField { at, ..field }.big(known))
        };
        Self {
            vm_state_bytes: field(snapshot_entry::VM_STATE_SIZE_LARGE),
            disk_bytes: field(snapshot_entry::DISK_SIZE),
            instructions: field(snapshot_entry::ICOUNT),
        }
    }
}

const PAST_END: &str = "it lies past the end of the longest file";

/// Calls `take` with every entry of the snapshot table: its index, its host offset and its fixed part. Like QEMU at
/// open (`block/qcow2-snapshot.c`, `qcow2_do_read_snapshots`), this checks the lengths of the extra data and of the
/// table, and does not read the snapshots' L1 tables. It reads only the fixed parts; the header allows 65,536 of
/// them.
///
/// Returns the length of the table.
///
/// # Errors
/// QEMU refuses an entry, a read fails, or `take` returns an error.
pub fn each_entry<S: Storage + ?Sized>(
    storage: &S,
    header: &Header,
    mut take: impl FnMut(u32, HostOffset, &SnapshotEntry) -> Result<(), MapError>,
) -> Result<u64, MapError> {
    let table = header.snapshots_offset;
    let readable = MAX_FILE_BYTES.saturating_sub(table.get());
    let mut end = 0u64;
    for index in 0..header.snapshots {
        let start = end.next_multiple_of(8);
        if start + SNAPSHOT_FIXED_BYTES as u64 > readable {
            return Err(MapError::Snapshot { index, what: PAST_END });
        }
        let at = table + start;
        let mut fixed = [0; SNAPSHOT_FIXED_BYTES];
        storage.read_at(at, &mut fixed)?;
        let entry = SnapshotEntry::parse(&fixed);
        if entry.extra_bytes > MAX_EXTRA_BYTES {
            let what = "more than 1024 bytes of extra data ('qemu-img check -r all' removes them)";
            return Err(MapError::Snapshot { index, what });
        }
        // At most 64 MiB so far; an entry has less than 256 KiB.
        end = start + entry.unpadded_bytes();
        if end > readable {
            return Err(MapError::Snapshot { index, what: PAST_END });
        }
        if end > MAX_TABLE_BYTES {
            let what = "the table up to it is longer than 64 MiB \
                        ('qemu-img check -r all' removes it and those behind it)";
            return Err(MapError::Snapshot { index, what });
        }
        take(index, at, &entry)?;
    }
    Ok(end)
}

/// Returns the extra data of the entry at `at`.
///
/// # Errors
/// A read fails.
pub fn extra_of<S: Storage + ?Sized>(
    storage: &S,
    at: HostOffset,
    entry: &SnapshotEntry,
) -> Result<SnapshotExtra, MapError> {
    let mut known = [0; SNAPSHOT_KNOWN_EXTRA_BYTES];
    storage.read_at(at + SNAPSHOT_FIXED_BYTES as u64, &mut known)?;
    Ok(SnapshotExtra::parse(&known, entry.extra_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_strings_and_extra_data() {
        let entry = SnapshotEntry {
            id_bytes: 1,
            name_bytes: 5,
            extra_bytes: 16,
            ..SnapshotEntry::default()
        };
        assert_eq!(entry.unpadded_bytes(), 62);
    }

    #[test]
    fn extra_data_that_are_cut_inside_a_field_do_not_have_it() {
        let known: [u8; SNAPSHOT_KNOWN_EXTRA_BYTES] =
            std::array::from_fn(|at| u8::from(at % 8 == 7));
        let [one, cut] = [24, 23].map(|extra_bytes| SnapshotExtra::parse(&known, extra_bytes));
        assert_eq!(
            (one.vm_state_bytes, one.disk_bytes, one.instructions),
            (Some(1), Some(1), Some(1))
        );
        assert_eq!(cut, SnapshotExtra { instructions: None, ..one });
        assert_eq!(SnapshotExtra::parse(&known, 7), SnapshotExtra::default());
    }
}
