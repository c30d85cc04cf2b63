//! The requests about persistent dirty bitmaps.

use super::SmallWriter;
use crate::WriteError;

impl SmallWriter<'_> {
    /// Adds a persistent dirty bitmap of zeros behind all others. If it is enabled, it records changes.
    ///
    /// # Errors
    /// As for [`SmallWriter::write`].
    pub fn add_bitmap(&mut self, granularity_bits: u8, is_enabled: bool) -> Result<(), WriteError> {
        self.disk = None;
        self.tables.add_bitmap(granularity_bits, is_enabled)
    }

    /// Removes the bitmap at `index` of the directory.
    ///
    /// # Errors
    /// As for [`SmallWriter::apply_snapshot`]. The same holds for the next two.
    pub fn remove_bitmap(&mut self, index: u32) -> Result<(), WriteError> {
        self.disk = None;
        self.tables.remove_bitmap(index)
    }

    /// Makes all bits of a bitmap zeros.
    ///
    /// # Errors
    /// As for [`SmallWriter::remove_bitmap`].
    pub fn clear_bitmap(&mut self, index: u32) -> Result<(), WriteError> {
        self.disk = None;
        self.tables.clear_bitmap(index)
    }

    /// Has a bitmap record changes of the disk, or not.
    ///
    /// # Errors
    /// As for [`SmallWriter::remove_bitmap`].
    pub fn enable_bitmap(&mut self, index: u32, is_enabled: bool) -> Result<(), WriteError> {
        self.disk = None;
        self.tables.enable_bitmap(index, is_enabled)
    }
}
