//! The snapshot table of an image. The walker reads it to open an image, and the recount to find every snapshot.

use super::constants::{MAX_FILE_BYTES, SNAPSHOT_FIXED_BYTES, SNAPSHOT_KNOWN_EXTRA_BYTES};
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot::{
    MAX_EXTRA_BYTES, MAX_TABLE_BYTES, SnapshotEntry, SnapshotExtra,
};

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
            let what = "more than 1024 bytes of extra data";
            return Err(MapError::Snapshot { index, what });
        }
        // At most 64 MiB so far; an entry has less than 256 KiB.
        end = start + entry.unpadded_bytes();
        if end > readable {
            return Err(MapError::Snapshot { index, what: PAST_END });
        }
        if end > MAX_TABLE_BYTES {
            let what = "the table up to it is longer than 64 MiB";
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
