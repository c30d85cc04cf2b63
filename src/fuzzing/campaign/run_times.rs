//! The time of runs by the features of their images: a hint for the user. Nothing else depends on it, because no two
//! machines have the same times.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::features::{Feature, FeatureSet};

/// The number of runs, and their time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Total {
    runs: u64,
    nanoseconds: u64,
}

impl Total {
    fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.nanoseconds = self.nanoseconds.saturating_add(other.nanoseconds);
    }

    /// Returns the mean time in nanoseconds; 0 without runs.
    fn mean(self) -> u64 {
        self.nanoseconds.checked_div(self.runs).unwrap_or(0)
    }
}

/// The times of runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RunTimes {
    all: Total,
    /// The totals of the runs with each feature, in the order of [`Feature::ALL`].
    with: Vec<Total>,
}

/// A feature with which runs take much longer than without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SlowFeature {
    /// The name of the feature.
    pub feature: &'static str,
    /// The mean time of a run with it divided by that of a run without it, at least 4.
    pub times: u64,
    /// The share of the time that runs with it took, in percent, 50 to 100.
    pub percent: u64,
}

/// A mean time from which a run counts as slow. Below it, a campaign is fast enough with every feature.
const SLOW: Duration = Duration::from_millis(1);
/// The number of runs with a feature that make a mean. At least as many must lack it.
const ENOUGH: u64 = 20;

impl RunTimes {
    /// Adds a run.
    pub(super) fn add(&mut self, features: FeatureSet, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let run = Total { runs: 1, nanoseconds };
        self.all.add(run);
        self.with.resize(Feature::ALL.len(), Total::default());
        let totals = self.with.iter_mut().zip(Feature::ALL);
        totals.filter(|(_, feature)| features.has(*feature)).for_each(|(total, _)| total.add(run));
    }

    /// Adds the runs of another job.
    pub(super) fn extend(&mut self, other: &Self) {
        self.all.add(other.all);
        self.with.resize(Feature::ALL.len(), Total::default());
        self.with.iter_mut().zip(&other.with).for_each(|(total, other)| total.add(*other));
    }

    /// Returns the feature that slows runs most, if runs are slow and one does.
    pub(super) fn slowest(&self) -> Option<SlowFeature> {
        if self.all.mean() < u64::try_from(SLOW.as_nanos()).unwrap_or(u64::MAX) {
            return None;
        }
        let slow = |(with, feature): (&Total, Feature)| {
            let without = Total {
                runs: self.all.runs.saturating_sub(with.runs),
                nanoseconds: self.all.nanoseconds.saturating_sub(with.nanoseconds),
            };
            let percent = with.nanoseconds.saturating_mul(100).checked_div(self.all.nanoseconds)?;
            let times = with.mean().checked_div(without.mean())?;
            // Without the feature of most runs, little is left to judge.
            let is_enough = with.runs >= ENOUGH && without.runs >= with.runs;
            let is_slow = times >= 4 && percent >= 50;
            (is_enough && is_slow).then_some(SlowFeature {
                feature: feature.name(),
                times,
                percent,
            })
        };
        self.with.iter().zip(Feature::ALL).filter_map(slow).max_by_key(|slow| slow.times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of 100 runs: those with snapshots take `slow` microseconds, one in `each` has them.
    fn times(each: u64, slow: u64, fast: u64) -> RunTimes {
        let (mut one, mut other) = (RunTimes::default(), RunTimes::default());
        for run in 0..100 {
            let (features, time) = match run % each {
                0 => (FeatureSet::of(&[Feature::Snapshots, Feature::Version3]), slow),
                _ => (FeatureSet::of(&[Feature::Version3]), fast),
            };
            let times = if run % 3 == 0 { &mut one } else { &mut other };
            times.add(features, Duration::from_micros(time));
        }
        one.extend(&other);
        one
    }

    #[test]
    fn a_feature_that_slows_runs_is_named() {
        let slow = SlowFeature { feature: Feature::Snapshots.name(), times: 10, percent: 71 };
        assert_eq!(times(5, 20_000, 2000).slowest(), Some(slow));
    }

    #[test]
    fn no_feature_is_named_without_need() {
        // Fast enough; no great difference; too few runs; little of the time; most runs; nothing.
        assert_eq!(times(5, 2000, 200).slowest(), None);
        assert_eq!(times(5, 6000, 2000).slowest(), None);
        assert_eq!(times(10, 90_000, 2000).slowest(), None);
        assert_eq!(times(5, 8000, 2001).slowest(), None);
        assert_eq!(times(1, 9000, 1000).slowest(), None);
        assert_eq!(RunTimes::default().slowest(), None);
    }
}
