//! Opening an image.

use crate::head::Head;
use crate::qcow2::header::{Geometry, Header, INCOMPATIBLE_DATA_FILE};
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
