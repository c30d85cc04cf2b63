//! The images about which QEMU answers slowly.

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::qcow2::header::Header;
use crate::harness::chain::{Chain, ChainFile, ChainLayer};
use crate::harness::second_opinion::{JudgedDisk, JudgedImage};

/// The highest number of snapshots of a qcow2 image: QEMU opens an image with the most that it allows in seconds.
const MAX_OPENED_SNAPSHOTS: u32 = 1024;
/// The host offset of the number of snapshots in a qcow2 header.
const SNAPSHOTS_AT: HostOffset = HostOffset::new(60);
/// The highest number of clusters, or subclusters, of a file whose image is mapped.
const MAX_COUNTED_CELLS: u64 = 1 << 21;
/// A disk with more tables is costly: QEMU reads the whole table at the top when it opens the image.
const MAX_CHEAP_TABLES: u64 = 1 << 16;

/// Reports whether QEMU would open a layer in seconds.
pub(super) fn has_many_snapshots(layer: &ChainLayer) -> bool {
    let mut snapshots = [0; 4];
    layer.format == ImageFormat::Qcow2
        && layer.image.read_at(SNAPSHOTS_AT, &mut snapshots).is_ok()
        && u32::from_be_bytes(snapshots) > MAX_OPENED_SNAPSHOTS
}

/// Reports whether a file of an image is so long that QEMU would count its clusters for seconds before it maps the disk
/// (`block/qcow2.c`, `qcow2_detect_metadata_preallocation`).
pub(super) fn is_long(image: &JudgedImage) -> bool {
    image.chain.layers().iter().any(|layer| has_many_cells(&layer.image, image.cell_bytes))
}

/// Reports whether the image at the top is so long that `qemu-img check` would count its clusters for seconds.
pub(super) fn is_long_to_check(files: &Chain) -> bool {
    let image = files.image();
    let is_long = |header: Header| has_many_cells(image, header.geometry.cluster_size.bytes());
    Header::read(image).is_ok_and(is_long)
}

fn has_many_cells(file: &ChainFile, cell_bytes: u64) -> bool {
    file.length_bytes() / cell_bytes.max(1) > MAX_COUNTED_CELLS
}

/// Reports whether QEMU reads a table of more than half a MiB when it opens the image at the top.
pub(super) fn has_many_tables(image: &JudgedImage) -> bool {
    let tables = |disk: &JudgedDisk| disk.size_bytes >> image.table_span_bits.min(63);
    image.disk.as_ref().is_ok_and(|disk| tables(disk) > MAX_CHEAP_TABLES)
}
