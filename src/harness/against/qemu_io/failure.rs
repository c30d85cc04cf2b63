//! The end of a run in which QEMU cannot work.

use crate::harness::engine::engine_failure;

/// Ends the run without a verdict: QEMU cannot work, and no image is to blame.
pub(super) fn fail(what: &str) -> ! {
    engine_failure::fail(format!("qemu: {what}"))
}
