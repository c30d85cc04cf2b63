//! Images whose data lie in other files: a descriptor, and the files of its extents.

use smallvec::SmallVec;

use crate::base::file_parts::MAX_EXTENT_FILES;
use crate::disk::offsets::HostOffset;
use crate::images::file_plan::{ExtentForm, ExtentPlan};
use crate::images::files::LayerFiles;
use crate::images::image::Image;
use crate::images::qcow2::{Builder, MappedCluster};

use super::descriptor::{self, Parent};
use super::encoding::SECTOR_BYTES;
use super::form::VmdkForm;
use super::part::DiskPart;
use super::sesparse;
use super::sparse::SparseExtent;

/// Writes the descriptor and the files of all extents that have sectors. `mapped` are all clusters, in the order of the
/// disk.
pub(super) fn write(
    builder: &Builder,
    form: VmdkForm,
    identities: (u32, Option<Parent>),
    mapped: &[MappedCluster],
    files: &mut LayerFiles,
) {
    let plans = builder.plan().file.extents;
    let mut written: SmallVec<[(ExtentPlan, u64); MAX_EXTENT_FILES]> = SmallVec::new();
    let (mut first, mut rest) = (0, mapped);
    for (index, plan) in plans.all().iter().enumerate() {
        let is_last = index + 1 == plans.all().len();
        let part = DiskPart::of(builder, first, (!is_last).then_some(plan.clusters));
        if part.sectors == 0 {
            break;
        }
        // The last part of the disk also holds the clusters past its end. A last cluster of less than a sector belongs
        // to no part, and no guest sees it.
        first = part.first + part.clusters;
        let has_rest = first < builder.guest_clusters();
        let own = match has_rest {
            true => rest.partition_point(|grain| grain.cluster.get() < first),
            false => rest.len(),
        };
        let (own, behind) = rest.split_at(own);
        rest = behind;
        write_extent(builder, form.of_extent(plan.form), (plan, part), own, files.extents.add());
        written.push((*plan, part.sectors));
    }
    descriptor::write_file(files, form, &written, identities);
}

/// Writes the file of an extent with the clusters `mapped`.
fn write_extent(
    builder: &Builder,
    form: VmdkForm,
    (plan, part): (&ExtentPlan, DiskPart),
    mapped: &[MappedCluster],
    image: &mut Image,
) {
    let end = match plan.form {
        ExtentForm::Flat | ExtentForm::Vmfs => {
            return write_flat(builder, plan, part, mapped, image);
        }
        ExtentForm::Sparse | ExtentForm::Cowd => {
            SparseExtent { builder, form, part, has_descriptor: false }.write(mapped, image).end
        }
        ExtentForm::SeSparse => {
            let places = builder.plan().file.places;
            let grains = places.map_or(0, |places| places.first_bytes);
            sesparse::write(builder, part, mapped, grains, image);
            places.map_or(0, |places| places.start(builder.file_clusters()))
        }
    };
    image.seal(end);
}

/// Writes guest data, each byte at its place.
fn write_flat(
    builder: &Builder,
    plan: &ExtentPlan,
    part: DiskPart,
    mapped: &[MappedCluster],
    image: &mut Image,
) {
    let cluster_bytes = builder.plan().geometry.cluster_size.bytes();
    for grain in mapped {
        let inside = grain.cluster.get() - part.first;
        // Clusters past the end of the disk have no place.
        let Some((_, write)) = grain.data().filter(|_| inside < part.clusters) else { continue };
        let at = HostOffset::new(plan.lead_bytes + inside * cluster_bytes);
        builder.write_cluster(image, grain.cluster, at, write);
    }
    let end = plan.lead_bytes + part.sectors * SECTOR_BYTES;
    image.truncate(end);
    image.seal(end);
}
