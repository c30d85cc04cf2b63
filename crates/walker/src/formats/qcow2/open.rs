//! An open qcow2 image, and its snapshots.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::layout::Layout;
use crate::formats::qcow2::snapshot::SnapshotEntry;
use crate::formats::qcow2::snapshot_table;

use super::latest::LatestEntries;

/// A layer that is a qcow2 image.
#[derive(Debug)]
pub(crate) struct Qcow2<'s, S: Storage + ?Sized> {
    pub(super) image: &'s S,
    /// The storage of guest data: the image itself, or its external data file. `None` if the data file is not
    /// available.
    pub(super) data: Option<&'s S>,
    pub(crate) header: Header,
    /// See [`Qcow2::look_for_host_holes`].
    pub(super) has_host_holes: bool,
    /// The last table entries that were read through `header`. They must be reset when `header` changes.
    pub(super) latest: LatestEntries,
}

impl<'s, S: Storage + ?Sized> Qcow2<'s, S> {
    /// Changes to the header that `of` returns for the host offset and the fixed part of the snapshot at `index`.
    pub(super) fn change_header(
        &mut self,
        index: u32,
        of: impl Fn(&Self, HostOffset, &SnapshotEntry) -> Result<Header, MapError>,
    ) -> Result<(), MapError> {
        let mut found = Err(MapError::Snapshot { index, what: "there is no such snapshot" });
        snapshot_table::each_entry(self.image, &self.header, |at_index, at, entry| {
            if at_index == index {
                found = of(self, at, entry);
            }
            Ok(())
        })?;
        self.header = found?;
        self.latest = LatestEntries::default();
        Ok(())
    }

    /// Returns the header that the image would have if the snapshot were its disk.
    pub(super) fn snapshot_header(
        &self,
        index: u32,
        at: HostOffset,
        entry: &SnapshotEntry,
    ) -> Result<Header, MapError> {
        let geometry = self.geometry();
        let extra = snapshot_table::extra_of(self.image, at, entry)?;
        let size_bytes = extra.disk_bytes.unwrap_or(self.header.virtual_size_bytes());
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

    /// Returns the geometry, which decides the meaning of the tables.
    #[inline]
    pub(super) fn geometry(&self) -> &Geometry {
        &self.header.geometry
    }
}
