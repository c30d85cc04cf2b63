//! Folds a program into the features that an engine knows. Folding changes the decoded program, never the meaning of
//! bytes, and folding twice is folding once. Its images then have no other features.
//!
//! Folding replaces what an engine lacks by the nearest that it knows, and removes an operation only if nothing is near
//! it: a compressed write becomes a write, an overlay or a snapshot disappears.

use crate::base::features::{Feature, FeatureSet};
use crate::disk::clusters::ClusterSize;
use crate::formats::qcow2::geometry::Version;
use crate::images::format::file_plan::ExtentForm;
use crate::images::format::list::drawer;
use crate::images::qcow2::{HeaderFlags, HeaderLength, Leaving, MAX_SIZE_BYTES};

use super::operand::{
    Base, ClusterBits, Count, DataIn, Gap, Hidden, ImageFeatures, ImageForm, Number, RefcountOrder,
    Relative, Size, SyncKind,
};
use super::{Operation, Program, Prologue};

/// The flags of a header that each feature needs.
const HEADER_FLAGS: [(Feature, HeaderFlags); 8] = [
    (Feature::UnnamedFormat, HeaderFlags::NO_FORMAT),
    (Feature::Dirty, HeaderFlags::DIRTY.with(HeaderFlags::OUT_OF_DATE)),
    (Feature::OutOfDateRefcounts, HeaderFlags::OUT_OF_DATE),
    (Feature::LazyRefcounts, HeaderFlags::OUT_OF_DATE),
    (Feature::Corrupt, HeaderFlags::CORRUPT),
    (Feature::UnknownBits, HeaderFlags::COMPATIBLE_BITS),
    (Feature::UnknownBits, HeaderFlags::AUTOCLEAR_BITS),
    (Feature::EmptyBackingName, HeaderFlags::EMPTY_NAME),
];

/// The number of blocks that the tables of any child can name.
const BLOCKS_OF_CHILD: u64 = 1 << 12;

/// The size of the smallest disk that is not empty.
const SECTOR_BYTES: u64 = 512;

/// Half of the largest L1 table without the feature [`Feature::LargeL1`], in entries. Spare entries take the other
/// half.
const HALF_OF_SMALL_L1_ENTRIES: u64 = (1 << 20) / 16;

/// Removes the features `lacking` from the images of `program`. Returns true if that changed the program.
pub fn fold(program: &mut Program, lacking: FeatureSet) -> bool {
    fold_observed(program, lacking, |_, _| ())
}

/// Does the same, and returns a line of text for each change.
pub fn changes(program: &mut Program, lacking: FeatureSet) -> Vec<String> {
    let mut lines = Vec::new();
    let prologue = |program: &Program| {
        let alone = Program { prologue: program.prologue, operations: Vec::new() };
        alone.to_string().trim_end().to_string()
    };
    let before = prologue(program);
    fold_observed(program, lacking, |before, after| {
        lines.push(match after {
            Some(after) => format!("{before} → {after}"),
            None => format!("{before} → removed"),
        });
    });
    let after = prologue(program);
    if before != after {
        lines.insert(0, format!("{before} → {after}"));
    }
    lines
}

/// Folds a program. Calls `changed_to` with each operation that changes, and its successor if it has one.
fn fold_observed(
    program: &mut Program,
    lacking: FeatureSet,
    mut changed_to: impl FnMut(&Operation, Option<&Operation>),
) -> bool {
    if lacking == FeatureSet::EMPTY {
        return false;
    }
    let mut folding = Folding::new(program, lacking);
    let mut changed = folding.fold_prologue(&mut program.prologue);
    let overlays = folding.overlays();
    folding.note_size(program.prologue.size.bytes(u64::MAX));
    let mut laid = 0;
    program.operations.retain_mut(|operation| {
        let before = *operation;
        if let Operation::Overlay { .. } = operation {
            folding.overlays_above = folding.overlays_above.saturating_sub(1);
        }
        folding.fold_operation(operation);
        let stays = match operation {
            Operation::Overlay { size, .. }
                if laid < overlays && folding.may_lie_below(folding.size_bytes) =>
            {
                laid += 1;
                folding.note_size(size.bytes(folding.size_bytes));
                folding.is_raw = false;
                true
            }
            Operation::Overlay { .. } => false,
            Operation::OverlayInFormat { .. } if folding.lacks(Feature::Parents) => false,
            Operation::OverlayInFormat { size, .. } => {
                // It has no effect on an image in another format.
                folding.note_size(folding.size_bytes.max(size.bytes(folding.size_bytes)));
                true
            }
            Operation::Resize { size } => folding.keeps_resize(*size),
            _ => folding.keeps(operation),
        };
        if !stays || *operation != before {
            changed = true;
            changed_to(&before, stays.then_some(&*operation));
        }
        stays
    });
    changed
}

/// A folding of one program.
struct Folding {
    lacking: FeatureSet,
    /// The smallest clusters of an image of the program.
    smallest: ClusterBits,
    /// The format of the lowest image.
    base: Base,
    /// The largest size that all children in the base's format support; `u64::MAX` without children.
    child_bytes: u64,
    /// The image has a parent in the same format.
    has_parent: bool,
    /// The kind of the first file beside an image.
    extent_kind: Option<ExtentForm>,
    /// The size of a block of the current image, if it has the format of the base.
    block: ClusterSize,
    /// The size of the disk after the last operation that sets one, which limits may cut.
    size_bytes: u64,
    /// At least the size of every disk so far. A snapshot may bring an earlier size back.
    most_bytes: u64,
    /// The image is the raw base of a chain.
    is_raw: bool,
    /// The number of overlays that the program may still lay on the image.
    overlays_above: usize,
    /// The number of entries by which the program may still lengthen L1 tables.
    spare_entries: u64,
}

impl Folding {
    fn lacks(&self, feature: Feature) -> bool {
        self.lacking.has(feature)
    }

    /// Begins the folding of `program`.
    fn new(program: &Program, lacking: FeatureSet) -> Self {
        let Prologue { base, cluster_bits: first, .. } = program.prologue;
        let overlays = program.operations.iter().filter_map(|operation| match operation {
            Operation::Overlay { cluster_bits, .. } => Some(*cluster_bits),
            _ => None,
        });
        let mut folding = Self {
            lacking,
            smallest: first,
            base,
            child_bytes: u64::MAX,
            has_parent: false,
            extent_kind: None,
            block: ClusterSize::SMALLEST,
            size_bytes: 0,
            most_bytes: 0,
            is_raw: false,
            overlays_above: overlays.clone().count(),
            spare_entries: HALF_OF_SMALL_L1_ENTRIES,
        };
        folding.is_raw = base.is_raw() && !folding.lacks(Feature::RawBacking);
        folding.base = folding.base(base);
        let above = overlays.map(|bits| folding.cluster_bits(bits));
        let folded = above.chain([folding.base_bits(first)]);
        folding.smallest = folded.min_by_key(|bits| bits.get()).unwrap_or(first);
        folding.child_bytes = folding.child_bytes(program);
        folding
    }

    /// Returns true if that changed the prologue.
    fn fold_prologue(&mut self, prologue: &mut Prologue) -> bool {
        let before = *prologue;
        prologue.base = self.base;
        let Prologue { version, cluster_bits, refcount_order, features, data_in, form, .. } =
            prologue;
        self.fold_image(version, refcount_order, features, data_in);
        match self.base.is_qcow2() {
            true => {
                *cluster_bits = self.base_bits(*cluster_bits);
                *form = ImageForm::default();
            }
            false => self.fold_other(cluster_bits, form),
        }
        prologue.size = self.size(prologue.size);
        *prologue != before
    }

    /// Returns the format of the lowest image. An engine that does not know qcow2 knows another format.
    fn base(&self, base: Base) -> Base {
        let known =
            |base: &Base| !base.is_qcow2() && !self.lacks(Feature::images_of(base.format()));
        let knows_raw = !self.lacks(Feature::RawBacking) && !self.lacks(Feature::Qcow2);
        match base {
            Base::SparseRaw if knows_raw && self.lacks(Feature::RawHoles) => Base::Raw,
            base if base.is_raw() && knows_raw => base,
            base if known(&base) => base,
            _ if !self.lacks(Feature::Qcow2) => Base::Qcow2,
            _ => Base::other_formats().map(Base::of).find(known).unwrap_or(Base::Qcow2),
        }
    }

    /// Folds the operands that describe an image, of the prologue or of an overlay.
    fn fold_image(
        &self,
        version: &mut Version,
        refcount_order: &mut RefcountOrder,
        features: &mut ImageFeatures,
        data_in: &mut DataIn,
    ) {
        *version = self.version(*version);
        *refcount_order = self.refcount_order(*refcount_order);
        *features = self.features(*features);
        *data_in = self.data_in(*data_in);
    }

    /// Folds the operands of an image in the format of the base.
    fn fold_other(&mut self, cluster_bits: &mut ClusterBits, form: &mut ImageForm) {
        let drawer = drawer(self.base.format());
        *cluster_bits = self.base_bits(*cluster_bits);
        self.block = drawer.block_size(u32::from(cluster_bits.get()));
        form.0 = drawer.fold_form(form.0, self.block, self.lacking);
    }

    /// Returns log2 of the clusters of an image in the format of the base.
    fn base_bits(&self, bits: ClusterBits) -> ClusterBits {
        if self.base.is_qcow2() {
            return self.cluster_bits(bits);
        }
        let (least, most) = drawer(self.base.format()).fold_cluster_bits(self.lacking);
        nearest(bits, |bits| (least..=most).contains(bits))
    }

    /// Returns the number of overlays that a program may lay.
    fn overlays(&self) -> usize {
        match self.base {
            _ if self.lacks(Feature::Qcow2) => 0,
            Base::Other(..) if self.lacks(Feature::OtherBacking) => 0,
            _ if !self.lacks(Feature::Qcow2Backing) => usize::MAX,
            Base::Qcow2 => 0,
            // The first overlay lies on a base of another format. Only a second one would lie on a qcow2 image.
            _ => 1,
        }
    }

    fn fold_operation(&mut self, operation: &mut Operation) {
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
                version,
                cluster_bits,
                refcount_order,
                features,
                data_in,
                size,
            } => {
                *cluster_bits = self.cluster_bits(*cluster_bits);
                self.fold_image(version, refcount_order, features, data_in);
                *size = self.relative(*size);
            }
            // It does not stay, or has no effect.
            Operation::OverlayInFormat { .. } if !self.may_have_children() => {}
            Operation::OverlayInFormat { cluster_bits, form, size } => {
                self.fold_other(cluster_bits, form);
                *size = match self.lacks(Feature::OtherParentSize) {
                    true => Relative::Same,
                    false => self.relative(*size),
                };
                self.has_parent = true;
            }
            Operation::Extent { kind, .. } => {
                let drawer = drawer(self.base.format());
                *kind = drawer.fold_extent(*kind, self.block, self.lacking);
                let first = *self.extent_kind.get_or_insert(*kind);
                if self.lacks(Feature::MixedExtents) {
                    *kind = first;
                }
            }
            Operation::Resize { size } => *size = self.size(*size),
            Operation::DeleteBitmap { leaving, .. }
                if *leaving == Leaving::Bit && self.lacks(Feature::UnknownBits) =>
            {
                *leaving = Leaving::Nothing;
            }
            Operation::Sync { kind, .. } if self.lacks(Feature::Cuts) => *kind = SyncKind::Flush,
            Operation::Header { length, flags, .. } => {
                // A header with any other length may turn out to have 104 bytes.
                if self.lacks(Feature::OddHeader) || self.lacks(Feature::ShortHeader) {
                    *length = HeaderLength::Shortest;
                }
                *flags = self.flags(*flags);
            }
            Operation::Spare { l1, .. } if self.lacks(Feature::SpareL1) => *l1 = Gap::default(),
            Operation::Spare { l1, .. } if self.lacks(Feature::LargeL1) => {
                *l1 = l1.at_most(HALF_OF_SMALL_L1_ENTRIES);
                match self.spare_entries.checked_sub(l1.units()) {
                    Some(left) => self.spare_entries = left,
                    None => *l1 = Gap::default(),
                }
            }
            _ => {}
        }
    }

    /// Notes the size of the disk.
    fn note_size(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
        self.most_bytes = self.most_bytes.max(size_bytes);
    }

    /// Reports whether an operation stays.
    fn keeps(&self, operation: &Operation) -> bool {
        !self.lacks(match operation {
            Operation::Snapshot { .. } | Operation::SnapshotWith { .. } => Feature::Snapshots,
            // Deleting bitmaps that do not exist leaves traces all the same.
            Operation::Bitmap { .. } | Operation::DeleteBitmap { .. } => Feature::Bitmaps,
            Operation::Extent { .. } => Feature::Extents,
            Operation::FailFile { .. } | Operation::Device { .. } => Feature::FileErrors,
            Operation::Crash { .. } => Feature::Cuts,
            Operation::InFlight { .. } => Feature::InFlight,
            // The table of a disk that has grown since is too long for the snapshot's disk.
            Operation::ApplySnapshot { .. } => Feature::SpareL1,
            _ => return true,
        })
    }

    /// Reports whether a resize stays. A disk that shrinks keeps its L1 table.
    fn keeps_resize(&mut self, size: Size) -> bool {
        let new = size.bytes(u64::MAX);
        if self.has_parent && self.lacks(Feature::OtherParentSize) {
            return false;
        }
        if self.lacks(Feature::SpareL1) && new < self.size_bytes {
            return false;
        }
        self.note_size(new);
        true
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

    /// Returns the size divided by powers of two until the disk is small enough, in whole sectors if backing files need
    /// that.
    fn size(&self, mut size: Size) -> Size {
        let whole = |size: Size| match self.makes_whole() && !self.is_raw {
            true => size.whole_sectors(),
            false => size,
        };
        size = whole(size);
        let largest = self.largest_disk_bytes();
        while size.bytes(MAX_SIZE_BYTES) > largest {
            size = size.scaled(-1).unwrap_or_default();
        }
        size = whole(size);
        match self.lacks_empty() && size.bytes(MAX_SIZE_BYTES) < SECTOR_BYTES {
            true => Size::of_bytes(SECTOR_BYTES).unwrap_or_default(),
            false => size,
        }
    }

    /// Returns the size of the largest disk for which the tables of each child in the format of the base have room, and
    /// those of the base.
    fn child_bytes(&self, program: &Program) -> u64 {
        if !self.may_have_children() {
            return u64::MAX;
        }
        let children = program.operations.iter().filter_map(|operation| match operation {
            Operation::OverlayInFormat { cluster_bits, .. } => Some(*cluster_bits),
            _ => None,
        });
        let bits = children.map(|bits| self.base_bits(bits).get()).min();
        let bits = bits.map(|bits| bits.min(self.base_bits(program.prologue.cluster_bits).get()));
        bits.map_or(u64::MAX, |bits| BLOCKS_OF_CHILD << bits)
    }

    /// Reports whether images in the format of the base may lie on each other.
    fn may_have_children(&self) -> bool {
        self.base.format().facts().has_own_parents && !self.lacks(Feature::Parents)
    }

    /// Reports whether no disk may be empty.
    fn lacks_empty(&self) -> bool {
        let is_other = !self.base.is_qcow2();
        self.lacks(Feature::EmptyDisk) || is_other && self.lacks(Feature::EmptyOther)
    }

    /// Returns the size of the largest disk. Without large L1 tables, that of no image has more than half a MiB.
    fn largest_disk_bytes(&self) -> u64 {
        // An extended L2 table maps half as much.
        let span_bits = 2 * u32::from(self.smallest.get()) - 4;
        let of_l1 = (Feature::LargeL1, HALF_OF_SMALL_L1_ENTRIES << span_bits);
        let all = Feature::LARGE_DISKS.into_iter().chain([of_l1]);
        let of_children = (Feature::OtherParentSize, self.child_bytes);
        let lacking = all.chain([of_children]).filter(|(feature, _)| self.lacks(*feature));
        lacking.map(|(_, largest)| largest).min().unwrap_or(u64::MAX)
    }

    /// Reports whether the image becomes a backing file, so that its size must have whole sectors.
    fn makes_whole(&self) -> bool {
        self.lacks(Feature::OddBackingSize) && self.overlays_above > 0
    }

    /// Reports whether an image of this size may be a backing file. A raw file may have an odd length, and the image on
    /// it an odd size. But then no other image lies on that image.
    fn may_lie_below(&self, size_bytes: u64) -> bool {
        self.is_raw || !self.lacks(Feature::OddBackingSize) || size_bytes.is_multiple_of(512)
    }

    fn relative(&self, mut size: Relative) -> Relative {
        if self.makes_whole() {
            size = size.whole_sectors();
        }
        match size {
            Relative::More(..) if size.bytes(self.most_bytes) > self.largest_disk_bytes() => {
                Relative::Same
            }
            Relative::Less(..) | Relative::Part(_) if self.lacks_empty() => Relative::Same,
            size => size,
        }
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
