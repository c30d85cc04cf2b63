//! Snapshots. At each moment, every count is at least as high as the number of references in the file, and an entry
//! with the flag COPIED names a cluster with one reference: a power cut leaves leaks at most.
//!
//! # Arithmetic
//! As in `references`.

use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::qcow2::constants::{
    COPIED, MAX_SNAPSHOTS, SNAPSHOT_FIXED_BYTES, SNAPSHOT_V3_EXTRA_BYTES, header,
};
use qcowfuzz::formats::qcow2::snapshot;
use qcowfuzz::formats::qcow2::snapshot::SnapshotEntry;
use qcowfuzz::formats::qcow2::table::HostTable;

use super::tables::{SIZE_AT, WrittenTables};
use crate::{WriteError, WriterFault};

/// The offset of the header's field `nb_snapshots`, with `snapshots_offset` behind it.
const SNAPSHOTS_AT: HostOffset = HostOffset::new(header::NB_SNAPSHOTS.at as u64);

/// A snapshot, with the bytes of its entry in the table.
#[derive(Debug)]
struct StoredSnapshot {
    at: HostOffset,
    entry: SnapshotEntry,
    bytes: Vec<u8>,
}

impl StoredSnapshot {
    /// Returns the number that is the snapshot's id; 0 if the id is none.
    fn number(&self) -> u64 {
        let start = SNAPSHOT_FIXED_BYTES.saturating_add(self.entry.extra_bytes as usize);
        let id = self.bytes.get(start..start.saturating_add(usize::from(self.entry.id_bytes)));
        let id = id.and_then(|id| std::str::from_utf8(id).ok());
        id.and_then(|id| id.parse().ok()).unwrap_or(0)
    }
}

impl WrittenTables<'_> {
    /// Takes a snapshot of the active disk, with a copy of its L1 table.
    pub(super) fn take_snapshot(&mut self) -> Result<(), WriteError> {
        if self.data_file().is_some() {
            // Both disks would have the same bytes of the data file.
            return Err(WriteError::Unsupported("snapshots of an image with a data file"));
        }
        if self.header.snapshots >= MAX_SNAPSHOTS {
            return Err(WriteError::Unsupported("more than 65536 snapshots"));
        }
        let active = HostTable::active_l1(&self.header);
        let references = self.references(active)?;
        if !self.has(WriterFault::SnapshotNotCounted) {
            self.raise(&references)?;
        }
        let l1_entries = self.header.l1_entries;
        let l1_offset = self.copy_l1(active, l1_entries)?;
        // The raised counts must be in the file before the flags are cleared.
        self.flush()?;
        if !self.has(WriterFault::SnapshotKeepsCopied) {
            self.clear_copied(active, true)?;
        }
        let mut snapshots = self.stored_snapshots()?;
        let last = snapshots.iter().map(StoredSnapshot::number).max().unwrap_or(0);
        let id = last.saturating_add(1).to_string();
        let bytes = entry_bytes((l1_offset, l1_entries), &id, self.header.size_bytes);
        snapshots.push(StoredSnapshot {
            at: HostOffset::ZERO,
            entry: SnapshotEntry::default(),
            bytes,
        });
        self.replace_snapshot_table(&snapshots)
    }

    /// Gives the active disk the size and a copy of the L1 table of a snapshot.
    pub(super) fn apply_snapshot(&mut self, index: u32) -> Result<(), WriteError> {
        if !self.bitmaps.all.is_empty() {
            return Err(WriteError::Unsupported("applied snapshots beside bitmaps"));
        }
        let StoredSnapshot { at, entry, .. } = self.snapshot(index)?;
        let extra = snapshot::extra_of(self.file, at, &entry)?;
        let size_bytes = match extra.disk_bytes {
            Some(size_bytes) if !self.has(WriterFault::AppliedSizeIgnored) => size_bytes,
            _ => self.header.size_bytes,
        };
        let (active, applied) =
            (HostTable::active_l1(&self.header), HostTable::snapshot_l1(&entry));
        let old_references = self.references(active)?;
        self.raise(&self.references(applied)?)?;
        let entries = u32::try_from(self.l1_entries_for(size_bytes)?)
            .map_err(|_| WriteError::TooLong)?
            .max(entry.l1_entries);
        let l1_offset = match self.has(WriterFault::AppliedTableShared) {
            true => applied.start,
            false => self.copy_l1(applied, entries)?,
        };
        self.clear_copied(applied, false)?;
        self.header.size_bytes = size_bytes;
        (self.header.l1_offset, self.header.l1_entries) = (l1_offset, entries);
        // All fields in one write: a power cut leaves the old values or the new ones, never a mix. Between the size and
        // the L1 table is the method of encryption, which is none.
        let mut fields = [0; 24];
        fields[..8].copy_from_slice(&size_bytes.to_be_bytes());
        fields[12..16].copy_from_slice(&entries.to_be_bytes());
        fields[16..].copy_from_slice(&l1_offset.get().to_be_bytes());
        self.flush()?;
        self.write(SIZE_AT, &fields)?;
        self.lower(&old_references)?;
        self.free_table(active.start, active.length_bytes)
    }

    /// Deletes a snapshot.
    pub(super) fn delete_snapshot(&mut self, index: u32) -> Result<(), WriteError> {
        if self.has(WriterFault::SnapshotNotDeleted) {
            return Ok(());
        }
        let deleted = HostTable::snapshot_l1(&self.snapshot(index)?.entry);
        let references = self.references(deleted)?;
        if self.has(WriterFault::DeletedEarly) {
            self.set_copied(&references)?;
            self.lower(&references)?;
        }
        let mut snapshots = self.stored_snapshots()?;
        if (index as usize) < snapshots.len() {
            snapshots.remove(index as usize);
        }
        self.replace_snapshot_table(&snapshots)?;
        if !self.has(WriterFault::DeletedEarly) {
            if !self.has(WriterFault::CopiedStaysCleared) {
                self.set_copied(&references)?;
            }
            self.lower(&references)?;
        }
        self.free_table(deleted.start, deleted.length_bytes)
    }

    fn snapshot(&self, index: u32) -> Result<StoredSnapshot, WriteError> {
        let snapshot = self.stored_snapshots()?.into_iter().nth(index as usize);
        snapshot.ok_or(WriteError::Malformed("there is no such snapshot"))
    }

    fn stored_snapshots(&self) -> Result<Vec<StoredSnapshot>, WriteError> {
        let mut snapshots = Vec::new();
        snapshot::each_entry(self.file, &self.header, |_, at, entry| {
            // The table has bounds: at most 64 MiB.
            let mut bytes = vec![0; usize::try_from(entry.unpadded_bytes()).unwrap_or(0)];
            self.file.read_at(at, &mut bytes)?;
            snapshots.push(StoredSnapshot { at, entry: *entry, bytes });
            Ok(())
        })?;
        Ok(snapshots)
    }

    /// Copies an L1 table to new clusters, without the flag COPIED and with room for `entries`.
    fn copy_l1(&mut self, table: HostTable, entries: u32) -> Result<HostOffset, WriteError> {
        let clusters = self.cluster_size().clusters_for(u64::from(entries) * 8);
        if clusters == 0 {
            return Ok(HostOffset::ZERO);
        }
        let new = self.allocate(clusters)?;
        self.copy_table((table.start, table.length_bytes), (new, clusters), |entries| {
            for entry in entries.as_chunks_mut::<8>().0 {
                *entry = (u64::from_be_bytes(*entry) & !COPIED).to_be_bytes();
            }
        })?;
        Ok(new)
    }

    /// Writes another snapshot table to the end of the file, and frees the old one.
    fn replace_snapshot_table(&mut self, snapshots: &[StoredSnapshot]) -> Result<(), WriteError> {
        let old = self.header.snapshots_offset;
        let old_bytes = snapshot::each_entry(self.file, &self.header, |_, _, _| Ok(()))?;
        let mut bytes = Vec::new();
        for snapshot in snapshots {
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes.extend_from_slice(&snapshot.bytes);
            if let Some(last) = bytes.last_mut().filter(|_| self.has(WriterFault::SnapshotRenamed))
            {
                *last ^= 1;
            }
        }
        let new = match self.cluster_size().clusters_for(bytes.len() as u64) {
            0 => HostOffset::ZERO,
            clusters => {
                let new = self.allocate(clusters)?;
                self.write(new, &bytes)?;
                new
            }
        };
        self.header.snapshots_offset = new;
        self.header.snapshots = u32::try_from(snapshots.len()).map_err(|_| WriteError::TooLong)?;
        // Both fields in one write, as for other tables.
        let mut fields = [0; 12];
        fields[..4].copy_from_slice(&self.header.snapshots.to_be_bytes());
        fields[4..].copy_from_slice(&new.get().to_be_bytes());
        if !self.has(WriterFault::SnapshotTableLate) {
            self.flush()?;
        }
        self.write(SNAPSHOTS_AT, &fields)?;
        self.free_table(old, old_bytes)
    }
}

/// Returns the entry of a new snapshot, whose name is its id.
fn entry_bytes((l1, entries): (HostOffset, u32), id: &str, size_bytes: u64) -> Vec<u8> {
    let mut bytes = vec![0; SNAPSHOT_FIXED_BYTES];
    // An id is a number: it has 20 digits at most.
    let id_bytes = (id.len() as u16).to_be_bytes();
    bytes[..8].copy_from_slice(&l1.get().to_be_bytes());
    bytes[8..12].copy_from_slice(&entries.to_be_bytes());
    bytes[12..14].copy_from_slice(&id_bytes);
    bytes[14..16].copy_from_slice(&id_bytes);
    bytes[36..40].copy_from_slice(&SNAPSHOT_V3_EXTRA_BYTES.to_be_bytes());
    // No VM state.
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&size_bytes.to_be_bytes());
    bytes.extend_from_slice(id.as_bytes());
    bytes.extend_from_slice(id.as_bytes());
    bytes
}
