//! The fields of structures: name, offset, width in bytes, and whether the mapping depends on the field.

use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::{ByteOrder, FieldGroup, FieldLayout, OffsetUnit, Part};

/// The fields of the header that counts.
pub(super) const SPARSE_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 4, true),
    ("version", 4, 4, true),
    ("flags", 8, 4, true),
    ("capacity", 12, 8, true),
    ("grain_size", 20, 8, true),
    ("descriptor_offset", 28, 8, true),
    ("descriptor_size", 36, 8, false),
    ("gtes_per_gt", 44, 4, true),
    ("rgd_offset", 48, 8, false),
    ("gd_offset", 56, 8, true),
    ("overhead", 64, 8, false),
    ("unclean_shutdown", 72, 1, false),
    ("newlines", 73, 4, false),
    ("compress_algorithm", 77, 2, true),
];

/// The fields of a header that only names the footer. If the capacity is 0, QEMU looks for a descriptor.
pub(super) const FIRST_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 4, true),
    ("version", 4, 4, false),
    ("flags", 8, 4, false),
    ("capacity", 12, 8, true),
    ("grain_size", 20, 8, false),
    ("descriptor_offset", 28, 8, true),
    ("descriptor_size", 36, 8, false),
    ("gtes_per_gt", 44, 4, false),
    ("rgd_offset", 48, 8, false),
    ("gd_offset", 56, 8, true),
    ("overhead", 64, 8, false),
    ("unclean_shutdown", 72, 1, false),
    ("newlines", 73, 4, false),
    ("compress_algorithm", 77, 2, false),
];

/// The fields of the header of an extent as ESX writes it.
pub(super) const COWD_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 4, true),
    ("version", 4, 4, false),
    ("flags", 8, 4, false),
    ("capacity", 12, 4, true),
    ("grain_size", 16, 4, true),
    ("gd_offset", 20, 4, true),
    ("gd_entries", 24, 4, true),
    ("next_free", 28, 4, false),
];

/// The fields of a marker. The mapping does not depend on them.
pub(super) const MARKER_FIELDS: &[FieldLayout] =
    &[("marker_sectors", 0, 8, false), ("marker_size", 8, 4, false), ("marker_type", 12, 4, false)];

/// The fields of the marker before a compressed grain.
pub(super) const GRAIN_MARKER_FIELDS: &[FieldLayout] =
    &[("lba", 0, 8, false), ("size", 8, 4, false)];
/// The first bytes of a zlib stream: its header, and the first bytes of the deflate stream.
pub(super) const STREAM_FIELDS: &[FieldLayout] =
    &[("zlib_header", 0, 2, false), ("deflate", 2, 4, false)];
/// The number of bytes of these fields.
pub(super) const STREAM_FIELDS_BYTES: u64 = 6;

/// The fields of the first header of an seSparse extent. The specification has no names for them; those of QEMU count.
/// All fields that are marked, except for the places and the capacity, have one valid value.
pub(super) const CONST_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 8, true),
    ("version", 8, 8, true),
    ("capacity", 16, 8, true),
    ("grain_size", 24, 8, true),
    ("grain_table_size", 32, 8, true),
    ("flags", 40, 8, true),
    ("reserved1", 48, 8, true),
    ("reserved2", 56, 8, true),
    ("reserved3", 64, 8, true),
    ("reserved4", 72, 8, true),
    ("volatile_header_offset", 80, 8, true),
    ("volatile_header_size", 88, 8, false),
    ("journal_header_offset", 96, 8, false),
    ("journal_header_size", 104, 8, false),
    ("journal_offset", 112, 8, false),
    ("journal_size", 120, 8, false),
    ("grain_dir_offset", 128, 8, true),
    ("grain_dir_size", 136, 8, true),
    ("grain_tables_offset", 144, 8, true),
    ("grain_tables_size", 152, 8, false),
    ("free_bitmap_offset", 160, 8, false),
    ("free_bitmap_size", 168, 8, false),
    ("backmap_offset", 176, 8, false),
    ("backmap_size", 184, 8, false),
    ("grains_offset", 192, 8, true),
    ("grains_size", 200, 8, false),
    ("pad", 208, 8, true),
];

/// The fields of the second header of an seSparse extent.
pub(super) const VOLATILE_HEADER_FIELDS: &[FieldLayout] = &[
    ("magic", 0, 8, true),
    ("free_gt_number", 8, 8, false),
    ("next_txn_seq_number", 16, 8, false),
    ("replay_journal", 24, 8, true),
    ("pad", 32, 8, true),
];

/// Returns the group of the fields of a structure.
pub(super) fn group(part: Part, start: HostOffset) -> FieldGroup {
    FieldGroup::new(part, start, ByteOrder::LittleEndian, OffsetUnit::Sector)
}
