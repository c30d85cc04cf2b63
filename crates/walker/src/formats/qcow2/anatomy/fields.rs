//! The fields of structures, as the specification lists them: name, offset, and width in bytes.

/// The fields of the header (specification, "Header"): name, offset, width in bytes, and whether the mapping of an
/// image that opens depends on the field.
pub(super) const HEADER_FIELDS: &[(&str, u64, u8, bool)] = &[
    ("magic", 0, 4, true),
    ("version", 4, 4, true),
    ("backing_file_offset", 8, 8, true),
    ("backing_file_size", 16, 4, true),
    ("cluster_bits", 20, 4, true),
    ("size", 24, 8, true),
    ("crypt_method", 32, 4, true),
    ("l1_size", 36, 4, true),
    ("l1_table_offset", 40, 8, true),
    ("refcount_table_offset", 48, 8, false),
    ("refcount_table_clusters", 56, 4, false),
    ("nb_snapshots", 60, 4, false),
    ("snapshots_offset", 64, 8, false),
    ("incompatible_features", 72, 8, true),
    ("compatible_features", 80, 8, false),
    ("autoclear_features", 88, 8, false),
    ("refcount_order", 96, 4, false),
    ("header_length", 100, 4, true),
    ("compression_type", 104, 1, true),
];
/// The number of header fields in version 2.
pub(super) const HEADER_FIELDS_V2: usize = 13;

/// The fields of a snapshot table entry: the fixed part, and two fields of the extra data.
pub(super) const SNAPSHOT_FIELDS: [(&str, u64, u8); 11] = [
    ("l1_table_offset", 0, 8),
    ("l1_size", 8, 4),
    ("id_str_size", 12, 2),
    ("name_size", 14, 2),
    ("date_sec", 16, 4),
    ("date_nsec", 20, 4),
    ("vm_clock_nsec", 24, 8),
    ("vm_state_size", 32, 4),
    ("extra_data_size", 36, 4),
    ("vm_state_size_large", 40, 8),
    ("disk_size", 48, 8),
];
/// The number of snapshot fields in the fixed part.
pub(super) const SNAPSHOT_FIXED: usize = 9;

/// The fields of a bitmap directory entry.
pub(super) const DIRECTORY_FIELDS: [(&str, u64, u8); 7] = [
    ("bitmap_table_offset", 0, 8),
    ("bitmap_table_size", 8, 4),
    ("flags", 12, 4),
    ("type", 16, 1),
    ("granularity_bits", 17, 1),
    ("name_size", 18, 2),
    ("extra_data_size", 20, 4),
];
