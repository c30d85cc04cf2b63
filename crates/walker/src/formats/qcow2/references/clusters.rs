//! The references to clusters, and the counts on disk.

use crate::formats::error::MapError;

use super::report::{Occupied, RefcountReport, Role};

/// A run of clusters with one reference.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// The first cluster.
    pub first: u64,
    /// The cluster after the last.
    pub end: u64,
    /// The structure that references the clusters.
    pub role: Role,
    /// The COPIED flag of the reference, if it has one.
    pub copied: Option<bool>,
}

/// A run of clusters with the same count.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedRun {
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) count: u64,
    pub(super) role: Role,
}

/// The references to clusters, their sums, and the counts on disk. All buffers are reused.
#[derive(Debug)]
pub struct ClusterCounts {
    pub(super) references: Vec<Reference>,
    pub(super) computed: Vec<CountedRun>,
    pub(super) on_disk: Vec<CountedRun>,
    pub(super) reports: Vec<RefcountReport>,
    bound: usize,
}

impl ClusterCounts {
    /// Creates counts that keep at most `bound` references, runs of counts or reports.
    pub fn bounded(bound: usize) -> Self {
        let (references, computed, on_disk, reports) = Default::default();
        Self { references, computed, on_disk, reports, bound }
    }

    /// Returns the largest number of references, of runs of counts or of reports.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Forgets all references and counts.
    pub fn clear(&mut self) {
        self.references.clear();
        self.computed.clear();
        self.on_disk.clear();
        self.reports.clear();
    }

    /// Adds a reference to the clusters from `first` to `end`. `copied` is its COPIED flag, if it has one.
    #[inline]
    pub fn reference(&mut self, first: u64, end: u64, role: Role, copied: Option<bool>) {
        self.references.push(Reference { first, end, role, copied });
    }

    /// Adds a count on disk of `clusters` clusters. Calls come in the order of the clusters.
    #[inline]
    pub fn count(&mut self, first: u64, clusters: u64, count: u64) {
        let end = first + clusters;
        if let Some(last) = self.on_disk.last_mut()
            && last.end == first
            && last.count == count
        {
            last.end = end;
            return;
        }
        let role = Role::Header;
        self.on_disk.push(CountedRun { first, end, count, role });
    }

    /// Returns the count on disk of a cluster.
    pub fn on_disk(&self, cluster: u64) -> u64 {
        at(&self.on_disk, cluster).map_or(0, |counted| counted.count)
    }

    /// Returns the number of references to a cluster, after [`ClusterCounts::add_up`].
    pub fn computed(&self, cluster: u64) -> u64 {
        at(&self.computed, cluster).map_or(0, |counted| counted.count)
    }

    /// Returns the references: in the order of the file, after [`ClusterCounts::add_up`].
    pub fn references(&self) -> &[Reference] {
        &self.references
    }

    /// Adds a finding that the comparison does not make.
    pub fn report(&mut self, report: RefcountReport) {
        self.reports.push(report);
    }

    /// Returns the findings, in the order of their clusters by kind.
    pub fn reports(&self) -> &[RefcountReport] {
        &self.reports
    }

    /// Checks the bound. Callers check it between two tables, because the largest table, a refcount block of 2^24
    /// counts, has only a quarter of the bound.
    ///
    /// # Errors
    /// There are more references, runs of counts or reports than the bound.
    pub fn check_bound(&self) -> Result<(), MapError> {
        if self.references.len() > self.bound {
            return Err(MapError::TooLarge("too many references to clusters"));
        }
        if self.on_disk.len() > self.bound {
            return Err(MapError::TooLarge("too many runs of refcounts"));
        }
        if self.computed.len() + self.reports.len() > self.bound {
            return Err(MapError::TooLarge("too many clusters that overlap"));
        }
        Ok(())
    }

    /// Returns all clusters of the image of the last recount that have a reference or a count, in the order of the
    /// file.
    pub fn occupied(&self) -> Vec<Occupied> {
        let ends = |counted: &CountedRun| [counted.first, counted.end];
        let mut edges: Vec<u64> =
            self.computed.iter().chain(&self.on_disk).flat_map(ends).collect();
        edges.sort_unstable();
        edges.dedup();
        let piece = |edges: &[u64]| {
            let [first, end] = *edges.first_chunk::<2>()?;
            let (computed, on_disk) = (at(&self.computed, first), at(&self.on_disk, first));
            let role = computed.map(|counted| counted.role);
            let references = computed.map_or(0, |counted| counted.count);
            let on_disk = on_disk.map_or(0, |counted| counted.count);
            let there = references > 0 || on_disk > 0;
            there.then_some(Occupied { first, end, role, references, on_disk })
        };
        edges.windows(2).filter_map(piece).collect()
    }
}

/// Returns the run that holds `cluster`.
fn at(runs: &[CountedRun], cluster: u64) -> Option<CountedRun> {
    let next = runs.partition_point(|counted| counted.end <= cluster);
    runs.get(next).copied().filter(|counted| counted.first <= cluster)
}
