//! The files and the guest's disk at a cut: the moment at which the power fails or the engine's process is killed.

use crate::harness::files::chain::Chain;
use crate::programs::CutKind;

use super::guest::GuestDisk;

/// The files that a cut could have left, and the disk of the guest at that moment.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) kind: CutKind,
    pub(super) files: Chain,
    pub(super) guest: GuestDisk,
}
