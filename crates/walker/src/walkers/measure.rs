//! The size of the file that a new image needs for a disk, as `qemu-img measure` calculates it.
//!
//! A new raw image is as long as the disk. A new qcow2 image has these parts, each in whole clusters: the header, the
//! L2 tables of the whole disk, the L1 table, the data, and the refcount structures, which count all of them and
//! themselves. The metadata are those of a full disk, even if few clusters hold data: the estimate is an upper bound.

use std::ops::ControlFlow;

use crate::disk::extent::{Extent, Window};
use crate::disk::observer::Observer;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{ListedBitmap, table_entries_for};
use crate::formats::qcow2::constants::{BITMAP_FIXED_BYTES, MAX_L1_ENTRIES};
use crate::formats::qcow2::entry::Layout;
use crate::formats::qcow2::geometry::{Geometry, Version};

use super::disk::{Disk, WalkScratch};
use super::map::map_extents;

/// The length of an entry of an L1 table, a refcount table or a bitmap table.
const POINTER_BYTES: u64 = 8;
/// The unit of the size of a raw image.
const SECTOR_BYTES: u64 = 512;

/// An image that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedImage {
    /// A raw image.
    Raw,
    /// A qcow2 image.
    Qcow2(PlannedQcow2),
}

/// A qcow2 image that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedQcow2 {
    /// The parameters of its structures. A data file makes no difference: QEMU adds the data to those of the image.
    pub geometry: Geometry,
    /// The image has a backing file. Then every cluster of a source counts as data, because the backing file may have
    /// other bytes than the source.
    pub has_backing_file: bool,
    /// All clusters are allocated when the image is created: `preallocation=falloc` or `preallocation=full`.
    pub allocates_data: bool,
}

/// The number of bytes that a new image needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// The number of bytes with the data of the source.
    pub required_bytes: u64,
    /// The number of bytes once the guest has written to every cluster.
    pub fully_allocated_bytes: u64,
    /// The number of bytes that copies of the persistent bitmaps need in addition; `None` if the source or the new
    /// image cannot have bitmaps.
    pub bitmaps_bytes: Option<u64>,
}

/// The reason why a new image cannot be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// QEMU creates no image of this size.
    #[error(
        "the disk has {size_bytes} bytes, expected at most {most_bytes} with clusters of {cluster_bytes} bytes"
    )]
    TooLarge {
        /// The size of the disk.
        size_bytes: u64,
        /// The largest size, by the largest L1 table that QEMU opens.
        most_bytes: u64,
        /// The cluster size of the new image.
        cluster_bytes: u64,
    },
    /// The sum has more than 64 bits.
    #[error("the image would have 2^64 bytes or more")]
    Overflow,
    /// The source is malformed, or a read of it failed.
    #[error(transparent)]
    Source(#[from] MapError),
}

impl PlannedImage {
    /// Measures an image of an empty disk of `size_bytes` (QEMU `block/raw-format.c`, `raw_measure`, and
    /// `block/qcow2.c`, `qcow2_measure`).
    ///
    /// # Errors
    /// QEMU creates no image of this size.
    pub fn measure_empty(&self, size_bytes: u64) -> Result<Measurement, MeasureError> {
        match self {
            Self::Raw => {
                let bytes = size_bytes.checked_next_multiple_of(SECTOR_BYTES);
                Ok(Measurement::of_raw(bytes.ok_or(MeasureError::Overflow)?))
            }
            Self::Qcow2(new) => {
                new.check_size(size_bytes)?;
                new.measure(size_bytes, 0)
            }
        }
    }

    /// Measures an image of `disk`, the source. `bitmaps` are those of the source, or `None` if it cannot have any.
    /// The disk should report [host holes](Disk::with_host_holes) and [blocks](Disk::as_qemu_reports) as QEMU does.
    ///
    /// As in QEMU, a size of the disk that is too large for the new image is no error.
    /// QEMU looks at no mapping behind data in the same cluster of the new image. This walks all of the source, so that
    /// a malformed entry there is an error.
    ///
    /// # Errors
    /// The source is malformed, or a read of it failed.
    pub fn measure<S: Storage + ?Sized, O: Observer>(
        &self,
        disk: &Disk<S, O>,
        bitmaps: Option<&[ListedBitmap]>,
    ) -> Result<Measurement, MeasureError> {
        let size_bytes = disk.virtual_size_bytes();
        match self {
            Self::Raw => Ok(Measurement::of_raw(size_bytes)),
            Self::Qcow2(new) => {
                let data_clusters = match new.has_backing_file {
                    true => new.geometry.cluster_size.clusters_for(size_bytes),
                    false => new.data_clusters(disk)?,
                };
                let measured = new.measure(size_bytes, data_clusters)?;
                let bitmaps = bitmaps.filter(|_| new.geometry.version == Version::V3);
                let bytes = |bitmaps| new.bitmaps_bytes(size_bytes, bitmaps);
                let bitmaps_bytes = match bitmaps.map(bytes) {
                    Some(None) => return Err(MeasureError::Overflow),
                    Some(bytes) => bytes,
                    None => None,
                };
                Ok(Measurement { bitmaps_bytes, ..measured })
            }
        }
    }
}

impl Measurement {
    fn of_raw(bytes: u64) -> Self {
        Self { required_bytes: bytes, fully_allocated_bytes: bytes, bitmaps_bytes: None }
    }
}

impl PlannedQcow2 {
    /// Rejects the size of a disk whose L1 table would be longer than QEMU opens.
    ///
    /// # Errors
    /// The disk is too large.
    pub fn check_size(&self, size_bytes: u64) -> Result<(), MeasureError> {
        let Geometry { cluster_size, .. } = self.geometry;
        // An L2 table maps 2^39 bytes at most, and the table has 2^22 entries.
        let most_bytes = u64::from(MAX_L1_ENTRIES).saturating_mul(self.geometry.l2_span_bytes());
        match size_bytes <= most_bytes {
            true => Ok(()),
            false => {
                let cluster_bytes = cluster_size.bytes();
                Err(MeasureError::TooLarge { size_bytes, most_bytes, cluster_bytes })
            }
        }
    }

    /// Measures an image of a disk with this number of clusters with data.
    fn measure(&self, size_bytes: u64, data_clusters: u64) -> Result<Measurement, MeasureError> {
        let cluster_size = self.geometry.cluster_size;
        let all_clusters = cluster_size.clusters_for(size_bytes);
        let required = if self.allocates_data { all_clusters } else { data_clusters };
        let metadata = metadata_clusters(&self.geometry, all_clusters);
        let bytes = |data: u64| metadata?.checked_add(data)?.checked_mul(cluster_size.bytes());
        match (bytes(required), bytes(all_clusters)) {
            (Some(required_bytes), Some(fully_allocated_bytes)) => {
                Ok(Measurement { required_bytes, fully_allocated_bytes, bitmaps_bytes: None })
            }
            _ => Err(MeasureError::Overflow),
        }
    }

    /// Returns the number of clusters of the new image that have data of the source.
    fn data_clusters<S: Storage + ?Sized, O: Observer>(
        &self,
        disk: &Disk<S, O>,
    ) -> Result<u64, MapError> {
        let cluster_size = self.geometry.cluster_size;
        // The clusters before `uncounted` are done: two extents with data may lie in one cluster.
        let (mut count, mut uncounted) = (0_u64, 0);
        let mut visitor = |extent: Extent| {
            if extent.mapping.data && !extent.mapping.zero {
                let end = extent.start + extent.length_bytes;
                let first = cluster_size.guest_cluster(extent.start).get().max(uncounted);
                uncounted = cluster_size.clusters_for(end.get()).max(first);
                count = count.saturating_add(uncounted.saturating_sub(first));
            }
            ControlFlow::Continue(())
        };
        map_extents(disk, Window::ALL, &mut WalkScratch::new(), &mut visitor)?;
        Ok(count)
    }

    /// Returns the number of bytes of copies of bitmaps of a disk: all their clusters, their tables, and one directory
    /// (QEMU `block/qcow2-bitmap.c`, `qcow2_get_persistent_dirty_bitmap_size`). Returns `None` past 64 bits.
    fn bitmaps_bytes(&self, size_bytes: u64, bitmaps: &[ListedBitmap]) -> Option<u64> {
        let cluster_size = self.geometry.cluster_size;
        let (mut clusters, mut directory_bytes) = (0_u64, 0_u64);
        for ListedBitmap { name, granularity_bits, .. } in bitmaps {
            let data = table_entries_for(size_bytes, *granularity_bits, cluster_size);
            let table = cluster_size.clusters_for(data.checked_mul(POINTER_BYTES)?);
            clusters = clusters.checked_add(data)?.checked_add(table)?;
            let name_bytes = u64::try_from(name.len()).ok()?;
            let entry_bytes = name_bytes.checked_add(BITMAP_FIXED_BYTES as u64)?;
            directory_bytes =
                directory_bytes.checked_add(entry_bytes.checked_next_multiple_of(8)?)?;
        }
        clusters = clusters.checked_add(cluster_size.clusters_for(directory_bytes))?;
        clusters.checked_mul(cluster_size.bytes())
    }
}

/// Returns the number of clusters without data in an image with all its L2 tables (QEMU `block/qcow2.c`,
/// `qcow2_calc_prealloc_size`). Returns `None` past 64 bits.
fn metadata_clusters(geometry: &Geometry, data_clusters: u64) -> Option<u64> {
    let l2_tables = data_clusters.div_ceil(geometry.l2_entries());
    let l1_clusters = geometry.cluster_size.clusters_for(l2_tables.checked_mul(POINTER_BYTES)?);
    // The header takes one cluster.
    let counted = l2_tables.checked_add(l1_clusters)?.checked_add(1)?;
    counted.checked_add(refcount_clusters(geometry, counted.checked_add(data_clusters)?)?)
}

/// Returns the number of clusters of the refcount blocks and the refcount table that count `clusters` and themselves
/// (QEMU `block/qcow2.c`, `qcow2_refcount_metadata_size`). Returns `None` past 64 bits.
fn refcount_clusters(geometry: &Geometry, clusters: u64) -> Option<u64> {
    let blocks_per_table_cluster = geometry.cluster_size.bytes() / POINTER_BYTES;
    let mut own = 0;
    // A block counts 64 clusters or more, so that each step adds a small part of the step before: the loop ends.
    loop {
        let blocks = clusters.checked_add(own)?.div_ceil(geometry.refcounts_per_block());
        let next = blocks.checked_add(blocks.div_ceil(blocks_per_table_cluster))?;
        if next == own {
            return Some(own);
        }
        own = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::clusters::ClusterSize;
    use crate::disk::image_format::ImageFormat;
    use crate::disk::offsets::GuestOffset;
    use crate::disk::storage::Layer;
    use crate::formats::qcow2::geometry::Compression;
    use crate::walkers::lookup;

    /// Returns a new image with clusters of 2^`bits` bytes.
    fn qcow2(bits: u32, refcount_order: u32, extended_l2: bool) -> PlannedQcow2 {
        let geometry = Geometry {
            version: Version::V3,
            cluster_size: ClusterSize::from_bits(bits).unwrap(),
            refcount_order,
            extended_l2,
            compression: Compression::Deflate,
            data_file: false,
        };
        PlannedQcow2 { geometry, has_backing_file: false, allocates_data: false }
    }

    fn sizes(measured: Result<Measurement, MeasureError>) -> (u64, u64) {
        let measured = measured.unwrap();
        (measured.required_bytes, measured.fully_allocated_bytes)
    }

    /// The sizes are those that qemu-img 10.0.2 prints.
    #[test]
    fn an_empty_disk_needs_the_metadata_of_a_full_one() {
        let measured =
            |new: PlannedQcow2, size| sizes(PlannedImage::Qcow2(new).measure_empty(size));
        assert_eq!(measured(qcow2(16, 4, false), 0), (196_608, 196_608));
        assert_eq!(measured(qcow2(16, 4, false), 1000), (327_680, 393_216));
        assert_eq!(measured(qcow2(12, 0, false), 1 << 20), (20_480, 1_069_056));
        assert_eq!(measured(qcow2(14, 4, true), 1 << 20), (81_920, 1_130_496));
        let largest = measured(qcow2(21, 4, false), 1 << 61);
        assert_eq!(largest, (10_995_174_998_016, 2_305_854_004_388_691_968));
        let allocated = PlannedQcow2 { allocates_data: true, ..qcow2(16, 4, false) };
        assert_eq!(measured(allocated, 1 << 20), (1_376_256, 1_376_256));
        assert_eq!(sizes(PlannedImage::Raw.measure_empty(1000)), (1024, 1024));
    }

    #[test]
    fn a_disk_that_is_too_large_is_an_error() {
        let measured = |new: PlannedQcow2, size| PlannedImage::Qcow2(new).measure_empty(size);
        for (bits, extended_l2) in [(9, false), (16, false), (16, true), (21, false), (21, true)] {
            let new = qcow2(bits, 6, extended_l2);
            let most = u64::from(MAX_L1_ENTRIES) * new.geometry.l2_span_bytes();
            measured(new.clone(), most).unwrap();
            let error = measured(new, most + 1).unwrap_err().to_string();
            assert!(error.contains(&format!("expected at most {most} ")), "{error}");
        }
        assert_eq!(PlannedImage::Raw.measure_empty(u64::MAX), Err(MeasureError::Overflow));
    }

    #[test]
    fn clusters_with_data_count_once() {
        // A raw layer in memory has no holes: all of its bytes are data.
        let bytes = [1_u8; 3 << 9];
        let disk = Disk::open_alone(ImageFormat::Raw, bytes.as_slice()).unwrap();
        let measured = |new: PlannedQcow2| sizes(PlannedImage::Qcow2(new).measure(&disk, None));
        assert_eq!(measured(qcow2(9, 4, false)), (8 << 9, 8 << 9));
        assert_eq!(measured(qcow2(10, 4, false)), (7 << 10, 7 << 10));
        let bitmap = |name: &str| {
            let name = name.as_bytes().to_vec();
            ListedBitmap { name, flags: 0, granularity_bits: 9 }
        };
        let bitmaps = [bitmap("a"), bitmap("b")];
        let with_bitmaps =
            |new: PlannedQcow2| PlannedImage::Qcow2(new).measure(&disk, Some(&bitmaps)).unwrap();
        // Two tables, two clusters of bits, one directory.
        assert_eq!(with_bitmaps(qcow2(9, 4, false)).bitmaps_bytes, Some(5 << 9));
        let mut version_2 = qcow2(9, 4, false);
        version_2.geometry.version = Version::V2;
        assert_eq!(with_bitmaps(version_2).bitmaps_bytes, None);
    }

    /// Returns an image of 256 clusters of 1 KiB with one snapshot, whose L1 table has one entry for 128 clusters. An
    /// entry that is not aligned lies behind it.
    fn image_with_snapshot() -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"QFI\xfb");
        for (at, number) in [(4, 2_u32), (20, 10), (36, 2), (56, 1), (60, 1), (4096 + 8, 1)] {
            put(at, &number.to_be_bytes());
        }
        for (at, number) in [(24, 256_u64 << 10), (40, 1024), (48, 7168), (64, 4096)] {
            put(at, &number.to_be_bytes());
        }
        // The snapshot's L1 table, its L2 table, and the data of the second cluster.
        for (at, number) in [(4096, 2048_u64), (2048, 3072), (2056, 1536), (3080, 5120)] {
            put(at, &number.to_be_bytes());
        }
        bytes
    }

    #[test]
    fn a_short_table_of_a_snapshot_leaves_the_rest_unallocated() {
        let bytes = image_with_snapshot();
        let open = || Disk::open(&[Layer::alone(bytes.as_slice())]).unwrap();
        assert!(open().into_snapshot(0).is_err());
        assert!(open().with_table_of_snapshot(1).is_err());
        let disk = open().with_table_of_snapshot(0).unwrap();
        let mut extents = Vec::new();
        let mut keep = |Extent { start, length_bytes, mapping }: Extent| {
            extents.push((start.get() >> 10, length_bytes >> 10, mapping.data));
            ControlFlow::Continue(())
        };
        map_extents(&disk, Window::ALL, &mut WalkScratch::new(), &mut keep).unwrap();
        assert_eq!(extents, [(0, 1, false), (1, 1, true), (2, 254, false)]);
        let is_present =
            |cluster: u64| lookup(&disk, GuestOffset::new(cluster << 10)).unwrap().present;
        assert!(is_present(1) && !is_present(127) && !is_present(128) && !is_present(255));
    }
}
