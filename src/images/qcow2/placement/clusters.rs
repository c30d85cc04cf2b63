//! The allocated host clusters and their reference counts, as sorted runs. A table of 512 clusters costs as much as
//! one cluster.

/// Adjacent clusters with the same refcount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRun {
    /// The first cluster.
    pub first: u64,
    /// The cluster past the last.
    pub end: u64,
    /// The number of references to each cluster; never 0.
    pub references: u64,
}

/// The allocated clusters of a file.
#[derive(Clone, Debug, Default)]
pub struct Clusters {
    /// Sorted and disjoint. Adjacent runs have different counts.
    runs: Vec<ClusterRun>,
}

impl Clusters {
    /// Frees everything.
    pub fn clear(&mut self) {
        self.runs.clear();
    }

    /// Copies `other` into the existing buffer.
    pub fn copy_from(&mut self, other: &Self) {
        self.runs.clone_from(&other.runs);
    }

    /// Returns the allocated clusters, in order.
    #[inline]
    pub fn runs(&self) -> &[ClusterRun] {
        &self.runs
    }

    /// Returns the cluster after the last allocated one.
    #[inline]
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// Returns the index of the first run that ends past `cluster`.
    #[inline]
    fn first_past(&self, cluster: u64) -> usize {
        // The fast path: programs mostly append.
        if self.end() <= cluster {
            return self.runs.len();
        }
        self.runs.partition_point(|run| run.end <= cluster)
    }

    /// Returns the number of references to `cluster`; 0 if it is free.
    #[inline]
    pub fn references(&self, cluster: u64) -> u64 {
        match self.runs.get(self.first_past(cluster)) {
            Some(run) if run.first <= cluster => run.references,
            _ => 0,
        }
    }

    /// Reports whether none of the `clusters` clusters from `first` on is allocated.
    pub fn is_free(&self, first: u64, clusters: u64) -> bool {
        match self.runs.get(self.first_past(first)) {
            Some(run) => run.first >= first.saturating_add(clusters),
            None => true,
        }
    }

    /// Allocates free clusters with one reference each.
    #[inline]
    pub fn allocate(&mut self, first: u64, clusters: u64) {
        debug_assert!(self.is_free(first, clusters));
        let end = first + clusters;
        let at = self.first_past(first);
        if at == self.runs.len() {
            match self.runs.last_mut() {
                Some(last) if last.end == first && last.references == 1 => last.end = end,
                _ => self.runs.push(ClusterRun { first, end, references: 1 }),
            }
            return;
        }
        self.runs.insert(at, ClusterRun { first, end, references: 1 });
        self.join_around(at);
    }

    /// Adds a reference to an allocated cluster.
    pub fn add_reference(&mut self, cluster: u64) {
        let at = self.isolate(cluster);
        self.runs[at].references += 1;
        self.join_around(at);
    }

    /// Removes a reference from an allocated cluster, and frees it after the last one. Returns the number of
    /// remaining references.
    pub fn drop_reference(&mut self, cluster: u64) -> u64 {
        let at = self.isolate(cluster);
        self.runs[at].references -= 1;
        let left = self.runs[at].references;
        if left == 0 {
            self.runs.remove(at);
        } else {
            self.join_around(at);
        }
        left
    }

    /// Frees clusters with one reference each.
    pub fn free(&mut self, first: u64, clusters: u64) {
        let end = first + clusters;
        let at = self.first_past(first);
        let run = self.runs[at];
        debug_assert!(run.first <= first && end <= run.end && run.references == 1);
        let before = ClusterRun { end: first, ..run };
        let after = ClusterRun { first: end, ..run };
        match (before.first < before.end, after.first < after.end) {
            (true, true) => {
                self.runs[at] = before;
                self.runs.insert(at + 1, after);
            }
            (true, false) => self.runs[at] = before,
            (false, true) => self.runs[at] = after,
            (false, false) => {
                self.runs.remove(at);
            }
        }
    }

    /// Returns the free clusters between the run at `index` and the next run: the first one, and their number.
    pub fn hole_after(&self, index: usize) -> Option<(u64, u64)> {
        let here = self.runs.get(index)?;
        let next = self.runs.get(index + 1)?;
        Some((here.end, next.first - here.end))
    }

    /// Gives `cluster` a run of its own, and returns the index of the run.
    fn isolate(&mut self, cluster: u64) -> usize {
        let at = self.first_past(cluster);
        let run = self.runs[at];
        debug_assert!(run.first <= cluster, "cluster {cluster} is not allocated");
        let alone = ClusterRun { first: cluster, end: cluster + 1, ..run };
        let after = ClusterRun { first: cluster + 1, ..run };
        if after.first < after.end {
            self.runs[at].end = cluster + 1;
            self.runs.insert(at + 1, after);
        }
        if run.first < cluster {
            self.runs[at].end = cluster;
            self.runs.insert(at + 1, alone);
            return at + 1;
        }
        at
    }

    fn join_around(&mut self, at: usize) {
        self.join_with_next(at);
        if at > 0 {
            self.join_with_next(at - 1);
        }
    }

    fn join_with_next(&mut self, at: usize) {
        if let (Some(here), Some(next)) = (self.runs.get(at), self.runs.get(at + 1))
            && here.end == next.first
            && here.references == next.references
        {
            self.runs[at].end = next.end;
            self.runs.remove(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::images::content::entropy::Entropy;

    use super::*;

    #[test]
    fn runs_agree_with_a_count_for_each_cluster() {
        let mut entropy = Entropy::new(3);
        for _ in 0..100 {
            let mut clusters = Clusters::default();
            let mut counts = [0u64; 64];
            for _ in 0..200 {
                let cluster = entropy.below(64);
                let slot = cluster as usize;
                match (counts[slot], entropy.below(3)) {
                    (0, _) => {
                        let mut length = 1;
                        while slot + length < 64 && counts[slot + length] == 0 && length < 4 {
                            length += 1;
                        }
                        clusters.allocate(cluster, length as u64);
                        counts[slot..slot + length].fill(1);
                    }
                    (_, 0) => {
                        clusters.add_reference(cluster);
                        counts[slot] += 1;
                    }
                    (1, 1) => {
                        clusters.free(cluster, 1);
                        counts[slot] = 0;
                    }
                    _ => {
                        counts[slot] -= 1;
                        assert_eq!(clusters.drop_reference(cluster), counts[slot]);
                    }
                }
                for (cluster, count) in counts.iter().enumerate() {
                    assert_eq!(clusters.references(cluster as u64), *count);
                }
            }
            let apart = clusters.runs().windows(2).all(|pair| {
                pair[0].end < pair[1].first || pair[0].references != pair[1].references
            });
            assert!(apart);
        }
    }
}
