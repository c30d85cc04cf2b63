//! Persistent dirty bitmaps (specification, "Bitmaps extension" and "Bitmaps").

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    BITMAP_ALL_ONES, BITMAP_DIRTY_TRACKING, BITMAP_FIXED_BYTES, BITMAPS_EXTENSION_BYTES,
    bitmap_entry, bitmaps_extension,
};

use super::{padded, put_field};

/// The content of the bitmaps extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The number of bitmaps.
    pub bitmaps: u32,
    /// The length of the directory with all its entries.
    pub length_bytes: u64,
    /// The host offset of the directory.
    pub offset: HostOffset,
}

impl Directory {
    /// Returns the content of the header extension.
    pub fn extension(&self) -> [u8; BITMAPS_EXTENSION_BYTES] {
        let mut content = [0; BITMAPS_EXTENSION_BYTES];
        // The reserved field stays 0.
        put_field(&mut content, bitmaps_extension::NB_BITMAPS, self.bitmaps.into());
        put_field(&mut content, bitmaps_extension::BITMAP_DIRECTORY_SIZE, self.length_bytes);
        put_field(&mut content, bitmaps_extension::BITMAP_DIRECTORY_OFFSET, self.offset.get());
        content
    }
}

/// An entry of the bitmap directory, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapFields {
    /// The host offset of the bitmap table.
    pub table_offset: HostOffset,
    /// The number of entries in the bitmap table.
    pub table_entries: u32,
    /// Flag bits.
    pub flags: u32,
    /// log2 of the guest bytes per bit.
    pub granularity_bits: u8,
    /// The length of the name.
    pub name_bytes: u16,
}

impl BitmapFields {
    /// Returns the length of the whole entry, with its padding.
    pub fn length_bytes(&self) -> u64 {
        padded(BITMAP_FIXED_BYTES as u64 + u64::from(self.name_bytes))
    }

    /// Writes the fixed part to the beginning of `out`, and returns the place of the name.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> &'o mut [u8] {
        let (fixed, behind) = out.split_at_mut(BITMAP_FIXED_BYTES);
        // The length of the extra data stays 0.
        put_field(fixed, bitmap_entry::BITMAP_TABLE_OFFSET, self.table_offset.get());
        put_field(fixed, bitmap_entry::BITMAP_TABLE_SIZE, self.table_entries.into());
        put_field(fixed, bitmap_entry::FLAGS, self.flags.into());
        put_field(fixed, bitmap_entry::TYPE, BITMAP_DIRTY_TRACKING.into());
        put_field(fixed, bitmap_entry::GRANULARITY_BITS, self.granularity_bits.into());
        put_field(fixed, bitmap_entry::NAME_SIZE, self.name_bytes.into());
        &mut behind[..usize::from(self.name_bytes)]
    }
}

/// The bitmap table entry of a cluster of bits that are all ones.
pub const ONES: u64 = BITMAP_ALL_ONES;

/// Returns the bitmap table entry of a cluster of bits.
pub fn bits_at(host: HostOffset) -> u64 {
    host.get()
}

/// Returns the number of bits in a bitmap of a whole disk.
pub fn bits_of_disk(size_bytes: u64, granularity_bits: u8) -> u64 {
    let whole = size_bytes >> granularity_bits;
    whole + u64::from(size_bytes != whole << granularity_bits)
}

/// Returns the number of entries in the table of such a bitmap.
pub fn table_entries(size_bytes: u64, granularity_bits: u8, cluster_size: ClusterSize) -> u64 {
    let bits_per_cluster = cluster_size.bytes() * 8;
    bits_of_disk(size_bytes, granularity_bits).div_ceil(bits_per_cluster)
}
