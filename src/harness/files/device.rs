//! A block device as the place of an image: a file of a fixed size. Behind the image lie old bytes, which may look like
//! tables. They must never reach the guest, and the end of the device is an error of the request that needs more room.
//!
//! # Arithmetic
//! Sums saturate at 2^64. An image ends before 2^63, and the clusters behind it have 126 MiB at most.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::images::files::image::Image;
use crate::programs::operand::OldBytes;

/// The old bytes that the clusters of a device share. A larger cluster has them only at its beginning.
const MAX_OLD_BYTES: u64 = 256 << 10;
/// The bytes that are written at once.
const OLD_BLOCK_BYTES: usize = 512;
/// An odd number, whose multiples differ in their first bytes.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The device on which an image lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// The clusters behind the image.
    pub(crate) spare_clusters: u64,
    /// The bytes that lie there.
    pub(crate) old: OldBytes,
    /// The cluster size of the image.
    pub(crate) cluster_bytes: u64,
}

impl Device {
    /// Lays an image on the device. The rest of its last cluster has zeros.
    pub(crate) fn lay(self, image: &mut Image) {
        let Self { spare_clusters, old, cluster_bytes } = self;
        let end = image.length_bytes().div_ceil(cluster_bytes).saturating_mul(cluster_bytes);
        let length_bytes = end.saturating_add(spare_clusters.saturating_mul(cluster_bytes));
        image.set_length(length_bytes.max(image.length_bytes()));
        if old == OldBytes::Zeros || spare_clusters == 0 {
            return;
        }
        let most = (MAX_OLD_BYTES / spare_clusters).max(OLD_BLOCK_BYTES as u64).min(cluster_bytes);
        let clusters = end / cluster_bytes;
        for start in (end..length_bytes).step_by(cluster_bytes as usize) {
            for at in (start..start.saturating_add(most)).step_by(OLD_BLOCK_BYTES) {
                let words = (at / 8..).map(|index| word(old, index, clusters, cluster_bytes));
                let mut block = [0; OLD_BLOCK_BYTES];
                let (places, _) = block.as_chunks_mut::<8>();
                places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_be_bytes());
                image.overwrite(HostOffset::new(at), &block);
            }
        }
    }
}

/// Returns the old word with this index on the device. An entry names one of the clusters of the image, and says that
/// nothing else does.
fn word(old: OldBytes, index: u64, clusters: u64, cluster_bytes: u64) -> u64 {
    match old {
        OldBytes::Data => index.wrapping_mul(STEP),
        OldBytes::Entries => (1 << 63) | (index % clusters.max(1) * cluster_bytes),
        OldBytes::Counts => 0x0001_0001_0001_0001,
        OldBytes::Zeros => 0,
    }
}
