//! The images about which QEMU answers slowly.

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::qcow2::entry::Layout;
use crate::formats::qcow2::header::Header;
use crate::harness::against::second_opinion::{JudgedDisk, JudgedImage};
use crate::harness::files::chain::{Chain, ChainFile, ChainLayer};

/// The highest number of snapshots of a qcow2 image: QEMU opens an image with the most that it allows in seconds.
const MAX_OPENED_SNAPSHOTS: u32 = 1024;
/// The host offset of the number of snapshots in a qcow2 header.
const SNAPSHOTS_AT: HostOffset = HostOffset::new(60);
/// The highest number of clusters, or subclusters, of a file whose image is mapped.
const MAX_COUNTED_CELLS: u64 = 1 << 21;
/// A disk with more tables is costly: QEMU reads the whole table at the top when it opens the image.
const MAX_CHEAP_TABLES: u64 = 1 << 16;
/// The largest disk of which an engine maps all, in bytes.
const MAX_ENGINE_DISK_BYTES: u64 = 1 << 47;
/// The highest number of tables of such a disk.
const MAX_ENGINE_DISK_TABLES: u64 = 1 << 17;

/// Reports whether QEMU would open a layer in seconds.
pub(in crate::harness) fn has_many_snapshots(layer: &ChainLayer) -> bool {
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

/// Reports whether `qemu-img map` or `qemu-img convert` would take seconds for the disk at the top of `chain`: they
/// visit each table, also a missing one, and each GiB. Nothing is known about an image without a sound header.
pub(in crate::harness) fn is_slow_to_map(chain: &Chain) -> bool {
    let is_slow = |layer: &ChainLayer| match layer.format {
        ImageFormat::Qcow2 => Header::read(&layer.image).is_ok_and(|header| {
            let Header { geometry, size_bytes, .. } = header;
            let span_bits = geometry.l2_bits() + geometry.cluster_size.bits();
            let files = [Some(&layer.image), layer.data_file.as_ref()].into_iter().flatten();
            let mut files = files.map(|file| has_many_cells(file, geometry.cluster_size.bytes()));
            size_bytes > MAX_ENGINE_DISK_BYTES
                || size_bytes >> span_bits > MAX_ENGINE_DISK_TABLES
                || files.any(|is_long| is_long)
        }),
        _ => layer.image.length_bytes() > MAX_ENGINE_DISK_BYTES,
    };
    chain.layers().iter().any(|layer| has_many_snapshots(layer) || is_slow(layer))
}

fn has_many_cells(file: &ChainFile, cell_bytes: u64) -> bool {
    file.length_bytes() / cell_bytes.max(1) > MAX_COUNTED_CELLS
}

/// Reports whether QEMU reads a table of more than half a MiB when it opens the image at the top.
pub(super) fn has_many_tables(image: &JudgedImage) -> bool {
    let tables = |disk: &JudgedDisk| disk.size_bytes >> image.table_span_bits.min(63);
    image.disk.as_ref().is_ok_and(|disk| tables(disk) > MAX_CHEAP_TABLES)
}
