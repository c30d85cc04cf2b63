//! The operations that an image of each format has.

use crate::disk::image_format::ImageFormat;
use crate::programs::operand::Hidden;
use crate::programs::operation::Operation;

/// Reports whether an operation has a meaning in an image of `format`.
pub(super) fn has_effect(format: ImageFormat, operation: Operation) -> bool {
    use Operation::*;
    match format {
        ImageFormat::Qcow2 | ImageFormat::Raw => true,
        ImageFormat::Vpc | ImageFormat::Vhdx | ImageFormat::Vmdk => !matches!(
            operation,
            Compress { .. }
                | CompressAs { .. }
                | Subclusters { .. }
                | Snapshot { .. }
                | SnapshotWith { .. }
                | DeleteSnapshot { .. }
                | ApplySnapshot { .. }
                | Header { .. }
                | Bitmap { .. }
                | FillBitmap { .. }
                | DeleteBitmap { .. }
                | EndFile { .. }
                | Beyond { kind: Hidden::Compressed, .. }
        ),
    }
}
