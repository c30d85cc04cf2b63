//! seSparse extents, which ESXi writes. The format is not documented: the fields are those that QEMU reads
//! (`block/vmdk.c`, `vmdk_open_se_sparse`). All numbers are little-endian, and places are in sectors.
//!
//! The file has no journal, and its bitmap of free grains and its map from grains to entries are empty: no reader needs
//! them.

use bytes::BufMut;

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::images::files::image::Image;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, MappedCluster};

use super::encoding::{DiskPart, HEADER_BYTES, SECTOR_BYTES};

/// log2 of the size of a grain, which is always the same.
const GRAIN_BITS: u32 = 12;
/// log2 of the size of the largest cluster that grains are written for. Each grain costs an entry.
const LARGEST_CLUSTER_BITS: u32 = 16;
/// The number of entries in a table.
const GRAINS_OF_TABLE: u64 = 4096;
const SE_ENTRY_BYTES: u64 = 8;
const TABLE_BYTES: u64 = GRAINS_OF_TABLE * SE_ENTRY_BYTES;
/// The place of the second header, and that of the directory.
const VOLATILE_SECTOR: u64 = 1;
const DIRECTORY_SECTOR: u64 = 2;

const CONST_MAGIC: u64 = 0xcafe_babe;
const VOLATILE_MAGIC: u64 = 0xcafe_cafe;
const VERSION: u64 = 0x2_0000_0001;
/// The upper bits of a directory entry that names a table.
const NAMED_TABLE: u64 = 1 << 60;
/// The upper bits of an entry for a grain that was unmapped, for one of zeros, and for one that is stored.
const UNMAPPED: u64 = 1 << 60;
const ZERO: u64 = 2 << 60;
const STORED: u64 = 3 << 60;

/// Reports whether clusters of this size consist of grains.
pub(super) fn has_grains_for(cluster: ClusterSize) -> bool {
    (GRAIN_BITS..=LARGEST_CLUSTER_BITS).contains(&cluster.bits())
}

/// Returns the offset of the first grain of an extent with room for this number of clusters; 0 if clusters of this size
/// do not consist of grains.
pub(super) fn first_grain_bytes(clusters: u64, cluster: ClusterSize) -> u64 {
    if !has_grains_for(cluster) {
        return 0;
    }
    let tables = (clusters << (cluster.bits() - GRAIN_BITS)).div_ceil(GRAINS_OF_TABLE);
    tables_sector(tables) * SECTOR_BYTES + tables * TABLE_BYTES
}

/// Returns the sector behind a directory of `tables` entries.
fn tables_sector(tables: u64) -> u64 {
    DIRECTORY_SECTOR + (tables * SE_ENTRY_BYTES).div_ceil(SECTOR_BYTES)
}

/// Writes an extent that holds `part` of the disk, with the clusters `mapped`. `grains` is the offset of the first
/// grain.
pub(super) fn write(
    builder: &Builder,
    part: DiskPart,
    mapped: &[MappedCluster],
    grains: u64,
    image: &mut Image,
) {
    let plan = builder.plan();
    let cluster_size = plan.geometry.cluster_size;
    let per_cluster = cluster_size.bytes() >> GRAIN_BITS;
    let per_table = GRAINS_OF_TABLE / per_cluster;
    let covered = part.covered(mapped).div_ceil(per_table).max(1);
    let first_table = tables_sector(covered);
    write_headers(image, part, (covered, first_table), grains / SECTOR_BYTES);
    let table_of = |grain: &MappedCluster| (grain.cluster.get() - part.first) / per_table;
    let tables = mapped.chunk_by(|here, then| table_of(here) == table_of(then));
    for (nth, clusters) in (0..).zip(tables) {
        let Some(first) = clusters.first() else { continue };
        let in_directory = DIRECTORY_SECTOR * SECTOR_BYTES + table_of(first) * SE_ENTRY_BYTES;
        let named = NAMED_TABLE | nth;
        image.write(HostOffset::new(in_directory), &named.to_le_bytes());
        let table = first_table * SECTOR_BYTES + nth * TABLE_BYTES;
        for cluster in clusters {
            let inside = (cluster.cluster.get() - part.first) % per_table * per_cluster;
            let entries = image.place(
                HostOffset::new(table + inside * SE_ENTRY_BYTES),
                (per_cluster * SE_ENTRY_BYTES) as usize,
            );
            let file_offset = |host| plan.file.file_offset(cluster_size, host).get();
            fill(entries, cluster, |host| (file_offset(host) - grains) >> GRAIN_BITS);
            if let Some((host, write)) = cluster.data() {
                let at = plan.file.file_offset(cluster_size, host);
                builder.write_cluster(image, cluster.cluster, at, write);
            }
        }
    }
}

/// Fills the entries of a cluster. `index_of` returns the number of the grain that lies at a host offset.
fn fill(entries: &mut [u8], cluster: &MappedCluster, index_of: impl Fn(HostOffset) -> u64) {
    let (entries, _) = entries.as_chunks_mut::<{ SE_ENTRY_BYTES as usize }>();
    for (nth, entry) in (0..).zip(entries) {
        let number = match cluster.mapping {
            ClusterMapping::Normal(host, _) => {
                let index = index_of(host) + nth;
                // The lower twelve bits lie above the others.
                STORED | (index & 0xfff) << 48 | index >> 12
            }
            // Both kinds of zeros, in turn.
            ClusterMapping::Zero(_) if nth % 2 == 0 => ZERO,
            ClusterMapping::Zero(_) => UNMAPPED,
            _ => 0,
        };
        *entry = number.to_le_bytes();
    }
}

/// Writes both headers. `tables` are the number of directory entries and the sector of the first table; `grains` is the
/// sector of the first grain.
fn write_headers(image: &mut Image, part: DiskPart, tables: (u64, u64), grains: u64) {
    let (entries, tables_sector) = tables;
    let directory_sectors = tables_sector - DIRECTORY_SECTOR;
    let table_sectors = TABLE_BYTES / SECTOR_BYTES;
    let mut header = [0; HEADER_BYTES];
    let mut out = header.as_mut_slice();
    for field in
        [CONST_MAGIC, VERSION, part.sectors, (1 << GRAIN_BITS) / SECTOR_BYTES, table_sectors]
    {
        out.put_u64_le(field);
    }
    // Flags, and four reserved fields.
    out.put_bytes(0, 5 * 8);
    out.put_u64_le(VOLATILE_SECTOR);
    out.put_u64_le(1);
    // The journal's header, and the journal.
    out.put_bytes(0, 4 * 8);
    for field in [DIRECTORY_SECTOR, directory_sectors, tables_sector, entries * table_sectors] {
        out.put_u64_le(field);
    }
    // The bitmap of free grains, and the map from grains to entries.
    out.put_bytes(0, 4 * 8);
    out.put_u64_le(grains);
    out.put_u64_le(part.sectors);
    image.write(HostOffset::ZERO, &header);
    let mut header = [0; HEADER_BYTES];
    let mut out = header.as_mut_slice();
    out.put_u64_le(VOLATILE_MAGIC);
    // The next free table.
    out.put_u64_le(entries);
    image.write(HostOffset::new(VOLATILE_SECTOR * SECTOR_BYTES), &header);
}
