//! Numbers of the format.

/// The fields of the header.
pub mod header {
    use crate::formats::anatomy::fields;

    fields! {
        TEXT = "text" at 0, 8 bytes;
        SIGNATURE = "signature" at 64, 4 bytes, maps;
        VERSION = "version" at 68, 4 bytes, maps;
        HEADER_SIZE = "header_size" at 72, 4 bytes;
        IMAGE_TYPE = "image_type" at 76, 4 bytes;
        IMAGE_FLAGS = "image_flags" at 80, 4 bytes;
        OFFSET_BMAP = "offset_bmap" at 340, 4 bytes, maps;
        OFFSET_DATA = "offset_data" at 344, 4 bytes, maps;
        SECTOR_SIZE = "sector_size" at 360, 4 bytes, maps;
        DISK_SIZE = "disk_size" at 368, 8 bytes, maps;
        BLOCK_SIZE = "block_size" at 376, 4 bytes, maps;
        BLOCK_EXTRA = "block_extra" at 380, 4 bytes;
        BLOCKS_IN_IMAGE = "blocks_in_image" at 384, 4 bytes, maps;
        BLOCKS_ALLOCATED = "blocks_allocated" at 388, 4 bytes;
        UUID_IMAGE = "uuid_image" at 392, 8 bytes;
        UUID_LAST_SNAP = "uuid_last_snap" at 408, 8 bytes;
        UUID_LINK = "uuid_link" at 424, 8 bytes, maps;
        UUID_LINK_END = "uuid_link, second half" at 432, 8 bytes, maps;
        UUID_PARENT = "uuid_parent" at 440, 8 bytes, maps;
        UUID_PARENT_END = "uuid_parent, second half" at 448, 8 bytes, maps;
    }
}

/// The number of bytes that a reader reads of the header.
pub const VDI_HEADER_BYTES: usize = 512;
/// The signature.
pub const VDI_SIGNATURE: u32 = 0xbeda_107f;
/// The only version that QEMU opens: 1.1.
pub const VDI_VERSION: u32 = 0x0001_0001;
/// The unit of offsets in the header, and of the disk's size, in bytes.
pub const VDI_SECTOR_BYTES: u64 = 512;
/// The only block length that QEMU accepts, in bytes.
pub const VDI_BLOCK_BYTES: u64 = 1 << 20;
/// The largest number of blocks that QEMU accepts.
pub const MAX_VDI_BLOCKS: u32 = 0x1fff_ff80;
/// The type of an image that stores all blocks.
pub const TYPE_STATIC: u32 = 2;
/// The entry of a block that a guest has discarded. The entry `u32::MAX` stands for a block that was never stored. All
/// smaller entries are numbers of blocks in the file.
pub const VDI_DISCARDED: u32 = u32::MAX - 1;
