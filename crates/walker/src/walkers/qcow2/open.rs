//! Opens a qcow2 image.

use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer, State};
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{Layer, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::layout::Layout;
use crate::formats::qcow2::snapshot::SnapshotEntry;
use crate::formats::qcow2::snapshot_table;

use super::latest::LatestEntries;

/// A layer that is a qcow2 image.
#[derive(Debug)]
pub(in crate::walkers) struct Qcow2<'s, S: Storage + ?Sized> {
    pub(super) image: &'s S,
    /// The storage of guest data: the image itself, or its external data file. `None` if the data file is not
    /// available.
    pub(in crate::walkers) data: Option<&'s S>,
    pub(in crate::walkers) header: Header,
    /// See [`Qcow2::decide_host_holes`].
    pub(super) has_host_holes: bool,
    /// The last table entries that were read through `header`. They must be reset when `header` changes.
    pub(super) latest: LatestEntries,
}

/// The reference of a layer to the one below: `None` without a backing file, `Some(None)` if the layer does not state
/// the backing file's format.
pub(in crate::walkers) type Named = Option<Option<ImageFormat>>;

impl<'s, S: Storage + ?Sized> Qcow2<'s, S> {
    /// Opens an image, with the checks that QEMU makes. Returns its reference to the layer below, too.
    pub(in crate::walkers) fn open(
        layer: &Layer<'s, S>,
        observer: &impl Observer,
    ) -> Result<(Self, Named), MapError> {
        let head = Head::read(layer.image)?;
        observer.event(State::Open, Event::Header);
        if head.bitmaps.is_some() {
            observer.event(State::Open, Event::Bitmap);
        }
        let named = match head.backing_name {
            None => None,
            Some(_) => {
                observer.event(State::Open, Event::Backing);
                Some(head.backing_format_in(layer.image)?)
            }
        };
        let header = head.header;
        snapshot_table::each_entry(layer.image, &header, |_, _, _| {
            observer.event(State::Open, Event::Snapshot);
            Ok(())
        })?;
        let data = match header.geometry.data_file {
            false => Some(layer.image),
            true => {
                observer.event(State::Open, Event::DataFile);
                layer.data_file
            }
        };
        let (image, latest) = (layer.image, LatestEntries::default());
        Ok((Self { image, data, header, has_host_holes: false, latest }, named))
    }

    /// Changes to the disk as it was when the snapshot at `index` of the snapshot table was taken.
    ///
    /// # Errors
    /// The snapshot does not exist, it is malformed, or a read failed.
    pub(in crate::walkers) fn go_to_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        self.change_header(index, |layer, at, entry| layer.snapshot_header(index, at, entry))
    }

    /// Changes to the L1 table of the snapshot at `index` of the snapshot table, and keeps the size of the disk. If
    /// the table is too short for that size, the rest of the disk is unallocated.
    ///
    /// # Errors
    /// The snapshot does not exist, its L1 table is malformed, or a read failed.
    pub(in crate::walkers) fn use_table_of_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        self.change_header(index, |layer, _, entry| {
            let SnapshotEntry { l1_offset, l1_entries, .. } = *entry;
            match entry.l1_fault(layer.geometry().cluster_size) {
                Some(what) => Err(MapError::Snapshot { index, what }),
                None => Ok(Header { l1_offset, l1_entries, ..layer.header.clone() }),
            }
        })
    }

    /// Changes to the header that `of` returns for the host offset and the fixed part of the snapshot at `index`.
    fn change_header(
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
    fn snapshot_header(
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
