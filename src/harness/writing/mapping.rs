//! Judges the extents of a closed file: clusters that no request has changed stay where they are, and the image stores
//! what was written.

use std::ops::Range;

use crate::harness::oracles::written;
use crate::harness::oracles::{OracleResult, SetAside};

use super::judge::WriterJudge;
use super::state::GuestChange;

impl WriterJudge {
    /// Compares the extents that our walker has found in a closed file with those before the requests.
    pub(super) fn mapping(&mut self, set_aside: &mut SetAside) -> OracleResult {
        let Self { built, guest, extents, bytes, before, .. } = self;
        let state = guest.state();
        // Nothing is known about the extents of an image that the engine has created.
        if before.is_some() {
            let cluster_bytes = built.cluster_bytes();
            let touched = state.changes.iter();
            let touched = touched.map(|(range, _)| whole_clusters(&range, cluster_bytes));
            written::check_outside(built.below(state), touched, extents, bytes, set_aside)?;
        }
        state.changes.iter().try_for_each(|(range, change)| match change {
            GuestChange::Written(_) => {
                written::check_stored(&range, extents).or_else(&mut *set_aside)
            }
            // A writer may leave out zeros, and bytes that are there already.
            GuestChange::Zeroed
            | GuestChange::Former
            | GuestChange::Unstamped { .. }
            | GuestChange::Unknown => Ok(()),
        })
    }
}

/// Returns the clusters that have bytes of a range.
fn whole_clusters(range: &Range<u64>, cluster_bytes: u64) -> Range<u64> {
    let end = range.end.div_ceil(cluster_bytes).saturating_mul(cluster_bytes);
    range.start / cluster_bytes * cluster_bytes..end
}
