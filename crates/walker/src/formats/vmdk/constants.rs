//! Numbers of the format, and the bounds of QEMU (`block/vmdk.c`).

use crate::disk::events::rare_events;

/// The first bytes of a sparse extent.
pub const SPARSE_MAGIC: [u8; 4] = *b"KDMV";
/// The first bytes of a sparse extent as ESX writes it.
pub const COWD_MAGIC: [u8; 4] = *b"COWD";
/// The first number of an seSparse extent.
pub const SE_SPARSE_MAGIC: u64 = 0xcafe_babe;
/// The first number of the header of an seSparse extent that changes while the disk is in use.
pub const SE_SPARSE_VOLATILE_MAGIC: u64 = 0xcafe_cafe;
/// The version of seSparse extents, 2.1.
pub const SE_SPARSE_VERSION: u64 = 0x2_0000_0001;
/// The size of a grain of an seSparse extent in sectors.
pub const SE_SPARSE_GRAIN_SECTORS: u64 = 8;
/// The size of a grain table of an seSparse extent in sectors.
pub const SE_SPARSE_TABLE_SECTORS: u64 = 64;
/// The size of an entry of a directory or a table of an seSparse extent in bytes.
pub const SE_SPARSE_ENTRY_BYTES: u64 = 8;
/// The unit of offsets and sizes, in bytes.
pub const SECTOR_BYTES: u64 = 512;
/// The length of the header of a sparse extent in bytes.
pub const HEADER_BYTES: usize = 512;
/// The header flag of extents whose grain directory has a copy.
pub const FLAG_REDUNDANT_DIRECTORY: u32 = 1 << 1;
/// The header flag of extents in which the entry 1 stands for a grain of zeros.
pub const FLAG_ZERO_GRAINS: u32 = 1 << 2;
/// The header flag of extents in which markers precede compressed grains.
pub const FLAG_MARKERS: u32 = 1 << 17;
/// The value of the compression field of extents with compressed grains.
pub const COMPRESS_DEFLATE: u16 = 1;
/// The sector of the grain directory if the header at the end of the file states it.
pub const DIRECTORY_AT_END: u64 = u64::MAX;
/// The last version that QEMU opens.
pub const MAX_VERSION: u32 = 3;
/// The largest number of entries in a grain table that QEMU opens.
pub const MAX_GRAIN_TABLE_ENTRIES: u32 = 512;
/// The largest grain that QEMU opens, in sectors: 1 GiB.
pub const MAX_GRAIN_SECTORS: u64 = 0x20_0000;
/// The largest number of entries in a grain directory that QEMU opens.
pub const MAX_DIRECTORY_ENTRIES: u32 = 32 << 20;
/// The number of entries in a grain table of the formats that ESX writes.
pub const ESX_TABLE_ENTRIES: u32 = 4096;
/// The end of the largest disk, and of the last bytes of a file, that QEMU reads (`block/block-io.c`,
/// `BDRV_MAX_LENGTH`).
pub const MAX_LENGTH_BYTES: u64 = (1 << 63) - (1 << 30);
/// The value of a marker that announces a footer.
pub const MARKER_FOOTER: u32 = 3;
/// The length of a footer in bytes: its marker, the header, and the marker of the end.
pub const STREAM_FOOTER_BYTES: usize = 3 * 512;
/// The entry of a grain of zeros.
pub const ZERO_GRAIN: u32 = 1;
/// The number of bytes before a compressed grain that has a marker.
pub const GRAIN_MARKER_BYTES: u64 = 12;
/// The number of bytes of a descriptor in which QEMU looks for the identities and the parent.
pub const IDENTITY_BYTES: usize = 20 * 512;
/// The offset of the descriptor in a sparse extent. QEMU ignores the header's field.
pub const EMBEDDED_DESCRIPTOR_AT: u64 = 512;
/// The number of bytes that QEMU reads of a descriptor.
pub const MAX_DESCRIPTOR_BYTES: u64 = (1 << 20) - 1;
/// The longest name of a parent that QEMU opens, in bytes.
pub const MAX_PARENT_NAME_BYTES: usize = 4095;
/// The name of the field that holds the name of the parent.
pub const PARENT_NAME: &[u8] = b"parentFileNameHint";
/// The largest number of extents of a descriptor. QEMU opens a file for each of them, and a process may open 1,024
/// files in most systems. Disks of 8 TiB have 4,096 extents of the usual 2 GiB.
pub const MAX_DESCRIPTOR_EXTENTS: usize = 4096;

/// The fields of the header of a sparse extent.
pub mod sparse_header {
    use crate::formats::anatomy::fields;

    fields! {
        MAGIC = "magic" at 0, 4 bytes, maps;
        VERSION = "version" at 4, 4 bytes, maps;
        FLAGS = "flags" at 8, 4 bytes, maps;
        CAPACITY = "capacity" at 12, 8 bytes, maps;
        GRAIN_SIZE = "grain_size" at 20, 8 bytes, maps;
        DESCRIPTOR_OFFSET = "descriptor_offset" at 28, 8 bytes, maps;
        DESCRIPTOR_SIZE = "descriptor_size" at 36, 8 bytes;
        GTES_PER_GT = "gtes_per_gt" at 44, 4 bytes, maps;
        RGD_OFFSET = "rgd_offset" at 48, 8 bytes;
        GD_OFFSET = "gd_offset" at 56, 8 bytes, maps;
        OVERHEAD = "overhead" at 64, 8 bytes;
        UNCLEAN_SHUTDOWN = "unclean_shutdown" at 72, 1 bytes;
        NEWLINES = "newlines" at 73, 4 bytes;
        COMPRESS_ALGORITHM = "compress_algorithm" at 77, 2 bytes, maps;
    }
}

/// The fields of the header of an extent as ESX writes it.
pub mod cowd_header {
    use crate::formats::anatomy::fields;

    fields! {
        MAGIC = "magic" at 0, 4 bytes, maps;
        VERSION = "version" at 4, 4 bytes;
        FLAGS = "flags" at 8, 4 bytes;
        CAPACITY = "capacity" at 12, 4 bytes, maps;
        GRAIN_SIZE = "grain_size" at 16, 4 bytes, maps;
        GD_OFFSET = "gd_offset" at 20, 4 bytes, maps;
        GD_ENTRIES = "gd_entries" at 24, 4 bytes, maps;
        NEXT_FREE = "next_free" at 28, 4 bytes;
    }
}

/// The fields of the first header of an seSparse extent. The specification has no names for them; those of QEMU count.
/// All fields that are marked, except for the places and the capacity, have one valid value.
pub mod const_header {
    use crate::formats::anatomy::fields;

    fields! {
        MAGIC = "magic" at 0, 8 bytes, maps;
        VERSION = "version" at 8, 8 bytes, maps;
        CAPACITY = "capacity" at 16, 8 bytes, maps;
        GRAIN_SIZE = "grain_size" at 24, 8 bytes, maps;
        GRAIN_TABLE_SIZE = "grain_table_size" at 32, 8 bytes, maps;
        FLAGS = "flags" at 40, 8 bytes, maps;
        RESERVED1 = "reserved1" at 48, 8 bytes, maps;
        RESERVED2 = "reserved2" at 56, 8 bytes, maps;
        RESERVED3 = "reserved3" at 64, 8 bytes, maps;
        RESERVED4 = "reserved4" at 72, 8 bytes, maps;
        VOLATILE_HEADER_OFFSET = "volatile_header_offset" at 80, 8 bytes, maps;
        VOLATILE_HEADER_SIZE = "volatile_header_size" at 88, 8 bytes;
        JOURNAL_HEADER_OFFSET = "journal_header_offset" at 96, 8 bytes;
        JOURNAL_HEADER_SIZE = "journal_header_size" at 104, 8 bytes;
        JOURNAL_OFFSET = "journal_offset" at 112, 8 bytes;
        JOURNAL_SIZE = "journal_size" at 120, 8 bytes;
        GRAIN_DIR_OFFSET = "grain_dir_offset" at 128, 8 bytes, maps;
        GRAIN_DIR_SIZE = "grain_dir_size" at 136, 8 bytes, maps;
        GRAIN_TABLES_OFFSET = "grain_tables_offset" at 144, 8 bytes, maps;
        GRAIN_TABLES_SIZE = "grain_tables_size" at 152, 8 bytes;
        FREE_BITMAP_OFFSET = "free_bitmap_offset" at 160, 8 bytes;
        FREE_BITMAP_SIZE = "free_bitmap_size" at 168, 8 bytes;
        BACKMAP_OFFSET = "backmap_offset" at 176, 8 bytes;
        BACKMAP_SIZE = "backmap_size" at 184, 8 bytes;
        GRAINS_OFFSET = "grains_offset" at 192, 8 bytes, maps;
        GRAINS_SIZE = "grains_size" at 200, 8 bytes;
        PAD = "pad" at 208, 8 bytes, maps;
    }
}

/// The fields of the second header of an seSparse extent.
pub mod volatile_header {
    use crate::formats::anatomy::fields;

    fields! {
        MAGIC = "magic" at 0, 8 bytes, maps;
        FREE_GT_NUMBER = "free_gt_number" at 8, 8 bytes;
        NEXT_TXN_SEQ_NUMBER = "next_txn_seq_number" at 16, 8 bytes;
        REPLAY_JOURNAL = "replay_journal" at 24, 8 bytes, maps;
        PAD = "pad" at 32, 8 bytes, maps;
    }
}

/// The fields of a marker. The mapping does not depend on them.
pub mod marker {
    use crate::formats::anatomy::fields;

    fields! {
        MARKER_SECTORS = "marker_sectors" at 0, 8 bytes;
        MARKER_SIZE = "marker_size" at 8, 4 bytes;
        MARKER_TYPE = "marker_type" at 12, 4 bytes;
    }
}

/// The fields of the marker before a compressed grain.
pub mod grain_marker {
    use crate::formats::anatomy::fields;

    fields! {
        LBA = "lba" at 0, 8 bytes;
        SIZE = "size" at 8, 4 bytes;
    }
}

/// The first bytes of a zlib stream: its header, and the first bytes of the deflate stream.
pub mod stream {
    use crate::formats::anatomy::fields;

    fields! {
        ZLIB_HEADER = "zlib_header" at 0, 2 bytes;
        DEFLATE = "deflate" at 2, 4 bytes;
    }
}

rare_events! {
    /// The rare events of the format.
    rare of Vmdk {
        /// A footer of a VMDK image replaces its header.
        FOOTER = "a VMDK footer counts",
        /// A VMDK image has an extent as ESX writes it.
        COWD = "a COWD extent",
        /// A walk meets a grain of zeros.
        ZERO_GRAIN = "a zero grain",
        /// The grains of a VMDK image are compressed, and markers precede them.
        MARKED = "compressed grains with markers",
        /// The grains of a VMDK image are compressed, without markers.
        UNMARKED = "compressed grains without markers",
        /// The grain tables of a VMDK image are shorter than a sector.
        SHORT_TABLE = "grain tables below a sector",
        /// Two entries of a grain directory name the same table, and no entry between them names one.
        SHARED_TABLE = "a grain table is shared",
        /// A grain begins past the end of its file.
        PAST_FILE = "a grain past the file",
        /// A VMDK image has an extent without tables.
        FLAT = "a flat VMDK extent",
        /// A VMDK image has an seSparse extent.
        SE_SPARSE = "an seSparse extent",
        /// A VMDK image has a parent.
        PARENT = "a VMDK parent",
    }
}
