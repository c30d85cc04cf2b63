//! Fields, as the specification lists them: where each begins, and how many bytes it has.

/// The fields of the header (specification, "Header"): where, how many bytes, and whether the mapping
/// depends on them in an image that opens.
pub(super) const HEADER_FIELDS: &[(u64, u8, bool)] = &[
    (0, 4, true),   // magic
    (4, 4, true),   // version
    (8, 8, true),   // backing_file_offset
    (16, 4, true),  // backing_file_size
    (20, 4, true),  // cluster_bits
    (24, 8, true),  // size
    (32, 4, true),  // crypt_method
    (36, 4, true),  // l1_size
    (40, 8, true),  // l1_table_offset
    (48, 8, false), // refcount_table_offset
    (56, 4, false), // refcount_table_clusters
    (60, 4, false), // nb_snapshots
    (64, 8, false), // snapshots_offset
    (72, 8, true),  // incompatible_features
    (80, 8, false), // compatible_features
    (88, 8, false), // autoclear_features
    (96, 4, false), // refcount_order
    (100, 4, true), // header_length
    (104, 1, true), // compression_type
];
/// How many of them version 2 has.
pub(super) const HEADER_FIELDS_V2: usize = 13;

/// The fields of a snapshot table entry: the fixed part, and two of its extra data.
pub(super) const SNAPSHOT_FIELDS: [(u64, u8); 11] = [
    (0, 8),  // l1_table_offset
    (8, 4),  // l1_size
    (12, 2), // id_str_size
    (14, 2), // name_size
    (16, 4), // date_sec
    (20, 4), // date_nsec
    (24, 8), // vm_clock_nsec
    (32, 4), // vm_state_size
    (36, 4), // extra_data_size
    (40, 8), // vm_state_size_large
    (48, 8), // disk_size
];
/// How many of them are in the fixed part.
pub(super) const SNAPSHOT_FIXED: usize = 9;

/// The fields of a bitmap directory entry.
pub(super) const DIRECTORY_FIELDS: [(u64, u8); 7] = [
    (0, 8),  // bitmap_table_offset
    (8, 4),  // bitmap_table_size
    (12, 4), // flags
    (16, 1), // type
    (17, 1), // granularity_bits
    (18, 2), // name_size
    (20, 4), // extra_data_size
];
