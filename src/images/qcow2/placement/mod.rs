//! The placement of host clusters. The program selects a policy. Random places come from a separate stream.

pub mod clusters;

use crate::disk::observer::{Event, Observer, Rare, State};
use crate::images::content::entropy::Entropy;

use clusters::Clusters;

/// The policy for the placement of clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// At the end of the file.
    #[default]
    Append,
    /// In the first hole that is large enough, otherwise at the end.
    FirstHole,
    /// In a random hole, otherwise at the end.
    RandomHole,
    /// At the end or in a random hole, by a coin.
    Mixed,
}

/// The largest distance of a random place in a hole from one end of the hole, in a file with a far gap. So few refcount
/// blocks count such places, and refcount blocks in random places soon count each other.
const FAR_RANDOM_CLUSTERS: u64 = 1 << 17;

/// The number of placements, by their result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// At the end of the file.
    appended: u64,
    /// In a hole.
    filled: u64,
    /// At the end, because no hole was large enough.
    no_hole: u64,
}

impl Tally {
    /// Reports the events since `before`.
    #[inline]
    pub fn report(&self, before: &Self, state: State, observer: &dyn Observer) {
        if self.appended > before.appended {
            observer.event(state, Event::Appended);
        }
        if self.filled > before.filled {
            observer.event(state, Event::Filled);
        }
        if self.no_hole > before.no_hole {
            observer.event(state, Event::NoHole);
            observer.rare(Rare::NoHole);
        }
    }
}

/// The allocator of one file.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// The allocated clusters.
    pub clusters: Clusters,
    /// The policy of structures that have no policy of their own.
    pub policy: Policy,
    entropy: Entropy,
    /// The lowest cluster for appended clusters. Reserved gaps lie below.
    append_at: u64,
    /// The longest file, in clusters.
    limit: u64,
    /// The file has a far gap.
    far: bool,
    tally: Tally,
}

impl Placement {
    /// Begins an empty file of at most `limit` clusters, and reuses the buffers.
    pub fn reset(&mut self, rng_seed: u64, limit: u64) {
        self.clusters.clear();
        self.policy = Policy::Append;
        self.entropy = Entropy::new(rng_seed);
        self.append_at = 0;
        (self.limit, self.far) = (limit, false);
        self.tally = Tally::default();
    }

    /// Copies `other` into the existing buffers.
    pub fn copy_from(&mut self, other: &Self) {
        self.clusters.copy_from(&other.clusters);
        self.policy = other.policy;
        self.entropy = other.entropy.clone();
        self.append_at = other.append_at;
        (self.limit, self.far) = (other.limit, other.far);
        self.tally = other.tally;
    }

    /// Removes the limit on the file's length.
    pub fn lift_limit(&mut self) {
        self.limit = u64::MAX;
    }

    /// Returns the number of placements since the file began.
    #[inline]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns the place of the next appended cluster.
    pub fn append_at(&self) -> u64 {
        self.append_at.max(self.clusters.end())
    }

    /// Leaves a gap of `clusters` at the end of the file. The gap is cut so that the file keeps room.
    pub fn leave_gap(&mut self, clusters: u64) {
        let end = self.append_at();
        // A quarter of the file stays free after a gap, for later clusters.
        let room = (self.limit / 4 * 3).saturating_sub(end);
        self.append_at = end + clusters.min(room);
    }

    /// Leaves a gap of `clusters` at the end of a file of at most `limit` clusters.
    pub fn leave_far_gap(&mut self, clusters: u64, limit: u64) {
        self.append_at = self.append_at() + clusters;
        (self.limit, self.far) = (self.limit.max(limit), true);
    }

    /// Allocates `clusters` adjacent clusters by `policy`, or returns `None` if the file is full.
    #[inline]
    pub fn allocate(&mut self, clusters: u64, policy: Policy) -> Option<u64> {
        self.allocate_with_tolerance(clusters, 0, policy)
    }

    /// Allocates `clusters` adjacent clusters. At least `tolerance` free ones follow them, if the policy finds such a
    /// place.
    pub fn allocate_with_tolerance(
        &mut self,
        clusters: u64,
        tolerance: u64,
        policy: Policy,
    ) -> Option<u64> {
        let wanted = clusters + tolerance;
        let wants_hole = match policy {
            Policy::Append => false,
            Policy::FirstHole | Policy::RandomHole => true,
            Policy::Mixed => self.entropy.one_in(2),
        };
        let hole = match policy {
            Policy::FirstHole => self.hole_from(0, wanted),
            _ if wants_hole => self.random_hole(wanted),
            _ => None,
        };
        let first = match hole {
            Some(first) => {
                self.tally.filled += 1;
                first
            }
            None => {
                let first = self.append_at();
                if first + clusters > self.limit {
                    return None;
                }
                match wants_hole {
                    true => self.tally.no_hole += 1,
                    false => self.tally.appended += 1,
                }
                self.append_at = first + clusters;
                first
            }
        };
        self.clusters.allocate(first, clusters);
        Some(first)
    }

    /// Allocates `clusters` from `first` on. Returns false if one of them is allocated or past the limit.
    pub fn allocate_at(&mut self, first: u64, clusters: u64) -> bool {
        let possible = first + clusters <= self.limit && self.clusters.is_free(first, clusters);
        if possible {
            self.clusters.allocate(first, clusters);
        }
        possible
    }

    /// Allocates `clusters` adjacent clusters in the first hole of a file with a far gap. Returns `None` if they would
    /// end past cluster `end`, or if there is no far gap.
    pub fn allocate_below(&mut self, clusters: u64, end: u64) -> Option<u64> {
        // A gap that nothing follows yet is a hole, too.
        let first = self.hole_from(0, clusters).unwrap_or(self.clusters.end());
        let possible = self.far && first + clusters <= end.min(self.append_at());
        possible.then(|| {
            self.tally.filled += 1;
            self.clusters.allocate(first, clusters);
            first
        })
    }

    fn random_hole(&mut self, wanted: u64) -> Option<u64> {
        let runs = self.clusters.runs().len();
        let index = self.entropy.below(runs as u64) as usize;
        let (first, length) = match self.clusters.hole_after(index) {
            Some((first, length)) if length >= wanted => (first, length),
            _ => {
                return self.hole_from(index + 1, wanted).or_else(|| self.hole_from(0, wanted));
            }
        };
        // Anywhere in the hole: next to other clusters, or with a new hole before it.
        let places = length - wanted + 1;
        if !self.far || places <= 2 * FAR_RANDOM_CLUSTERS {
            return Some(first + self.entropy.below(places));
        }
        let place = self.entropy.below(2 * FAR_RANDOM_CLUSTERS);
        let skipped =
            if place < FAR_RANDOM_CLUSTERS { 0 } else { places - 2 * FAR_RANDOM_CLUSTERS };
        Some(first + skipped + place)
    }

    /// Returns the start of the first hole of at least `wanted` clusters after the run at `index` or a later one.
    fn hole_from(&self, index: usize, wanted: u64) -> Option<u64> {
        (index..self.clusters.runs().len().saturating_sub(1)).find_map(|index| {
            let (first, length) = self.clusters.hole_after(index)?;
            (length >= wanted).then_some(first)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_holes() -> Placement {
        let mut placement = Placement::default();
        placement.reset(1, 1000);
        assert_eq!(placement.allocate(1, Policy::Append), Some(0));
        placement.leave_gap(2);
        assert_eq!(placement.allocate(1, Policy::Append), Some(3));
        placement.leave_gap(5);
        assert_eq!(placement.allocate(1, Policy::Append), Some(9));
        placement
    }

    #[test]
    fn holes_are_found_by_size() {
        assert_eq!(with_holes().allocate(2, Policy::FirstHole), Some(1));
        assert_eq!(with_holes().allocate(3, Policy::FirstHole), Some(4));
        assert_eq!(with_holes().allocate(6, Policy::FirstHole), Some(10));
        assert_eq!(with_holes().allocate_with_tolerance(2, 3, Policy::FirstHole), Some(4));
    }

    #[test]
    fn random_holes_reach_every_free_cluster() {
        let mut placement = with_holes();
        for _ in 0..7 {
            assert!(placement.allocate(1, Policy::RandomHole).unwrap() < 9);
        }
        assert_eq!(placement.allocate(1, Policy::RandomHole), Some(10));
    }

    #[test]
    fn a_full_file_is_not_overrun() {
        let mut placement = with_holes();
        placement.leave_gap(u64::MAX / 2);
        assert_eq!(placement.append_at(), 750);
        assert_eq!(placement.allocate(251, Policy::Append), None);
        assert_eq!(placement.allocate(250, Policy::Append), Some(750));
        assert_eq!(placement.allocate(1, Policy::Append), None);
        assert_eq!(placement.allocate(1, Policy::FirstHole), Some(1));
    }

    #[test]
    fn random_places_of_a_far_gap_lie_near_its_ends() {
        let end = 10 + (1 << 40);
        let mut after_start = 0;
        for rng_seed in 0..100 {
            let mut placement = Placement::default();
            placement.reset(rng_seed, 1000);
            placement.allocate(10, Policy::Append);
            placement.leave_far_gap(1 << 40, 1 << 41);
            assert_eq!(placement.allocate(1, Policy::Append), Some(end));
            let first = placement.allocate(10, Policy::RandomHole).unwrap();
            let is_after_start = first < 10 + FAR_RANDOM_CLUSTERS;
            assert!(is_after_start || (end - FAR_RANDOM_CLUSTERS..end).contains(&(first + 9)));
            after_start += u64::from(is_after_start);
        }
        assert!((20..=80).contains(&after_start), "{after_start} of 100");
    }

    #[test]
    fn clusters_below_an_end_lie_in_the_first_hole() {
        let mut placement = with_holes();
        assert_eq!(placement.allocate_below(1, 100), None, "there is no far gap");
        placement.leave_far_gap(1 << 40, 1 << 41);
        assert_eq!(placement.allocate_below(3, 100), Some(4));
        assert_eq!(placement.allocate_below(2, 2), None);
        // Nothing follows the far gap yet.
        assert_eq!(placement.allocate_below(20, 30), Some(10));
        assert_eq!(placement.allocate_below(1, u64::MAX), Some(1));
        assert_eq!(placement.append_at(), 10 + (1 << 40));
    }
}
