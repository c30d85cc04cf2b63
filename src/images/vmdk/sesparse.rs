//! seSparse extents, which ESXi writes. The format is not documented: the fields are those that QEMU reads
//! (`block/vmdk.c`, `vmdk_open_se_sparse`). All numbers are little-endian, and places are in sectors.
//!
//! The file has no journal, and its bitmap of free grains and its map from grains to entries are empty: no reader needs
//! them.

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::formats::vmdk::constants::{
    ESX_TABLE_ENTRIES, HEADER_BYTES, SE_SPARSE_ENTRY_BYTES, SE_SPARSE_GRAIN_SECTORS,
    SE_SPARSE_MAGIC, SE_SPARSE_TABLE_SECTORS, SE_SPARSE_VERSION, SE_SPARSE_VOLATILE_MAGIC,
    SECTOR_BYTES, const_header, volatile_header,
};
use crate::images::files::image::Image;
use crate::images::format::file_plan::ExtentForm;
use crate::images::qcow2::tables::ClusterMapping;
use crate::images::qcow2::{Builder, MappedCluster};

use super::encoding::{DiskPart, structure};

/// log2 of the size of a grain, which is always the same.
const GRAIN_BITS: u32 = (SE_SPARSE_GRAIN_SECTORS * SECTOR_BYTES).ilog2();
/// log2 of the size of the largest cluster that grains are written for. Each grain costs an entry.
const LARGEST_CLUSTER_BITS: u32 = 16;
const GRAINS_OF_TABLE: u64 = ESX_TABLE_ENTRIES as u64;
const TABLE_BYTES: u64 = SE_SPARSE_TABLE_SECTORS * SECTOR_BYTES;
/// The place of the second header, and that of the directory.
const VOLATILE_SECTOR: u64 = 1;
const DIRECTORY_SECTOR: u64 = 2;

/// The upper bits of a directory entry that names a table.
const NAMED_TABLE: u64 = 1 << 60;
/// The upper bits of an entry for a grain that was unmapped, for one of zeros, and for one that is stored.
const UNMAPPED: u64 = 1 << 60;
const ZERO: u64 = 2 << 60;
const STORED: u64 = 3 << 60;

/// Returns the kind of a file that gets a `kind` and clusters of this size: a sparse extent in place of an seSparse one
/// whose grains no cluster of this size consists of.
pub(super) fn kind_with_grains_of(kind: ExtentForm, cluster: ClusterSize) -> ExtentForm {
    match kind {
        ExtentForm::SeSparse if !has_grains_for(cluster) => ExtentForm::Sparse,
        kind => kind,
    }
}

/// Reports whether clusters of this size consist of grains.
fn has_grains_for(cluster: ClusterSize) -> bool {
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
    DIRECTORY_SECTOR + (tables * SE_SPARSE_ENTRY_BYTES).div_ceil(SECTOR_BYTES)
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
        let in_directory =
            DIRECTORY_SECTOR * SECTOR_BYTES + table_of(first) * SE_SPARSE_ENTRY_BYTES;
        let named = NAMED_TABLE | nth;
        image.write(HostOffset::new(in_directory), &named.to_le_bytes());
        let table = first_table * SECTOR_BYTES + nth * TABLE_BYTES;
        for cluster in clusters {
            let inside = (cluster.cluster.get() - part.first) % per_table * per_cluster;
            let entries = image.place(
                HostOffset::new(table + inside * SE_SPARSE_ENTRY_BYTES),
                (per_cluster * SE_SPARSE_ENTRY_BYTES) as usize,
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
    let (entries, _) = entries.as_chunks_mut::<{ SE_SPARSE_ENTRY_BYTES as usize }>();
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
    let header: [u8; HEADER_BYTES] = structure(&[
        (const_header::MAGIC, SE_SPARSE_MAGIC),
        (const_header::VERSION, SE_SPARSE_VERSION),
        (const_header::CAPACITY, part.sectors),
        (const_header::GRAIN_SIZE, SE_SPARSE_GRAIN_SECTORS),
        (const_header::GRAIN_TABLE_SIZE, SE_SPARSE_TABLE_SECTORS),
        (const_header::VOLATILE_HEADER_OFFSET, VOLATILE_SECTOR),
        (const_header::VOLATILE_HEADER_SIZE, 1),
        (const_header::GRAIN_DIR_OFFSET, DIRECTORY_SECTOR),
        (const_header::GRAIN_DIR_SIZE, tables_sector - DIRECTORY_SECTOR),
        (const_header::GRAIN_TABLES_OFFSET, tables_sector),
        (const_header::GRAIN_TABLES_SIZE, entries * SE_SPARSE_TABLE_SECTORS),
        (const_header::GRAINS_OFFSET, grains),
        (const_header::GRAINS_SIZE, part.sectors),
    ]);
    image.write(HostOffset::ZERO, &header);
    let header: [u8; HEADER_BYTES] = structure(&[
        (volatile_header::MAGIC, SE_SPARSE_VOLATILE_MAGIC),
        // The next free table.
        (volatile_header::FREE_GT_NUMBER, entries),
    ]);
    image.write(HostOffset::new(VOLATILE_SECTOR * SECTOR_BYTES), &header);
}
