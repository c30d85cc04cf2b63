//! A cut: the moment at which the power, or the process of an engine, ends.

use crate::harness::chain::Chain;
use crate::programs::CutKind;

use super::guest::GuestDisk;

/// The files that a cut could have left, and the disk of the guest at that moment.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) kind: CutKind,
    pub(super) files: Chain,
    pub(super) guest: GuestDisk,
}
