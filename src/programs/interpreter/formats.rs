//! The operations that an image of each format has.

use crate::disk::clusters::GuestCluster;
use crate::disk::image_format::ImageFormat;
use crate::images::file_plan::{ExtentForm, ExtentPlan, FilePlan};
use crate::images::look::Look;
use crate::images::qcow2::ImagePlan;
use crate::images::unstamped::EntryForm;
use crate::images::{vmdk, vpc};
use crate::programs::operand::Hidden;
use crate::programs::operation::Operation;

/// Returns the form of a VMDK image that stores every grain compressed; `None` for other images.
pub(super) fn compressing(file: &FilePlan) -> Option<vmdk::VmdkForm> {
    let form = vmdk::VmdkForm::of(file);
    (file.format == ImageFormat::Vmdk && form.is_compressed()).then_some(form)
}

/// Reports whether an image can state that a cluster consists of zeros.
pub(super) fn has_zeros(file: &FilePlan) -> bool {
    match file.format {
        ImageFormat::Vpc => false,
        ImageFormat::Vmdk => {
            let is_cowd = |extent: &ExtentPlan| extent.form == ExtentForm::Cowd;
            let has_cowd = file.extents.all().iter().any(is_cowd);
            vmdk::VmdkForm::of(file).has_zero_grains() && !has_cowd
        }
        ImageFormat::Qcow2 | ImageFormat::Raw | ImageFormat::Vhdx => true,
    }
}

/// Reports whether the data of a cluster may have a look. Under extended L2, pieces of data may begin inside a cluster.
/// A VHD image must not begin with data that looks like its footer, nor end with them if it has no footer there.
pub(super) fn allows_look(plan: &ImagePlan, cluster: GuestCluster, look: Look) -> bool {
    let form = vpc::VpcForm::of(&plan.file);
    let misleads = match (plan.file.format, form.is_fixed()) {
        (ImageFormat::Vpc, true) => cluster == GuestCluster::new(0),
        (ImageFormat::Vpc, false) => !form.has_footer_at_end(),
        _ => false,
    };
    let is_ambiguous = misleads && look.is_footer();
    !plan.geometry.extended_l2 && !is_ambiguous
}

/// Reports whether the data of a cluster may be any bytes: those of a look that misleads, too.
pub(super) fn allows_any_bytes(plan: &ImagePlan, cluster: GuestCluster) -> bool {
    allows_look(plan, cluster, Look::Vpc)
}

/// Returns the encoding of an entry of a data cluster in the tables of an image.
pub(super) fn entry_form(format: ImageFormat) -> EntryForm {
    let sectors = EntryForm { width_bytes: 4, is_big_endian: false, unit_bits: 9, flags: 0 };
    match format {
        // An L2 entry with the bit COPIED.
        ImageFormat::Qcow2 | ImageFormat::Raw => {
            EntryForm { width_bytes: 8, is_big_endian: true, unit_bits: 0, flags: 1 << 63 }
        }
        ImageFormat::Vpc => EntryForm { is_big_endian: true, ..sectors },
        // A block that is fully present.
        ImageFormat::Vhdx => EntryForm { width_bytes: 8, unit_bits: 0, flags: 6, ..sectors },
        ImageFormat::Vmdk => sectors,
    }
}

/// Reports whether an operation has a meaning in an image with the plan `file`.
pub(super) fn has_effect(file: &FilePlan, operation: Operation) -> bool {
    use Operation::*;
    if matches!(file.format, ImageFormat::Qcow2 | ImageFormat::Raw) {
        return true;
    }
    let compresses = compressing(file).is_some();
    match operation {
        Compress { .. } | CompressAs { .. } => compresses,
        // A compressed grain has no place before it has content.
        Preallocate { .. } | PreallocateRun { .. } => !compresses,
        Subclusters { .. }
        | Snapshot { .. }
        | SnapshotWith { .. }
        | DeleteSnapshot { .. }
        | ApplySnapshot { .. }
        | Header { .. }
        | Bitmap { .. }
        | FillBitmap { .. }
        | DeleteBitmap { .. }
        | EndFile { .. }
        | SpareBlocks { .. }
        | Beyond { kind: Hidden::Compressed, .. } => false,
        _ => true,
    }
}
