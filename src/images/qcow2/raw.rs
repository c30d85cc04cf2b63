//! The lowest layer of a chain as a raw file: the bytes that a guest reads.

use crate::disk::clusters::SUBCLUSTERS;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::images::content::{WriteNumber, stamp};
use crate::images::files::LayerFiles;
use crate::images::image::Image;
use crate::images::qcow2::encoding::sizes::Sizes;

use super::builder::Builder;
use super::serialise::DataCluster;
use super::tables::{ClusterMapping, Compressed, Extended};

impl Builder {
    /// Writes the bytes that a guest reads. The file is exactly as long as the disk. If it `has_holes`, it stores only
    /// the clusters and subclusters that hold data.
    pub fn build_raw(&self, has_holes: bool, files: &mut LayerFiles) {
        files.begin(ImageFormat::Raw);
        if has_holes {
            files.image.stored.begin();
        }
        self.write_flat(&mut files.image, HostOffset::ZERO);
        files.image.truncate(self.plan.size_bytes);
        files.image.seal(self.plan.size_bytes);
    }

    /// Writes the bytes that a guest reads from `start` on, in the order of the disk. The last cluster may reach past
    /// the disk.
    pub fn write_flat(&self, image: &mut Image, start: HostOffset) {
        let geometry = &self.plan.geometry;
        for (l1_index, table) in self.active.tables() {
            let first_guest = l1_index * geometry.l2_span_bytes();
            for (first, page) in self.tables.pages(*table) {
                for (index, entry) in (first..).zip(page) {
                    let guest = first_guest + index * geometry.cluster_size.bytes();
                    self.store(image, start + guest, *entry);
                    self.write_read(image, (GuestOffset::new(guest), start + guest), *entry);
                }
            }
        }
    }

    /// Stores the data of one cluster at `at`, if the file has holes. Data may be zeros.
    fn store(&self, image: &mut Image, at: HostOffset, entry: ClusterMapping) {
        let geometry = &self.plan.geometry;
        match entry {
            ClusterMapping::Normal(..) | ClusterMapping::Compressed(_) => {
                image.stored.add(at, geometry.cluster_size.bytes());
            }
            ClusterMapping::Extended(Extended { host: Some(_), bitmap, .. }) => {
                let cell = geometry.cell_bytes();
                for subcluster in (0..SUBCLUSTERS).filter(|it| bitmap.allocated & 1 << it != 0) {
                    image.stored.add(at + u64::from(subcluster) * cell, cell);
                }
            }
            ClusterMapping::Unallocated | ClusterMapping::Zero(_) | ClusterMapping::Extended(_) => {
            }
        }
    }

    /// Writes the bytes that a guest reads of one cluster to `at`, unless they are zeros.
    fn write_read(
        &self,
        image: &mut Image,
        (guest, at): (GuestOffset, HostOffset),
        entry: ClusterMapping,
    ) {
        let geometry = &self.plan.geometry;
        match entry {
            ClusterMapping::Normal(_, WriteNumber::NONE) => {}
            ClusterMapping::Normal(_, write) => {
                self.write_whole(image, (guest, at), write);
            }
            ClusterMapping::Compressed(Compressed { write, given: Some(given), .. }) => {
                image.write_parts(at, &[&stamp(guest, write), self.given.content(given)], &[]);
            }
            ClusterMapping::Compressed(Compressed { write, kind, .. }) => {
                let filling = kind.shape.behind_stamp(geometry.cluster_size);
                image.write_parts(at, &[&stamp(guest, write)], filling);
            }
            ClusterMapping::Extended(Extended { host: Some(_), bitmap, writes }) => {
                let writes = self.tables.writes(writes);
                // Only the active disk is written.
                let cluster = DataCluster { guest, host: at, is_shared: false };
                self.write_subclusters(image, cluster, bitmap, writes, bitmap.allocated);
            }
            ClusterMapping::Unallocated | ClusterMapping::Zero(_) | ClusterMapping::Extended(_) => {
            }
        }
    }
}
