//! Numbers of the format.

use crate::disk::events::rare_events;

/// The first bytes of a footer.
pub const COOKIE: [u8; 8] = *b"conectix";
/// The length of a footer in bytes.
pub const FOOTER_BYTES: usize = 512;
/// The first bytes of a dynamic header.
pub const DYNAMIC_COOKIE: [u8; 8] = *b"cxsparse";
/// The length of a dynamic header in bytes.
pub const DYNAMIC_HEADER_BYTES: usize = 1024;
/// The unit of entries and of the disk's size, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// The type of a disk whose guest data lies at the guest offset.
pub const TYPE_FIXED: u32 = 2;
/// The type of a disk that has a parent.
pub const TYPE_DIFFERENCING: u32 = 4;
/// The table entry of a block that the file does not store.
pub const UNALLOCATED: u32 = u32::MAX;
/// The smallest block that QEMU opens, in bytes.
pub const MIN_BLOCK_BYTES: u32 = 512;
/// The largest number of table entries that QEMU opens.
pub const MAX_TABLE_ENTRIES: u32 = (1 << 29) - 1;
/// The largest disk that QEMU opens, in sectors: 2040 GiB.
pub const MAX_SECTORS: u64 = 0xff00_0000;
/// The largest disk that cylinders, heads and sectors can state. With this geometry, the size in bytes counts.
pub const MAX_CHS_SECTORS: u64 = 65_535 * 16 * 255;
/// The creators whose disks have the size that cylinders, heads and sectors state (QEMU `block/vpc.c`, `vpc_open`).
pub const CHS_CREATORS: [[u8; 4]; 2] = [*b"vpc ", *b"qemu"];

/// The fields of a footer.
pub mod footer {
    use crate::formats::anatomy::fields;

    fields! {
        COOKIE = "cookie" at 0, 8 bytes, maps;
        FEATURES = "features" at 8, 4 bytes;
        FILE_FORMAT_VERSION = "file_format_version" at 12, 4 bytes;
        DATA_OFFSET = "data_offset" at 16, 8 bytes, maps;
        CREATOR_APPLICATION = "creator_application" at 28, 4 bytes, maps;
        ORIGINAL_SIZE = "original_size" at 40, 8 bytes;
        CURRENT_SIZE = "current_size" at 48, 8 bytes, maps;
        CYLINDERS = "cylinders" at 56, 2 bytes, maps;
        HEADS = "heads" at 58, 1 bytes, maps;
        SECTORS_PER_TRACK = "sectors_per_track" at 59, 1 bytes, maps;
        DISK_TYPE = "disk_type" at 60, 4 bytes, maps;
        CHECKSUM = "checksum" at 64, 4 bytes, maps;
        SAVED_STATE = "saved_state" at 84, 1 bytes;
        @unread
        TIME_STAMP = "time_stamp" at 24, 4 bytes;
        CREATOR_VERSION = "creator_version" at 32, 4 bytes;
        CREATOR_HOST_OS = "creator_host_os" at 36, 4 bytes;
        UNIQUE_ID = "unique_id" at 68, 8 bytes;
        UNIQUE_ID_END = "unique_id, second half" at 76, 8 bytes;
    }
}

/// The fields of a dynamic header.
pub mod dynamic_header {
    use crate::formats::anatomy::fields;

    fields! {
        COOKIE = "cookie" at 0, 8 bytes, maps;
        DATA_OFFSET = "data_offset" at 8, 8 bytes;
        TABLE_OFFSET = "table_offset" at 16, 8 bytes, maps;
        HEADER_VERSION = "header_version" at 24, 4 bytes;
        MAX_TABLE_ENTRIES = "max_table_entries" at 28, 4 bytes, maps;
        BLOCK_SIZE = "block_size" at 32, 4 bytes, maps;
        CHECKSUM = "checksum" at 36, 4 bytes;
    }
}

rare_events! {
    /// The rare events of the format.
    rare of Vpc {
        /// The creator of a VHD image states the size of the disk by its geometry.
        GEOMETRY = "a VHD of its geometry's size",
        /// The dynamic header of a VHD image does not follow the first footer.
        HEADER_GAP = "a gap before a VHD header",
        /// All blocks of a VHD image lie before the block allocation table.
        TABLE_LAST = "a VHD table behind the blocks",
        /// A block of a VHD image begins 1 TiB or more after the beginning of the file.
        FAR_BLOCK = "a VHD block past 1 TiB",
        /// The blocks of a VHD image are so small that QEMU expects no bitmaps.
        NO_BITMAP = "VHD blocks without bitmaps",
        /// A VHD image stores a block past the end of the disk.
        SPARE_BLOCK = "a VHD block past the disk",
        /// A VHD image begins with a footer that states a fixed disk.
        TYPE_FIXED = "a VHD footer of the wrong type",
    }
}
