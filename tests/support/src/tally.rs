//! Counts of the checks that a test did. A test states a lower bound for each of its counts, and fails if no case
//! reaches a check any more.

use crate::prelude::*;
use std::ops::AddAssign;

/// The counts, by name.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<String, u64>);

impl Tally {
    /// Counts `count` more of `what`.
    pub fn add(&mut self, what: impl Into<String>, count: u64) {
        *self.0.entry(what.into()).or_default() += count;
    }

    /// Requires that there are exactly these counts, each of them at least as large as its bound.
    #[track_caller]
    pub fn assert_at_least(&self, bounds: &[(&str, u64)]) {
        let faults = self.faults(bounds);
        assert!(faults.is_empty(), "{}\nof {:#?}", faults.join("\n"), self.0);
    }

    /// Returns a line for each count that is too low or has no bound.
    pub fn faults(&self, bounds: &[(&str, u64)]) -> Vec<String> {
        let bound = |what: &str| bounds.iter().any(|(name, _)| *name == what);
        let unbounded = self.0.keys().filter(|what| !bound(what));
        let unbounded = unbounded.map(|what| format!("{what}: counted, and nothing is expected"));
        let low = bounds.iter().filter_map(|(what, least)| {
            let count = self.0.get(*what).copied().unwrap_or(0);
            (count < *least).then(|| format!("{what}: {count}, expected at least {least}"))
        });
        unbounded.chain(low).collect()
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        other.0.into_iter().for_each(|(what, count)| self.add(what, count));
    }
}
