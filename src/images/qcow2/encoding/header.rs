//! The fixed part of a header (specification, "Header").

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{MAGIC, V3_LENGTH_BYTES};
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};

use super::put;

/// The fixed part of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedPart {
    /// Version, cluster size, refcount width and the features that change structures.
    pub geometry: Geometry,
    /// The size of the disk.
    pub size_bytes: u64,
    /// The number of entries in the active L1 table.
    pub l1_entries: u32,
    /// The host offset of the active L1 table.
    pub l1_offset: HostOffset,
    /// The host offset of the refcount table.
    pub refcount_table_offset: HostOffset,
    /// The length of the refcount table in clusters.
    pub refcount_table_clusters: u32,
    /// The number of snapshots.
    pub snapshots: u32,
    /// The host offset of the snapshot table.
    pub snapshots_offset: HostOffset,
    /// The host offset of the backing file's name; 0 without a backing file.
    pub backing_file_offset: HostOffset,
    /// The length of the backing file's name.
    pub backing_file_bytes: u32,
    /// Incompatible feature bits.
    pub incompatible: u64,
    /// Compatible feature bits.
    pub compatible: u64,
    /// Autoclear feature bits.
    pub autoclear: u64,
    /// The length of the header. The extensions begin there.
    pub header_length_bytes: u32,
}

impl FixedPart {
    /// Writes all fields that the version and the header's length have room for to the beginning of `out`.
    pub fn write(&self, out: &mut [u8]) {
        let is_v3 = self.geometry.version == Version::V3;
        put(out, 0, &MAGIC.to_be_bytes());
        put(out, 4, &(if is_v3 { 3u32 } else { 2 }).to_be_bytes());
        put(out, 8, &self.backing_file_offset.get().to_be_bytes());
        put(out, 16, &self.backing_file_bytes.to_be_bytes());
        put(out, 20, &self.geometry.cluster_size.bits().to_be_bytes());
        put(out, 24, &self.size_bytes.to_be_bytes());
        // At 32, crypt_method stays 0.
        put(out, 36, &self.l1_entries.to_be_bytes());
        put(out, 40, &self.l1_offset.get().to_be_bytes());
        put(out, 48, &self.refcount_table_offset.get().to_be_bytes());
        put(out, 56, &self.refcount_table_clusters.to_be_bytes());
        put(out, 60, &self.snapshots.to_be_bytes());
        put(out, 64, &self.snapshots_offset.get().to_be_bytes());
        if !is_v3 {
            return;
        }
        put(out, 72, &self.incompatible.to_be_bytes());
        put(out, 80, &self.compatible.to_be_bytes());
        put(out, 88, &self.autoclear.to_be_bytes());
        put(out, 96, &self.geometry.refcount_order.to_be_bytes());
        put(out, 100, &self.header_length_bytes.to_be_bytes());
        if self.header_length_bytes > V3_LENGTH_BYTES {
            put(out, 104, &[u8::from(self.geometry.compression == Compression::Zstd)]);
        }
    }
}
