//! The features of VMDK images, and the nearest variety without some of them.

use crate::base::features::{Feature, FeatureSet};
use crate::disk::clusters::ClusterSize;
use crate::images::format::file_plan::{ExtentForm, ExtentPlan, FilePlan, TableReach};
use crate::images::qcow2::ImagePlan;

use super::form::{
    COMPRESSED_VERSION, GrainStorage, Kind, MAX_COMPRESSED_BITS, MAX_SMALL_GRAIN_BITS, VmdkForm,
};
use super::sesparse::kind_with_grains_of;

/// Returns the features of an image.
pub(super) fn of(plan: &ImagePlan) -> FeatureSet {
    let form = VmdkForm::of(&plan.file);
    let extents = plan.file.extents.all();
    let mut features = match extents {
        [] => of_kind(form.kind()),
        extents => extents
            .iter()
            .map(|extent| FeatureSet::of(&[of_extent(extent.form)]))
            .fold(FeatureSet::of(&[Feature::Extents]), FeatureSet::with),
    };
    let is_old = form.is_compressed() && form.version() < COMPRESSED_VERSION;
    features.add_if(is_old && extents.is_empty(), Feature::OldCompressed);
    let is_mixed = extents.windows(2).any(|pair| pair[0].form != pair[1].form);
    features.add_if(is_mixed, Feature::MixedExtents);
    let has_hosted =
        features.meets(FeatureSet::of(&[Feature::SparseVmdk, Feature::CompressedVmdk]));
    let has_small = plan.geometry.cluster_size.bits() <= MAX_SMALL_GRAIN_BITS;
    features.add_if(has_hosted && has_small, Feature::SmallGrains);
    features.add_if(has_hosted && form.has_short_tables(), Feature::ShortTables);
    features.add_if(has_zero_grains(&plan.file), Feature::ZeroGrains);
    features
}

/// Reports whether the tables of an image can state that a grain is zeros.
pub(super) fn has_zero_grains(file: &FilePlan) -> bool {
    let is_cowd = |extent: &ExtentPlan| extent.form == ExtentForm::Cowd;
    let has_cowd = file.extents.all().iter().any(is_cowd);
    VmdkForm::of(file).has_zero_grains() && !has_cowd
}

/// Returns the features of an extent in the file of the image itself.
fn of_kind(kind: Kind) -> FeatureSet {
    use GrainStorage::{Compressed, Marked, Plain};
    FeatureSet::of(match kind {
        Kind::Sparse { storage: Plain, has_footer: false } => &[Feature::SparseVmdk],
        Kind::Sparse { storage: Plain, has_footer: true } => {
            &[Feature::SparseVmdk, Feature::PlainFooter]
        }
        Kind::Sparse { storage: Marked, .. } => &[Feature::CompressedVmdk],
        Kind::Sparse { storage: Compressed, .. } => {
            &[Feature::CompressedVmdk, Feature::UnmarkedGrains]
        }
        Kind::Cowd => &[Feature::CowdVmdk, Feature::LoneCowd],
    })
}

/// Returns the feature of an extent in a file beside the image.
const fn of_extent(kind: ExtentForm) -> Feature {
    match kind {
        ExtentForm::Flat | ExtentForm::Vmfs => Feature::FlatVmdk,
        ExtentForm::Sparse => Feature::SparseVmdk,
        ExtentForm::Cowd => Feature::CowdVmdk,
        ExtentForm::SeSparse => Feature::SeSparseVmdk,
    }
}

/// Returns the nearest variety. The kind of the extent is the same if it may be; else it is the first of the kinds that
/// may be.
pub(super) fn fold_form(form: u16, grain: ClusterSize, lacking: FeatureSet) -> u16 {
    let mut form = VmdkForm::new(form, TableReach::Small);
    let is_known = |form: &VmdkForm| !lacking.meets(of_kind(form.with_grains_of(grain).kind()));
    form = form.of_kinds().find(is_known).unwrap_or(form);
    if lacking.has(Feature::ZeroGrains) {
        form = form.without_zero_grains();
    }
    if lacking.has(Feature::ShortTables) {
        form = form.with_whole_tables();
    }
    if lacking.has(Feature::OldCompressed) && form.is_compressed() {
        form = form.of_compressed_version();
    }
    form.number()
}

/// Returns the nearest kind of an extent.
pub(super) fn fold_extent(kind: ExtentForm, grain: ClusterSize, lacking: FeatureSet) -> ExtentForm {
    use ExtentForm::{Cowd, Flat, SeSparse, Sparse};
    let is_known = |kind: &ExtentForm| {
        let kind = kind_with_grains_of(*kind, grain);
        !lacking.has(of_extent(kind))
    };
    [kind, Sparse, Flat, Cowd, SeSparse].into_iter().find(is_known).unwrap_or(kind)
}

/// Returns log2 of the smallest and of the largest grain. Grains above 64 KiB are never compressed.
pub(super) fn fold_cluster_bits(lacking: FeatureSet) -> (u8, u8) {
    let lacks_small = lacking.has(Feature::SmallGrains);
    let lacks_lone = lacking.meets(FeatureSet::of(&[Feature::CowdVmdk, Feature::LoneCowd]));
    let lacks_plain = lacks_lone && lacking.has(Feature::SparseVmdk);
    let least = if lacks_small { MAX_SMALL_GRAIN_BITS as u8 + 1 } else { 0 };
    (least, if lacks_plain { MAX_COMPRESSED_BITS as u8 } else { u8::MAX })
}
