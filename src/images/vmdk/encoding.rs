//! The bytes of VMDK structures, as the build writes them (VMware, "Virtual Disk Format 5.0"; for COWD, which no
//! document of VMware describes, QEMU's `block/vmdk.c`). All numbers are little-endian, and places are in sectors. The
//! walker decodes them with `formats::vmdk`, which shares with this file only constants and declarations of fields.
//! Also the part of a disk that an extent holds.

use crate::formats::anatomy::{ByteOrder, StructureField};
use crate::formats::vmdk::constants::{
    COMPRESS_DEFLATE, COWD_MAGIC, DIRECTORY_AT_END, FLAG_MARKERS, FLAG_REDUNDANT_DIRECTORY,
    FLAG_ZERO_GRAINS, GRAIN_MARKER_BYTES, HEADER_BYTES, MARKER_FOOTER, SECTOR_BYTES, SPARSE_MAGIC,
    cowd_header, grain_marker, marker, sparse_header,
};
use crate::images::format::put_fields;
use crate::images::qcow2::{Builder, MappedCluster};

/// The bytes in the header that a transfer as text would change.
const NEWLINES: [u8; 4] = *b"\n \r\n";
const FLAG_NEWLINES: u32 = 1 << 0;
const FLAG_COMPRESSED: u32 = 1 << 16;

/// Returns a structure of `N` bytes with these numbers.
pub(super) fn structure<const N: usize>(numbers: &[(StructureField, u64)]) -> [u8; N] {
    let mut bytes = [0; N];
    put_fields(&mut bytes, ByteOrder::LittleEndian, numbers);
    bytes
}

/// The header of a sparse extent. All places and sizes are in sectors.
#[derive(Clone, Copy, Debug, Default)]
pub struct SparseHeaderFields {
    /// The version.
    pub version: u32,
    /// The size of the disk.
    pub capacity: u64,
    /// The size of a grain.
    pub grain: u64,
    /// The place of the descriptor; 0 for none.
    pub descriptor: u64,
    /// The size of the descriptor.
    pub descriptor_size: u64,
    /// The number of entries in a table.
    pub table_entries: u32,
    /// The place of the redundant directory, if there is one.
    pub redundant_directory: Option<u64>,
    /// The place of the directory; `None` if the footer states it.
    pub directory: Option<u64>,
    /// The size of the part of the file before the grains.
    pub overhead: u64,
    /// An entry can stand for a grain of zeros.
    pub has_zero_grains: bool,
    /// The grains are compressed.
    pub is_compressed: bool,
    /// Markers precede compressed grains.
    pub has_markers: bool,
}

impl SparseHeaderFields {
    /// Returns the bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let compression = if self.is_compressed { COMPRESS_DEFLATE } else { 0 };
        structure(&[
            (sparse_header::MAGIC, u32::from_le_bytes(SPARSE_MAGIC).into()),
            (sparse_header::VERSION, self.version.into()),
            (sparse_header::FLAGS, self.flags().into()),
            (sparse_header::CAPACITY, self.capacity),
            (sparse_header::GRAIN_SIZE, self.grain),
            (sparse_header::DESCRIPTOR_OFFSET, self.descriptor),
            (sparse_header::DESCRIPTOR_SIZE, self.descriptor_size),
            (sparse_header::GTES_PER_GT, self.table_entries.into()),
            (sparse_header::RGD_OFFSET, self.redundant_directory.unwrap_or(0)),
            (sparse_header::GD_OFFSET, self.directory.unwrap_or(DIRECTORY_AT_END)),
            (sparse_header::OVERHEAD, self.overhead),
            (sparse_header::NEWLINES, u32::from_le_bytes(NEWLINES).into()),
            (sparse_header::COMPRESS_ALGORITHM, compression.into()),
        ])
    }

    fn flags(&self) -> u32 {
        let flags = [
            (true, FLAG_NEWLINES),
            (self.redundant_directory.is_some(), FLAG_REDUNDANT_DIRECTORY),
            (self.has_zero_grains, FLAG_ZERO_GRAINS),
            (self.is_compressed, FLAG_COMPRESSED),
            (self.has_markers, FLAG_MARKERS),
        ];
        flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag)
    }
}

/// Returns the header of a sparse extent as ESX writes it. All places and sizes are in sectors; `next` is the first
/// unused one.
pub fn cowd_header(
    (capacity, grain): (u32, u32),
    (directory, directory_entries): (u32, u32),
    next: u32,
) -> [u8; HEADER_BYTES] {
    structure(&[
        (cowd_header::MAGIC, u32::from_le_bytes(COWD_MAGIC).into()),
        (cowd_header::VERSION, 1),
        (cowd_header::FLAGS, 3),
        (cowd_header::CAPACITY, capacity.into()),
        (cowd_header::GRAIN_SIZE, grain.into()),
        (cowd_header::GD_OFFSET, directory.into()),
        (cowd_header::GD_ENTRIES, directory_entries.into()),
        (cowd_header::NEXT_FREE, next.into()),
    ])
}

/// The kind of a marker that is a sector of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The end of the file.
    End = 0,
    /// A table follows.
    Table = 1,
    /// A directory follows.
    Directory = 2,
    /// The footer follows.
    Footer = MARKER_FOOTER as isize,
}

impl Marker {
    /// Returns the bytes of a marker before a structure of this many sectors.
    pub fn encode(self, sectors: u64) -> [u8; HEADER_BYTES] {
        // A length of 0 distinguishes this marker from that of a grain.
        structure(&[(marker::MARKER_SECTORS, sectors), (marker::MARKER_TYPE, self as u64)])
    }
}

/// Returns the marker before the stream of a compressed grain.
pub fn marker_of_grain(guest_sector: u64, stream_bytes: u32) -> [u8; GRAIN_MARKER_BYTES as usize] {
    structure(&[(grain_marker::LBA, guest_sector), (grain_marker::SIZE, stream_bytes.into())])
}

/// The part of a disk that an extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskPart {
    /// The index of the first cluster.
    pub first: u64,
    /// The number of clusters, the last of which may be cut.
    pub clusters: u64,
    /// The number of sectors.
    pub sectors: u64,
    /// The number of tables that the disk does not need.
    pub spare_tables: u64,
}

impl DiskPart {
    /// Returns the whole disk.
    pub(super) fn whole(builder: &Builder) -> Self {
        Self {
            first: 0,
            clusters: builder.guest_clusters(),
            sectors: builder.plan().size_bytes / SECTOR_BYTES,
            spare_tables: builder.spare_l1_entries(),
        }
    }

    /// Returns the part from cluster `first` on, of `clusters` clusters at most; `None` for all others.
    pub(super) fn of(builder: &Builder, first: u64, clusters: Option<u64>) -> Self {
        let whole = Self::whole(builder);
        let left = whole.clusters.saturating_sub(first);
        let cluster_sectors = builder.plan().geometry.cluster_size.bytes() / SECTOR_BYTES;
        let before = first.saturating_mul(cluster_sectors);
        let sectors_left = whole.sectors.saturating_sub(before);
        match clusters.filter(|clusters| *clusters < left) {
            Some(clusters) => {
                let sectors = clusters.saturating_mul(cluster_sectors).min(sectors_left);
                Self { first, clusters, sectors, spare_tables: 0 }
            }
            None => Self { first, clusters: left, sectors: sectors_left, ..whole },
        }
    }

    /// Returns the number of clusters that tables must cover: those of the part, and those of `mapped` behind it.
    /// `mapped` has the order of the disk, and no cluster before the part.
    pub(super) fn covered(&self, mapped: &[MappedCluster]) -> u64 {
        let stored = mapped.last().map_or(0, |last| last.cluster.get() + 1 - self.first);
        self.clusters.max(stored)
    }
}
