//! Bugs in opening snapshots.

use super::{Case, Fault, OnSnapshot, points};

pub const CASES: &[Case] = &[
    snapshot("a snapshot is the active disk", OnSnapshot::Active, &["snapshots: "]),
    snapshot(
        "a snapshot has the size of the active disk",
        OnSnapshot::ActiveSize,
        &["snapshots: virtual size, the journal's → "],
    ),
    snapshot("a snapshot is the one before it", OnSnapshot::Previous, &["snapshots: "]),
    snapshot(
        "the inside of a snapshot's cluster reads as zeros",
        OnSnapshot::Read(points::zeros_inside),
        &["snapshots: normal, what was written → "],
    ),
];

const fn snapshot(
    name: &'static str,
    instead: OnSnapshot,
    fingerprints: &'static [&'static str],
) -> Case {
    Case { name, fault: Fault { snapshot: Some(instead), ..Fault::NONE }, fingerprints }
}
