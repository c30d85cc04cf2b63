//! Folds a program into the features that an engine knows. Folding changes the decoded program, never the meaning of
//! bytes, and folding twice is folding once. Its images then have no other features, with two exceptions: a disk that
//! shrinks keeps its long L1 table, and an overlay may be larger than the disk below it.
//!
//! Folding replaces what an engine lacks by the nearest that it knows, and removes an operation only if nothing is near
//! it: a compressed write becomes a write, an overlay or a snapshot disappears.

use crate::disk::clusters::ClusterSize;
use crate::disk::features::{Feature, FeatureSet};
use crate::formats::qcow2::geometry::Version;
use crate::images::qcow2::{HeaderFlags, HeaderLength, MAX_SIZE_BYTES};

use super::operand::{
    Base, ClusterBits, Count, DataIn, Gap, Hidden, ImageFeatures, Number, RefcountOrder, Size,
};
use super::{Operation, Program, Prologue};

/// The flags of a header that each feature needs.
const HEADER_FLAGS: [(Feature, HeaderFlags); 7] = [
    (Feature::UnnamedFormat, HeaderFlags::NO_FORMAT),
    (Feature::Dirty, HeaderFlags::DIRTY.with(HeaderFlags::OUT_OF_DATE)),
    (Feature::OutOfDateRefcounts, HeaderFlags::OUT_OF_DATE),
    (Feature::LazyRefcounts, HeaderFlags::OUT_OF_DATE),
    (Feature::Corrupt, HeaderFlags::CORRUPT),
    (Feature::UnknownBits, HeaderFlags::COMPATIBLE_BITS),
    (Feature::UnknownBits, HeaderFlags::AUTOCLEAR_BITS),
];

/// The largest L1 table without the feature [`Feature::LargeL1`], in entries.
const SMALL_L1_ENTRIES: u64 = (1 << 20) / 8;

/// Removes the features `lacking` from the images of `program`. Returns true if that changed the program.
pub fn fold(program: &mut Program, lacking: FeatureSet) -> bool {
    if lacking == FeatureSet::EMPTY {
        return false;
    }
    let folding = Folding { lacking };
    let mut changed = folding.fold_prologue(&mut program.prologue);
    let overlays = folding.overlays(program.prologue.base);
    let mut cluster_bits = program.prologue.cluster_bits;
    let mut laid = 0;
    program.operations.retain_mut(|operation| {
        let before = *operation;
        folding.fold_operation(operation, cluster_bits);
        let stays = match operation {
            Operation::Overlay { cluster_bits: bits, .. } if laid < overlays => {
                (laid, cluster_bits) = (laid + 1, *bits);
                true
            }
            Operation::Overlay { .. } => false,
            _ => folding.keeps(operation),
        };
        changed |= !stays || *operation != before;
        stays
    });
    changed
}

/// A folding of one program.
struct Folding {
    lacking: FeatureSet,
}

impl Folding {
    fn lacks(&self, feature: Feature) -> bool {
        self.lacking.meets(FeatureSet::of(&[feature]))
    }

    /// Returns true if that changed the prologue.
    fn fold_prologue(&self, prologue: &mut Prologue) -> bool {
        let before = *prologue;
        if prologue.base == Base::Raw && self.lacks(Feature::RawBacking) {
            prologue.base = Base::Qcow2;
        }
        let Prologue { version, cluster_bits, refcount_order, features, data_in, .. } = prologue;
        self.fold_image(version, cluster_bits, refcount_order, features, data_in);
        prologue.size = self.size(prologue.size, prologue.cluster_bits);
        *prologue != before
    }

    /// Folds the operands that describe an image, of the prologue or of an overlay.
    fn fold_image(
        &self,
        version: &mut Version,
        cluster_bits: &mut ClusterBits,
        refcount_order: &mut RefcountOrder,
        features: &mut ImageFeatures,
        data_in: &mut DataIn,
    ) {
        *version = self.version(*version);
        *cluster_bits = self.cluster_bits(*cluster_bits);
        *refcount_order = self.refcount_order(*refcount_order);
        *features = self.features(*features);
        *data_in = self.data_in(*data_in);
    }

    /// Returns the number of overlays that a program may lay.
    fn overlays(&self, base: Base) -> usize {
        match base {
            // A raw base has an overlay above it before any qcow2 image has one.
            Base::Raw if self.lacks(Feature::Qcow2Backing) => 1,
            Base::Qcow2 if self.lacks(Feature::Qcow2Backing) => 0,
            _ => usize::MAX,
        }
    }

    /// Folds an operation on an image with clusters of `image_bits`.
    fn fold_operation(&self, operation: &mut Operation, image_bits: ClusterBits) {
        match operation {
            Operation::Compress { at, clusters, .. } if self.lacks(Feature::Compressed) => {
                *operation = Operation::Write { at: *at, clusters: *clusters };
            }
            Operation::CompressAs { at, .. } if self.lacks(Feature::Compressed) => {
                *operation = Operation::Write { at: *at, clusters: Count::ONE };
            }
            Operation::Beyond { kind: kind @ Hidden::Compressed, .. }
                if self.lacks(Feature::Compressed) =>
            {
                *kind = Hidden::Data;
            }
            Operation::Overlay {
                version, cluster_bits, refcount_order, features, data_in, ..
            } => {
                self.fold_image(version, cluster_bits, refcount_order, features, data_in);
            }
            Operation::Resize { size } => *size = self.size(*size, image_bits),
            Operation::Header { length, flags, .. } => {
                // Any other length may come out as 104 bytes.
                if self.lacks(Feature::OddHeader) || self.lacks(Feature::ShortHeader) {
                    *length = HeaderLength::Shortest;
                }
                *flags = self.flags(*flags);
            }
            Operation::Spare { l1, .. } if self.lacks(Feature::SpareL1) => *l1 = Gap::default(),
            _ => {}
        }
    }

    /// Reports whether an operation stays.
    fn keeps(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Snapshot { .. } | Operation::SnapshotWith { .. } => {
                !self.lacks(Feature::Snapshots)
            }
            // Deleting bitmaps that do not exist leaves traces all the same.
            Operation::Bitmap { .. } | Operation::DeleteBitmap { .. } => {
                !self.lacks(Feature::Bitmaps)
            }
            _ => true,
        }
    }

    fn version(&self, version: Version) -> Version {
        // A version 2 image has refcounts of 16 bits.
        let no_version_2 = self.lacks(Feature::Version2) || self.lacks(Feature::Refcounts16);
        match version {
            Version::V2 if no_version_2 && !self.lacks(Feature::Version3) => Version::V3,
            Version::V3 if self.lacks(Feature::Version3) && !no_version_2 => Version::V2,
            version => version,
        }
    }

    fn cluster_bits(&self, bits: ClusterBits) -> ClusterBits {
        let is_known = |bits: &u8| {
            let size = ClusterSize::from_bits(u32::from(*bits));
            size.is_some_and(|size| !self.lacks(Feature::clusters(size)))
        };
        nearest(bits, is_known)
    }

    fn refcount_order(&self, order: RefcountOrder) -> RefcountOrder {
        nearest(order, |order| !self.lacks(Feature::refcounts(u32::from(*order))))
    }

    fn features(&self, mut features: ImageFeatures) -> ImageFeatures {
        for (feature, bits) in [
            (Feature::ExtendedL2, ImageFeatures::EXTENDED_L2),
            (Feature::Zstd, ImageFeatures::ZSTD),
            (Feature::LazyRefcounts, ImageFeatures::LAZY_REFCOUNTS),
        ] {
            if self.lacks(feature) {
                features = features.without(bits);
            }
        }
        match self.lacks(Feature::ShortHeader) {
            true => features.with(ImageFeatures::COMPRESSION_FIELD),
            false => features,
        }
    }

    fn data_in(&self, data_in: DataIn) -> DataIn {
        match data_in {
            _ if self.lacks(Feature::DataFile) => DataIn::Image,
            DataIn::RawFile if self.lacks(Feature::RawDataFile) => DataIn::File,
            data_in => data_in,
        }
    }

    fn flags(&self, flags: HeaderFlags) -> HeaderFlags {
        let lacking = HEADER_FLAGS.into_iter().filter(|(feature, _)| self.lacks(*feature));
        lacking.fold(flags, |flags, (_, lacking)| flags.without(lacking))
    }

    /// Returns the size divided by powers of two until its L1 table has at most 1 MiB.
    fn size(&self, mut size: Size, cluster_bits: ClusterBits) -> Size {
        if !self.lacks(Feature::LargeL1) {
            return size;
        }
        // An extended L2 table maps half as much.
        let span_bits = 2 * u32::from(cluster_bits.get()) - 4;
        let largest = SMALL_L1_ENTRIES << span_bits;
        while size.bytes(MAX_SIZE_BYTES) > largest {
            let Some(smaller) = size.scaled(-1) else { return Size::default() };
            size = smaller;
        }
        size
    }
}

/// Returns the known number that is nearest to `number`, the larger of two; `number` itself if none is known.
fn nearest<const LOW: u8, const HIGH: u8, M>(
    number: Number<LOW, HIGH, M>,
    is_known: impl Fn(&u8) -> bool,
) -> Number<LOW, HIGH, M> {
    let value = number.get();
    let known = (LOW..=HIGH).filter(is_known);
    let by_distance = |known: &u8| (known.abs_diff(value), *known < value);
    known.min_by_key(by_distance).and_then(Number::new).unwrap_or(number)
}
