//! The features of an image, as an implementation may lack them.

use crate::base::features::{Feature, FeatureSet};
use crate::disk::image_format::ImageFormat;
use crate::formats::qcow2::constants::{V3_COMPRESSION_LENGTH_BYTES, V3_LENGTH_BYTES};
use crate::formats::qcow2::geometry::{Compression, Version};

use super::builder::Builder;
use super::encoding::sizes::Sizes;
use super::header::layout::HeaderLengths;
use super::header::style::HeaderFlags;

/// An L1 table of more bytes has the feature [`Feature::LargeL1`].
const LARGE_L1_BYTES: u64 = 1 << 20;

impl Builder {
    /// Returns the features of the image.
    pub fn features(&self) -> FeatureSet {
        let (plan, geometry) = (&self.plan, &self.plan.geometry);
        let mut features = FeatureSet::of(&[
            Feature::clusters(geometry.cluster_size),
            Feature::refcounts(geometry.refcount_order),
            Feature::Qcow2,
        ]);
        let l1_entries = geometry.l1_entries_for(plan.size_bytes);
        let backing = |format| plan.backing.is_some_and(|backing| backing.format == format);
        let unknown = [HeaderFlags::COMPATIBLE_BITS, HeaderFlags::AUTOCLEAR_BITS];
        for (there, feature) in [
            (geometry.version == Version::V2, Feature::Version2),
            (geometry.version == Version::V3, Feature::Version3),
            (geometry.extended_l2, Feature::ExtendedL2),
            (self.has_compressed, Feature::Compressed),
            (geometry.compression == Compression::Zstd, Feature::Zstd),
            (backing(ImageFormat::Qcow2), Feature::Qcow2Backing),
            (backing(ImageFormat::Raw), Feature::RawBacking),
            (plan.backing.is_some() && !plan.names_backing_format(), Feature::UnnamedFormat),
            (geometry.data_file, Feature::DataFile),
            (plan.has_raw_data_file(), Feature::RawDataFile),
            (!self.snapshots.is_empty(), Feature::Snapshots),
            (self.has_bitmap_traces(), Feature::Bitmaps),
            (plan.is_dirty(), Feature::Dirty),
            (plan.has(HeaderFlags::OUT_OF_DATE), Feature::OutOfDateRefcounts),
            (plan.has(HeaderFlags::CORRUPT), Feature::Corrupt),
            (plan.has_lazy_refcounts(), Feature::LazyRefcounts),
            (self.has_short_header(), Feature::ShortHeader),
            (self.has_odd_header(), Feature::OddHeader),
            (unknown.into_iter().any(|bits| plan.has(bits)), Feature::UnknownBits),
            (self.bitmaps.bit_left, Feature::UnknownBits),
            (self.active.entries > l1_entries, Feature::SpareL1),
            (self.active.entries * 8 > LARGE_L1_BYTES, Feature::LargeL1),
        ] {
            features.add_if(there, feature);
        }
        features
    }

    fn has_bitmap_traces(&self) -> bool {
        let bitmaps = &self.bitmaps;
        bitmaps.live > 0 || bitmaps.bit_left || bitmaps.extension_left.is_some()
    }

    fn has_short_header(&self) -> bool {
        self.header_bytes() == Some(u64::from(V3_LENGTH_BYTES))
    }

    fn has_odd_header(&self) -> bool {
        let usual = [V3_LENGTH_BYTES, V3_COMPRESSION_LENGTH_BYTES].map(u64::from);
        self.header_bytes().is_some_and(|length| !usual.contains(&length))
    }

    /// Returns the length that the program requests for a version 3 header.
    fn header_bytes(&self) -> Option<u64> {
        let is_version_3 = self.plan.geometry.version == Version::V3;
        is_version_3.then(|| HeaderLengths::of(&self.plan).requested_bytes)
    }
}
