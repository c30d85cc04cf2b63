//! Numbers of the format, and the bounds of QEMU (`block/vmdk.c`).

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
