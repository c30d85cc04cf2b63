//! Numbers of the format.

use crate::disk::events::rare_events;

/// The first bytes of a file.
pub const FILE_SIGNATURE: [u8; 8] = *b"vhdxfile";
/// The unit of offsets in the block allocation table, of the log's offset and of its length, in bytes.
pub const OFFSET_UNIT_BYTES: u64 = 1 << 20;
/// The offset of the checksum in headers, in the region table and in log entries.
pub const CHECKSUM_AT: usize = header::CHECKSUM.at;

/// The host offsets of the two headers.
pub const VHDX_HEADER_OFFSETS: [u64; 2] = [64 << 10, 128 << 10];
/// The number of bytes of a header that its checksum covers.
pub const VHDX_HEADER_BYTES: usize = 4 << 10;
/// The number of bytes of a header that have a meaning.
pub const VHDX_HEADER_FIELD_BYTES: usize = 80;
/// The first bytes of a header.
pub const HEADER_SIGNATURE: [u8; 4] = *b"head";
/// The only version of the format.
pub const VHDX_VERSION: u16 = 1;

/// The host offset of the first region table. QEMU does not read the second one.
pub const REGION_TABLE_OFFSET: u64 = 192 << 10;
/// The length of a region table in bytes.
pub const REGION_TABLE_BYTES: usize = 64 << 10;
/// The host offsets of both region tables.
pub const REGION_TABLE_OFFSETS: [u64; 2] =
    [REGION_TABLE_OFFSET, REGION_TABLE_OFFSET + REGION_TABLE_BYTES as u64];
/// The first bytes of a region table.
pub const REGION_TABLE_SIGNATURE: [u8; 4] = *b"regi";
/// The offset of the first entry in a region table.
pub const REGION_ENTRIES_AT: usize = 16;
/// The length of an entry of a region table in bytes.
pub const REGION_ENTRY_BYTES: usize = 32;
/// The largest number of entries in a region table.
pub const MAX_REGIONS: u32 = 2047;
/// The bit of a region's flags that is set if readers must know the region.
pub const REGION_REQUIRED: u32 = 1;

/// A GUID as stored.
pub type Guid = [u8; 16];
/// The region of the block allocation table.
pub const BAT_REGION: Guid = 0x6677_c22d_23f6_0042_9d64_115e_9bfd_4a08_u128.to_be_bytes();
/// The region of the metadata.
pub const METADATA_REGION: Guid = 0x06a2_7c8b_9047_9a4b_b8fe_575f_050f_886e_u128.to_be_bytes();

/// The number of bytes of a metadata region that hold its table.
pub const METADATA_TABLE_BYTES: usize = 64 << 10;
/// The first bytes of a metadata region.
pub const METADATA_SIGNATURE: [u8; 8] = *b"metadata";
/// The offset of the first entry in a metadata table.
pub const METADATA_ENTRIES_AT: usize = 32;
/// The length of an entry of a metadata table in bytes.
pub const METADATA_ENTRY_BYTES: usize = 32;
/// The largest number of entries in a metadata table.
pub const MAX_METADATA_ENTRIES: u16 = 2047;
/// The bit of a metadata entry's flags that is set if readers must know the item.
pub const METADATA_REQUIRED: u32 = 4;

/// The metadata item with the size of a block, and whether the disk has a parent.
pub const FILE_PARAMETERS: Guid = 0x3767_a1ca_36fa_434d_b3b6_33f0_aa44_e76b_u128.to_be_bytes();
/// The metadata item with the size of the disk.
pub const VIRTUAL_DISK_SIZE: Guid = 0x2442_a52f_1bcd_7648_b211_5dbe_d83b_f4b8_u128.to_be_bytes();
/// The metadata item with the SCSI identity of the disk.
pub const PAGE_83: Guid = 0xab12_cabe_e6b2_2345_93ef_c309_e000_c746_u128.to_be_bytes();
/// The metadata item with the size of a guest's sector.
pub const LOGICAL_SECTOR_SIZE: Guid = 0x1dbf_4181_6fa9_0947_ba47_f233_a8fa_ab5f_u128.to_be_bytes();
/// The metadata item with the size of a physical sector.
pub const PHYSICAL_SECTOR_SIZE: Guid = 0xc748_a3cd_5d44_7144_9cc9_e988_5251_c556_u128.to_be_bytes();
/// The metadata item that names the parent.
pub const PARENT_LOCATOR: Guid = 0x2d5f_d3a8_0bb3_4d45_abf7_d3d8_4834_ab0c_u128.to_be_bytes();
/// The bit of the file parameters that is set if the disk has a parent.
pub const HAS_PARENT: u32 = 2;

/// The smallest block in bytes.
pub const MIN_VHDX_BLOCK_BYTES: u32 = 1 << 20;
/// The largest block in bytes.
pub const MAX_VHDX_BLOCK_BYTES: u32 = 256 << 20;
/// The only size of a guest's sector that QEMU opens, in bytes.
pub const GUEST_SECTOR_BYTES: u32 = 512;
/// The other size of a guest's sector in the specification, in bytes.
pub const LARGE_GUEST_SECTOR_BYTES: u32 = 4 << 10;
/// The number of guest bytes whose blocks are followed by one entry for a sector bitmap: 2^23 sectors.
pub const CHUNK_BYTES: u64 = 1 << 32;
/// The length of an entry of the block allocation table in bytes.
pub const BAT_ENTRY_BYTES: usize = 8;

/// The length of a sector of the log in bytes.
pub const LOG_SECTOR_BYTES: u64 = 4 << 10;
/// The length of the header of a log entry in bytes.
pub const LOG_HEADER_BYTES: usize = 64;
/// The first bytes of a log entry.
pub const LOG_ENTRY_SIGNATURE: [u8; 4] = *b"loge";
/// The length of a descriptor in bytes.
pub const LOG_DESCRIPTOR_BYTES: usize = 32;
/// The first bytes of a descriptor of a sector with data.
pub const DATA_DESCRIPTOR: [u8; 4] = *b"desc";
/// The first bytes of a descriptor of zeros.
pub const ZERO_DESCRIPTOR: [u8; 4] = *b"zero";

/// The largest length of disks and files in QEMU (`include/block/block_int-common.h`, `BDRV_MAX_LENGTH`), in bytes.
pub const MAX_LENGTH_BYTES: u64 = (1 << 63) - (1 << 30);
/// The largest number of bytes that QEMU reads at once (`BDRV_REQUEST_MAX_BYTES`), as it reads the block allocation
/// table.
pub const MAX_REQUEST_BYTES: u32 = i32::MAX as u32 & !511;

/// The fields of the file identifier.
pub mod file_identifier {
    use crate::formats::anatomy::fields;

    fields! {
        SIGNATURE = "signature" at 0, 8 bytes, maps;
        CREATOR = "creator" at 8, 8 bytes;
    }
}

/// The fields of a header. No mapping depends on them: a header states only where the log lies, and which of the two
/// headers counts.
pub mod header {
    use crate::formats::anatomy::fields;

    fields! {
        SIGNATURE = "signature" at 0, 4 bytes;
        CHECKSUM = "checksum" at 4, 4 bytes;
        SEQUENCE_NUMBER = "sequence_number" at 8, 8 bytes;
        FILE_WRITE_GUID = "file_write_guid" at 16, 8 bytes;
        DATA_WRITE_GUID = "data_write_guid" at 32, 8 bytes;
        LOG_GUID = "log_guid" at 48, 8 bytes;
        LOG_GUID_END = "log_guid_end" at 56, 8 bytes;
        LOG_VERSION = "log_version" at 64, 2 bytes;
        VERSION = "version" at 66, 2 bytes;
        LOG_LENGTH = "log_length" at 68, 4 bytes;
        LOG_OFFSET = "log_offset" at 72, 8 bytes;
        @unread
        FILE_WRITE_GUID_END = "file_write_guid_end" at 24, 8 bytes;
        DATA_WRITE_GUID_END = "data_write_guid_end" at 40, 8 bytes;
    }
}

/// The fields of the header of a log entry.
pub mod log_entry {
    use crate::formats::anatomy::fields;

    fields! {
        LOG_SIGNATURE = "log_signature" at 0, 4 bytes;
        LOG_CHECKSUM = "log_checksum" at 4, 4 bytes;
        ENTRY_LENGTH = "entry_length" at 8, 4 bytes;
        TAIL = "tail" at 12, 4 bytes;
        SEQUENCE_NUMBER = "sequence_number" at 16, 8 bytes;
        DESCRIPTOR_COUNT = "descriptor_count" at 24, 4 bytes;
        LOG_GUID = "log_guid" at 32, 8 bytes;
        LOG_GUID_END = "log_guid_end" at 40, 8 bytes;
        FLUSHED_FILE_OFFSET = "flushed_file_offset" at 48, 8 bytes;
        LAST_FILE_OFFSET = "last_file_offset" at 56, 8 bytes;
    }
}

/// The fields of a region table before its entries.
pub mod region_table {
    use crate::formats::anatomy::fields;

    fields! {
        SIGNATURE = "signature" at 0, 4 bytes;
        CHECKSUM = "checksum" at 4, 4 bytes;
        ENTRY_COUNT = "entry_count" at 8, 4 bytes;
    }
}

/// The fields of an entry of a region table.
pub mod region {
    use crate::formats::anatomy::fields;

    fields! {
        GUID = "guid" at 0, 8 bytes, maps;
        GUID_END = "guid_end" at 8, 8 bytes, maps;
        FILE_OFFSET = "file_offset" at 16, 8 bytes, maps;
        LENGTH = "length" at 24, 4 bytes, maps;
        REQUIRED = "required" at 28, 4 bytes;
    }
}

/// The fields of a metadata table before its entries.
pub mod metadata_table {
    use crate::formats::anatomy::fields;

    fields! {
        SIGNATURE = "signature" at 0, 8 bytes;
        ENTRY_COUNT = "entry_count" at 10, 2 bytes;
    }
}

/// The fields of an entry of a metadata table.
pub mod metadata_item {
    use crate::formats::anatomy::fields;

    fields! {
        ITEM_ID = "item_id" at 0, 8 bytes, maps;
        ITEM_ID_END = "item_id_end" at 8, 8 bytes, maps;
        OFFSET = "offset" at 16, 4 bytes, maps;
        LENGTH = "length" at 20, 4 bytes;
        FLAGS = "flags" at 24, 4 bytes;
    }
}

/// The fields of the contents of metadata items. Each item begins at 0.
pub mod content {
    use crate::formats::anatomy::fields;

    fields! {
        BLOCK_SIZE = "block_size" at 0, 4 bytes, maps;
        FILE_PARAMETERS = "file_parameters" at 4, 4 bytes;
        VIRTUAL_DISK_SIZE = "virtual_disk_size" at 0, 8 bytes, maps;
        PAGE_83_DATA = "page_83_data" at 0, 8 bytes;
        PAGE_83_DATA_END = "page_83_data_end" at 8, 8 bytes;
        LOGICAL_SECTOR_SIZE = "logical_sector_size" at 0, 4 bytes;
        PHYSICAL_SECTOR_SIZE = "physical_sector_size" at 0, 4 bytes;
    }
}

rare_events! {
    /// The rare events of the format.
    rare of Vhdx {
        /// Only one of the two headers of a VHDX image is valid.
        SINGLE_HEADER = "a VHDX with one valid header",
        /// The second header of a VHDX image counts.
        SECOND_HEADER = "the second VHDX header counts",
        /// Both headers of a VHDX image are the same.
        EQUAL_HEADERS = "equal VHDX headers",
        /// The walker searches the log of a VHDX image for entries that have to be replayed.
        LOG = "a VHDX log is searched",
        /// The log of a VHDX image is empty, but holds an old entry.
        OLD_LOG = "an old entry in a VHDX log",
        /// A VHDX image has a region and metadata that no reader knows.
        UNKNOWN = "unknown parts of a VHDX",
        /// A walk reads past an entry of a sector bitmap.
        BITMAP = "a walk meets a VHDX sector bitmap",
        /// A walk meets a block of a VHDX image whose state readers refuse.
        UNREADABLE = "an unreadable VHDX block",
    }
}
