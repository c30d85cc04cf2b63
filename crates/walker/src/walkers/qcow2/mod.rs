//! The walker of qcow2 images.

mod check;
mod host_holes;
mod inflate;
mod latest;
mod lookup;
mod open;
mod read;
mod walk;

pub use check::{CheckFinding, CheckedQcow2, FindingCounts, GuestClusters, check_qcow2};
pub(super) use inflate::Inflater;
pub(super) use open::{Named, Qcow2};
