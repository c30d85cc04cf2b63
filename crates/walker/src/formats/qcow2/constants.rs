//! Fields and numbers of the format: the fields of its structures, lengths, feature bits, extension types, bits of
//! table entries, and the limits at which QEMU refuses an image. The code that reads images and the build share them.

/// The fields of the header (specification, "Header"). The last six belong to version 3; a header may end before the
/// last one.
pub mod header {
    use crate::formats::anatomy::fields;

    fields! {
        MAGIC = "magic" at 0, 4 bytes, maps;
        VERSION = "version" at 4, 4 bytes, maps;
        BACKING_FILE_OFFSET = "backing_file_offset" at 8, 8 bytes, maps;
        BACKING_FILE_SIZE = "backing_file_size" at 16, 4 bytes, maps;
        CLUSTER_BITS = "cluster_bits" at 20, 4 bytes, maps;
        SIZE = "size" at 24, 8 bytes, maps;
        CRYPT_METHOD = "crypt_method" at 32, 4 bytes, maps;
        L1_SIZE = "l1_size" at 36, 4 bytes, maps;
        L1_TABLE_OFFSET = "l1_table_offset" at 40, 8 bytes, maps;
        REFCOUNT_TABLE_OFFSET = "refcount_table_offset" at 48, 8 bytes;
        REFCOUNT_TABLE_CLUSTERS = "refcount_table_clusters" at 56, 4 bytes;
        NB_SNAPSHOTS = "nb_snapshots" at 60, 4 bytes;
        SNAPSHOTS_OFFSET = "snapshots_offset" at 64, 8 bytes;
        INCOMPATIBLE_FEATURES = "incompatible_features" at 72, 8 bytes, maps;
        COMPATIBLE_FEATURES = "compatible_features" at 80, 8 bytes;
        AUTOCLEAR_FEATURES = "autoclear_features" at 88, 8 bytes;
        REFCOUNT_ORDER = "refcount_order" at 96, 4 bytes;
        HEADER_LENGTH = "header_length" at 100, 4 bytes, maps;
        COMPRESSION_TYPE = "compression_type" at 104, 1 bytes, maps;
    }
}

/// The fields of a snapshot table entry (specification, "Snapshots"): the fixed part, and the known extra data.
pub mod snapshot_entry {
    use crate::formats::anatomy::fields;

    fields! {
        L1_TABLE_OFFSET = "l1_table_offset" at 0, 8 bytes;
        L1_SIZE = "l1_size" at 8, 4 bytes;
        ID_STR_SIZE = "id_str_size" at 12, 2 bytes;
        NAME_SIZE = "name_size" at 14, 2 bytes;
        DATE_SEC = "date_sec" at 16, 4 bytes;
        DATE_NSEC = "date_nsec" at 20, 4 bytes;
        VM_CLOCK_NSEC = "vm_clock_nsec" at 24, 8 bytes;
        VM_STATE_SIZE = "vm_state_size" at 32, 4 bytes;
        EXTRA_DATA_SIZE = "extra_data_size" at 36, 4 bytes;
        VM_STATE_SIZE_LARGE = "vm_state_size_large" at 40, 8 bytes;
        DISK_SIZE = "disk_size" at 48, 8 bytes;
        ICOUNT = "icount" at 56, 8 bytes;
    }
}

/// The fields of the bitmaps extension (specification, "Bitmaps extension").
pub mod bitmaps_extension {
    use crate::formats::anatomy::fields;

    fields! {
        NB_BITMAPS = "nb_bitmaps" at 0, 4 bytes;
        RESERVED = "reserved" at 4, 4 bytes;
        BITMAP_DIRECTORY_SIZE = "bitmap_directory_size" at 8, 8 bytes;
        BITMAP_DIRECTORY_OFFSET = "bitmap_directory_offset" at 16, 8 bytes;
    }
}

/// The fields of a bitmap directory entry (specification, "Bitmap directory").
pub mod bitmap_entry {
    use crate::formats::anatomy::fields;

    fields! {
        BITMAP_TABLE_OFFSET = "bitmap_table_offset" at 0, 8 bytes;
        BITMAP_TABLE_SIZE = "bitmap_table_size" at 8, 4 bytes;
        FLAGS = "flags" at 12, 4 bytes;
        TYPE = "type" at 16, 1 bytes;
        GRANULARITY_BITS = "granularity_bits" at 17, 1 bytes;
        NAME_SIZE = "name_size" at 18, 2 bytes;
        EXTRA_DATA_SIZE = "extra_data_size" at 20, 4 bytes;
    }
}

/// `QFI\xfb`.
pub const MAGIC: u32 = 0x5146_49FB;

/// The length of a version 2 header, and the offset of the fields that version 3 adds.
pub const V2_LENGTH_BYTES: u32 = 72;

/// The shortest version 3 header.
pub const V3_LENGTH_BYTES: u32 = 104;

/// The version 3 header with the compression type field, padded to 8.
pub const V3_COMPRESSION_LENGTH_BYTES: u32 = 112;

/// The largest `cluster_bits` that QEMU opens.
pub const MAX_CLUSTER_BITS: u32 = 21;

/// The largest L1 table that QEMU opens, in entries (`QCOW_MAX_L1_SIZE`, 32 MiB).
pub const MAX_L1_ENTRIES: u32 = 4 << 20;

/// The largest refcount table that QEMU opens (`QCOW_MAX_REFTABLE_SIZE`).
pub const MAX_REFCOUNT_TABLE_BYTES: u64 = 8 << 20;

/// The largest number of snapshots that QEMU opens (`QCOW_MAX_SNAPSHOTS`).
pub const MAX_SNAPSHOTS: u32 = 65_536;

/// The largest `refcount_order`: 64-bit refcounts.
pub const MAX_REFCOUNT_ORDER: u32 = 6;

/// The longest file that QEMU reads (`BDRV_MAX_LENGTH`): 2^63 less one byte, rounded down to 1 GiB.
pub const MAX_FILE_BYTES: u64 = (1 << 63) - (1 << 30);

/// Incompatible feature bit 0: refcounts may be out of date.
pub const INCOMPATIBLE_DIRTY: u64 = 1 << 0;

/// Incompatible feature bit 1: the image is known to be damaged.
pub const INCOMPATIBLE_CORRUPT: u64 = 1 << 1;

/// Incompatible feature bit 2: guest data lies in another file.
pub const INCOMPATIBLE_DATA_FILE: u64 = 1 << 2;

/// Incompatible feature bit 3: the compression type is not zlib.
pub const INCOMPATIBLE_COMPRESSION: u64 = 1 << 3;

/// Incompatible feature bit 4: L2 entries are 16 bytes, with subcluster bitmaps.
pub const INCOMPATIBLE_EXTENDED_L2: u64 = 1 << 4;

/// The smallest clusters of an image with extended L2 entries, in bits.
pub const MIN_EXTENDED_L2_CLUSTER_BITS: u32 = 14;

/// The incompatible feature bits that are known.
pub(super) const INCOMPATIBLE_KNOWN: u64 = (1 << 5) - 1;

/// Compatible feature bit 0: refcounts are updated lazily.
pub const COMPATIBLE_LAZY_REFCOUNTS: u64 = 1 << 0;

/// Autoclear feature bit 0: the bitmaps extension is consistent.
pub const AUTOCLEAR_BITMAPS: u64 = 1 << 0;

/// Autoclear feature bit 1: the external data file is the disk, byte for byte.
pub const AUTOCLEAR_RAW_DATA_FILE: u64 = 1 << 1;

/// Header extension: the end of the area.
pub const EXTENSION_END: u32 = 0;

/// Header extension: the format of the backing file, in words.
pub const EXTENSION_BACKING_FORMAT: u32 = 0xE279_2ACA;

/// Header extension: the feature name table.
pub const EXTENSION_FEATURE_NAMES: u32 = 0x6803_F857;

/// Header extension: the bitmaps' directory.
pub const EXTENSION_BITMAPS: u32 = 0x2385_2875;

/// Header extension: where the header of the encryption lies.
pub const EXTENSION_CRYPTO: u32 = 0x0537_BE77;

/// Header extension: the name of the external data file.
pub const EXTENSION_DATA_FILE: u32 = 0x4441_5441;

/// Bits 9–55: a host offset in an L1 entry, or in an L2 entry that is not compressed.
pub const OFFSET_MASK: u64 = 0x00FF_FFFF_FFFF_FE00;

/// Bit 63 of an L1 entry, or of an L2 entry: the refcount of the cluster is exactly one.
pub const COPIED: u64 = 1 << 63;

/// Bit 62 of an L2 entry: compressed.
pub const L2_COMPRESSED: u64 = 1 << 62;

/// Bit 0 of a standard L2 entry: reads as zeros.
pub const L2_ZERO: u64 = 1;

/// The length of the fixed part of a snapshot table entry.
pub const SNAPSHOT_FIXED_BYTES: usize = 40;

/// The length of the shortest extra data that version 3 allows in a snapshot table entry: the sizes of the VM state and
/// of the disk.
pub const SNAPSHOT_V3_EXTRA_BYTES: u32 = 16;

/// The length of the extra data that have a meaning: the two sizes and the instruction count.
pub const SNAPSHOT_KNOWN_EXTRA_BYTES: usize = 24;

/// The length of the bitmaps extension.
pub const BITMAPS_EXTENSION_BYTES: usize = 24;

/// The length of the fixed part of a bitmap directory entry.
pub const BITMAP_FIXED_BYTES: usize = 24;

/// The longest name of a bitmap that QEMU opens (`BME_MAX_NAME_SIZE`).
pub const MAX_BITMAP_NAME_BYTES: u16 = 1023;

/// Flag bit 0 of a bitmap: it was not saved correctly, and its bits may be wrong.
pub const BITMAP_IN_USE: u32 = 1 << 0;

/// Flag bit 1 of a bitmap: it must reflect all changes of the disk.
pub const BITMAP_AUTO: u32 = 1 << 1;

/// The only type of a bitmap: dirty tracking.
pub const BITMAP_DIRTY_TRACKING: u8 = 1;

/// Bit 0 of a bitmap table entry without an offset: all bits of the cluster are ones.
pub const BITMAP_ALL_ONES: u64 = 1;
