//! The fixed part of a header (specification, "Header").

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{MAGIC, V3_LENGTH_BYTES, header};
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};

use super::put_field;

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
        let mut put = |field, number| put_field(out, field, number);
        put(header::MAGIC, MAGIC.into());
        put(header::VERSION, if is_v3 { 3 } else { 2 });
        put(header::BACKING_FILE_OFFSET, self.backing_file_offset.get());
        put(header::BACKING_FILE_SIZE, self.backing_file_bytes.into());
        put(header::CLUSTER_BITS, self.geometry.cluster_size.bits().into());
        put(header::SIZE, self.size_bytes);
        // The field crypt_method stays 0.
        put(header::L1_SIZE, self.l1_entries.into());
        put(header::L1_TABLE_OFFSET, self.l1_offset.get());
        put(header::REFCOUNT_TABLE_OFFSET, self.refcount_table_offset.get());
        put(header::REFCOUNT_TABLE_CLUSTERS, self.refcount_table_clusters.into());
        put(header::NB_SNAPSHOTS, self.snapshots.into());
        put(header::SNAPSHOTS_OFFSET, self.snapshots_offset.get());
        if !is_v3 {
            return;
        }
        put(header::INCOMPATIBLE_FEATURES, self.incompatible);
        put(header::COMPATIBLE_FEATURES, self.compatible);
        put(header::AUTOCLEAR_FEATURES, self.autoclear);
        put(header::REFCOUNT_ORDER, self.geometry.refcount_order.into());
        put(header::HEADER_LENGTH, self.header_length_bytes.into());
        if self.header_length_bytes > V3_LENGTH_BYTES {
            put(header::COMPRESSION_TYPE, (self.geometry.compression == Compression::Zstd).into());
        }
    }
}
