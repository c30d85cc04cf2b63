//! New images: the header, the refcount table, the refcount blocks and the L1 table follow each other.

use qcowfuzz::disk::clusters::ClusterSize;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::formats::qcow2::constants::{
    INCOMPATIBLE_COMPRESSION, INCOMPATIBLE_EXTENDED_L2, MAGIC, MAX_L1_ENTRIES,
    MIN_EXTENDED_L2_CLUSTER_BITS, V3_COMPRESSION_LENGTH_BYTES, V3_LENGTH_BYTES, header,
};
use qcowfuzz::formats::qcow2::entry::Layout;
use qcowfuzz::formats::qcow2::geometry::{Compression, Geometry, Version};
use qcowfuzz::harness::files::chain::ChainFile;

use crate::{WriteError, WriterFault};

/// The place of the name of the backing file in the header, and then its length.
const BACKING_NAME_AT: HostOffset = HostOffset::new(header::BACKING_FILE_OFFSET.at as u64);
/// A name of one byte behind the header.
const PLANTED_NAME: [u8; 12] = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1];

/// The places of the structures of a new image, in clusters.
#[derive(Clone, Copy, Debug)]
struct NewLayout {
    table_clusters: u64,
    blocks: u64,
    l1_entries: u64,
    l1_clusters: u64,
}

impl NewLayout {
    fn new(geometry: &Geometry, size_bytes: u64) -> Result<Self, WriteError> {
        let cluster = geometry.cluster_size.bytes();
        let per_table = cluster / geometry.l2_entry_bytes();
        // A disk without clusters has an L1 table all the same, as in QEMU.
        let l1_entries = geometry.cluster_size.clusters_for(size_bytes).div_ceil(per_table).max(1);
        if l1_entries > u64::from(MAX_L1_ENTRIES) {
            return Err(WriteError::TooLong);
        }
        let l1_clusters = geometry.cluster_size.clusters_for(l1_entries * 8);
        let per_block = (cluster * 8) >> geometry.refcount_order;
        let mut layout = Self { table_clusters: 1, blocks: 1, l1_entries, l1_clusters };
        loop {
            let blocks = layout.clusters().div_ceil(per_block);
            let table_clusters = geometry.cluster_size.clusters_for(blocks * 8);
            if (blocks, table_clusters) == (layout.blocks, layout.table_clusters) {
                return Ok(layout);
            }
            // Both only grow, and a block counts more clusters than it takes.
            (layout.blocks, layout.table_clusters) = (blocks, table_clusters);
        }
    }

    /// Returns the number of clusters of the file.
    fn clusters(&self) -> u64 {
        1 + self.table_clusters + self.blocks + self.l1_clusters
    }
}

/// Writes an empty image to an empty file.
pub(super) fn create(
    file: &ChainFile,
    geometry: &Geometry,
    size_bytes: u64,
    fault: Option<WriterFault>,
) -> Result<(), WriteError> {
    if geometry.extended_l2 || geometry.data_file {
        return Err(WriteError::Unsupported("extended L2 entries and data files"));
    }
    let size_bytes = match fault {
        Some(WriterFault::CreatedSizeRounded) => {
            geometry.cluster_size.saturating_bytes(geometry.cluster_size.clusters_for(size_bytes))
        }
        _ => size_bytes,
    };
    let geometry = &asked_or_planted(geometry, fault);
    let layout = NewLayout::new(geometry, size_bytes)?;
    let at = |cluster: u64| HostOffset::new(geometry.cluster_size.saturating_bytes(cluster));
    let first_block = 1 + layout.table_clusters;
    let l1 = first_block + layout.blocks;
    let missed = u64::from(fault == Some(WriterFault::CreatedNotCounted));
    write_counts(file, geometry, at(first_block), layout.clusters() - missed)?;
    for block in 0..layout.blocks {
        let entry = at(first_block + block).get();
        file.write_at(at(1) + block * 8, &entry.to_be_bytes())?;
    }
    // The tables are holes of zeros: the last byte gives the file its length.
    file.write_at(HostOffset::new(at(layout.clusters()).get() - 1), &[0])?;
    file.write_at(HostOffset::ZERO, &header(geometry, size_bytes, &layout, (at(l1), at(1))))?;
    if fault == Some(WriterFault::CreatedBacked) {
        file.write_at(BACKING_NAME_AT, &PLANTED_NAME)?;
    }
    Ok(file.flush()?)
}

/// Returns the geometry that was asked for, or another one that a fault makes of it.
fn asked_or_planted(asked: &Geometry, fault: Option<WriterFault>) -> Geometry {
    match fault {
        Some(WriterFault::CreatedWidthIgnored) => Geometry { refcount_order: 4, ..*asked },
        Some(WriterFault::CreatedVersionIgnored) => Geometry { version: Version::V3, ..*asked },
        Some(WriterFault::CreatedClusterIgnored) => {
            let cluster_size = ClusterSize::from_bits(16).unwrap_or(ClusterSize::SMALLEST);
            Geometry { cluster_size, ..*asked }
        }
        Some(WriterFault::CreatedEntriesExtended) => {
            let can_be = asked.version == Version::V3
                && asked.cluster_size.bits() >= MIN_EXTENDED_L2_CLUSTER_BITS;
            Geometry { extended_l2: can_be, ..*asked }
        }
        Some(WriterFault::CreatedCompressionIgnored) => {
            Geometry { compression: Compression::Deflate, ..*asked }
        }
        _ => *asked,
    }
}

/// Gives the first `clusters` of the file the count 1. The blocks follow each other, and so do the counts.
fn write_counts(
    file: &ChainFile,
    geometry: &Geometry,
    at: HostOffset,
    clusters: u64,
) -> Result<(), WriteError> {
    let mut bytes = Vec::new();
    match 1usize << geometry.refcount_order {
        width if width >= 8 => {
            for _ in 0..clusters {
                bytes.resize(bytes.len() + width / 8, 0);
                if let Some(last) = bytes.last_mut() {
                    *last = 1;
                }
            }
        }
        width => {
            for cluster in 0..clusters as usize {
                let bit = cluster * width;
                bytes.resize(bit / 8 + 1, 0u8);
                if let Some(last) = bytes.last_mut() {
                    *last |= 1 << (bit % 8);
                }
            }
        }
    }
    Ok(file.write_at(at, &bytes)?)
}

/// Returns the header of a new image. The bytes behind it are zeros: there are no extensions.
fn header(
    geometry: &Geometry,
    size_bytes: u64,
    layout: &NewLayout,
    (l1, table): (HostOffset, HostOffset),
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let is_old = geometry.version == Version::V2;
    let is_zstd = geometry.compression == Compression::Zstd;
    bytes.extend_from_slice(&MAGIC.to_be_bytes());
    bytes.extend_from_slice(&if is_old { 2u32 } else { 3 }.to_be_bytes());
    // No backing file.
    bytes.extend_from_slice(&[0; 12]);
    bytes.extend_from_slice(&geometry.cluster_size.bits().to_be_bytes());
    bytes.extend_from_slice(&size_bytes.to_be_bytes());
    // No encryption.
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&(layout.l1_entries as u32).to_be_bytes());
    bytes.extend_from_slice(&l1.get().to_be_bytes());
    bytes.extend_from_slice(&table.get().to_be_bytes());
    bytes.extend_from_slice(&(layout.table_clusters as u32).to_be_bytes());
    // No snapshots.
    bytes.extend_from_slice(&[0; 12]);
    if is_old {
        return bytes;
    }
    let mut incompatible = if is_zstd { INCOMPATIBLE_COMPRESSION } else { 0 };
    // Only a fault sets this bit.
    incompatible |= if geometry.extended_l2 { INCOMPATIBLE_EXTENDED_L2 } else { 0 };
    bytes.extend_from_slice(&incompatible.to_be_bytes());
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(&geometry.refcount_order.to_be_bytes());
    let length = if is_zstd { V3_COMPRESSION_LENGTH_BYTES } else { V3_LENGTH_BYTES };
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(if is_zstd { &[1, 0, 0, 0, 0, 0, 0, 0] } else { &[] });
    bytes
}
