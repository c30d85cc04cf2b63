//! Opening an image.

use crate::head::Head;
use crate::qcow2::header::{Geometry, Header, INCOMPATIBLE_DATA_FILE};
use crate::qcow2::snapshot::SnapshotEntry;
use crate::qcow2::units::HostOffset;
use crate::snapshot_table;
use crate::storage::Storage;

use super::MapError;

/// An opened image: its header, checked, and where its bytes come from.
#[derive(Debug)]
pub struct Disk<'s, S: Storage + ?Sized> {
    pub(super) storage: &'s S,
    header: Header,
}

impl<'s, S: Storage + ?Sized> Disk<'s, S> {
    /// Opens the image in `storage`, with the checks that QEMU makes.
    ///
    /// # Errors
    /// What is not a qcow2 image, is malformed in its header or its snapshot table, or uses a feature
    /// that is not supported: encryption, a backing file, an external data file.
    pub fn open(storage: &'s S) -> Result<Self, MapError> {
        let Head { header, .. } = Head::read(storage)?;
        if header.backing_file_offset.get() != 0 {
            return Err(MapError::Unsupported("backing file"));
        }
        if header.incompatible & INCOMPATIBLE_DATA_FILE != 0 {
            return Err(MapError::Unsupported("external data file"));
        }
        snapshot_table::each_entry(storage, &header, |_, _, _| Ok(()))?;
        Ok(Self { storage, header })
    }

    /// The disk as it was when the snapshot at `index` of the snapshot table was taken.
    ///
    /// # Errors
    /// There is no such snapshot, or it is malformed, or a read failed. Where QEMU would read what an L1
    /// table is too short for as zeros, this is an error too.
    pub fn snapshot(&self, index: u32) -> Result<Self, MapError> {
        let mut found = Err(MapError::Snapshot { index, what: "there is no such snapshot" });
        snapshot_table::each_entry(self.storage, &self.header, |at_index, at, entry| {
            if at_index == index {
                found = self.snapshot_header(index, at, entry);
            }
            Ok(())
        })?;
        found.map(|header| Self { storage: self.storage, header })
    }

    /// The header that the image would have were the snapshot its disk.
    fn snapshot_header(
        &self,
        index: u32,
        at: HostOffset,
        entry: &SnapshotEntry,
    ) -> Result<Header, MapError> {
        let geometry = self.geometry();
        let extra = snapshot_table::extra_of(self.storage, at, entry)?;
        let size_bytes = extra.disk_bytes.unwrap_or(self.virtual_size_bytes());
        let fault = if size_bytes >= 1 << 63 {
            Some("the size of its disk is 2^63 or more")
        } else if u64::from(entry.l1_entries) < geometry.l1_entries_for(size_bytes) {
            Some("the L1 table is too short for the size of its disk")
        } else {
            entry.l1_fault(geometry.cluster_size)
        };
        match fault {
            Some(what) => Err(MapError::Snapshot { index, what }),
            None => {
                let (l1_offset, l1_entries) = (entry.l1_offset, entry.l1_entries);
                Ok(Header { size_bytes, l1_offset, l1_entries, ..self.header.clone() })
            }
        }
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// What decides the meaning of the tables.
    #[inline]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.header.geometry
    }

    /// The size of the disk that a guest sees, a multiple of 512.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.header.virtual_size_bytes()
    }
}
