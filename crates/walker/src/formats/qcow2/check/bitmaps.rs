//! The references of persistent bitmaps.

use std::ops::ControlFlow;

use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{BitmapCluster, BitmapTableEntry, BitmapsExtension};
use crate::formats::qcow2::bitmap_directory;
use crate::formats::qcow2::references::Role;
use crate::formats::qcow2::table::HostTable;

use super::image_check::ImageCheck;

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Adds the references of the directory, of the tables and of the bits. The bitmaps have passed the checks that
    /// QEMU makes when it opens the image.
    ///
    /// # Errors
    /// A table of a bitmap in use is damaged, a read fails, or the image is too large. As in QEMU, the check ends
    /// there.
    pub(super) fn bitmaps(&mut self, extension: &BitmapsExtension) -> Result<(), MapError> {
        let (storage, cluster_size) = (self.storage, self.geometry().cluster_size);
        let BitmapsExtension { directory_bytes, directory_offset, .. } = *extension;
        self.reference(directory_offset, directory_bytes, Role::BitmapDirectory);
        let (mut entries_left, mut piece) = (self.clusters.bound() as u64, vec![0; PIECE_BYTES]);
        bitmap_directory::each_entry(storage, extension, |index, _, entry| {
            let table = HostTable::bitmap(entry);
            self.reference(table.start, table.length_bytes, Role::BitmapTable);
            // Many bitmaps may name one table.
            let too_large = MapError::TooLarge("too many entries of bitmap tables");
            entries_left = entries_left.checked_sub(entry.table_entries.into()).ok_or(too_large)?;
            let _ = table.each_entry(storage, &mut piece, |entry| {
                let cluster = BitmapTableEntry(entry.word).cluster(cluster_size);
                let cluster = cluster.map_err(|what| MapError::Bitmap { index, what })?;
                if let BitmapCluster::Data(host) = cluster {
                    self.reference(host, cluster_size.bytes(), Role::BitmapData);
                }
                Ok::<_, MapError>(ControlFlow::Continue(()))
            })?;
            self.check_bound()
        })
    }
}
