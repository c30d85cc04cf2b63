//! The operations that an image of each format has.

use crate::disk::clusters::GuestCluster;
use crate::disk::image_format::ImageFormat;
use crate::images::content::look::Look;
use crate::images::content::unstamped::EntryForm;
use crate::images::format::file_plan::FilePlan;
use crate::images::format::list::drawer;
use crate::images::qcow2::ImagePlan;
use crate::images::vmdk;
use crate::programs::operand::Hidden;
use crate::programs::operation::Operation;

/// Returns the form of a VMDK image that stores every grain compressed; `None` for other images.
pub(super) fn compressing(file: &FilePlan) -> Option<vmdk::VmdkForm> {
    let form = vmdk::VmdkForm::of(file);
    (file.format == ImageFormat::Vmdk && form.is_compressed()).then_some(form)
}

/// Reports whether an image can state that a cluster consists of zeros.
pub(super) fn has_zeros(file: &FilePlan) -> bool {
    drawer(file.format).has_zeros(file)
}

/// Reports whether the data of a cluster may have a look. Under extended L2, pieces of data may begin inside a cluster.
/// Data that look like a footer must not lie where a reader would take them for the image's own.
pub(super) fn allows_look(plan: &ImagePlan, cluster: GuestCluster, look: Look) -> bool {
    let misleads = drawer(plan.file.format).misleads(&plan.file, cluster);
    let is_ambiguous = misleads && look.is_footer();
    !plan.geometry.extended_l2 && !is_ambiguous
}

/// Reports whether the data of a cluster may be any bytes: those of a look that misleads, too.
pub(super) fn allows_any_bytes(plan: &ImagePlan, cluster: GuestCluster) -> bool {
    allows_look(plan, cluster, Look::Vpc)
}

/// Returns the encoding of an entry of a data cluster in the tables of an image.
pub(super) fn entry_form(format: ImageFormat) -> EntryForm {
    drawer(format).entry_form()
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
