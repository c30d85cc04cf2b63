//! Bugs in opening snapshots.

use super::{Case, Fault, OnSnapshot};

pub const CASES: &[Case] = &[
    snapshot("a snapshot is the active disk", OnSnapshot::Active, &["snapshots: "]),
    snapshot(
        "a snapshot has the size of the active disk",
        OnSnapshot::ActiveSize,
        &["snapshots: virtual size, the journal's → "],
    ),
    snapshot("a snapshot is the one before it", OnSnapshot::Previous, &["snapshots: "]),
];

const fn snapshot(
    name: &'static str,
    instead: OnSnapshot,
    fingerprints: &'static [&'static str],
) -> Case {
    Case { name, fault: Fault { snapshot: Some(instead), ..Fault::NONE }, fingerprints }
}
