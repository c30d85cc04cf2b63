//! The references to the clusters of an image: their sums, the counts on disk, and the comparison of both. The recount
//! of the harness collects them. The check of qcow2 images keeps only the sums.

use std::fmt;

use crate::disk::clusters::HostCluster;
use crate::formats::error::MapError;

/// The structure that references a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The header.
    Header,
    /// The refcount table.
    RefcountTable,
    /// A refcount block.
    RefcountBlock,
    /// An L1 table, the active one or a snapshot's.
    L1Table,
    /// The snapshot table.
    SnapshotTable,
    /// The bitmap directory.
    BitmapDirectory,
    /// A bitmap table.
    BitmapTable,
    /// Bits of a bitmap.
    BitmapData,
    /// An L2 table.
    L2Table,
    /// Guest data, or a cluster that is allocated for them.
    Data,
    /// Compressed guest data.
    Compressed,
    /// A table of blocks of an image in another format.
    BlockTable,
    /// The bytes before the data of a block in another format.
    BlockFront,
    /// A table of structures of an image in another format.
    Directory,
    /// The description of the disk in another format.
    Metadata,
}

impl Role {
    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::RefcountTable => "refcount table",
            Self::RefcountBlock => "refcount block",
            Self::L1Table => "L1 table",
            Self::SnapshotTable => "snapshot table",
            Self::BitmapDirectory => "bitmap directory",
            Self::BitmapTable => "bitmap table",
            Self::BitmapData => "bitmap data",
            Self::L2Table => "L2 table",
            Self::Data => "data",
            Self::Compressed => "compressed data",
            Self::BlockTable => "block table",
            Self::BlockFront => "front of a block",
            Self::Directory => "directory",
            Self::Metadata => "metadata",
        }
    }

    /// Reports whether this role may reference a cluster more than once.
    fn shared(self) -> bool {
        matches!(self, Self::L2Table | Self::Data | Self::Compressed)
    }
}

/// A run of clusters of one role, with the same number of references and the same count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The first cluster.
    pub first: u64,
    /// The cluster after the last.
    pub end: u64,
    /// The role of the first reference; `None` if a count is all that the clusters have.
    pub role: Option<Role>,
    /// The number of references.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
}

/// A fault in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefcountFault {
    /// The count on disk is higher than the references: space is lost.
    Leak,
    /// The count on disk is lower than the references: data will be overwritten.
    Corruption,
    /// A COPIED flag disagrees with the count.
    Copied,
    /// Two structures lie in one cluster.
    Overlap,
}

/// A finding of the recount, and its clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefcountReport {
    /// The fault.
    pub finding: RefcountFault,
    /// The first cluster.
    pub cluster: HostCluster,
    /// The number of clusters.
    pub clusters: u64,
    /// The number of references.
    pub references: u64,
    /// The count on disk.
    pub on_disk: u64,
    /// The role of the first reference; `None` without a reference.
    pub role: Option<Role>,
}

/// Prints the clusters, their role and both counts.
impl fmt::Display for RefcountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { finding, cluster, clusters, references, on_disk, role } = self;
        let finding = match finding {
            RefcountFault::Leak => format!("leaked, references {references}"),
            RefcountFault::Corruption => format!("counted too low, references {references}"),
            // For a COPIED finding, the value of the flag stands in place of the references.
            RefcountFault::Copied if *references == 1 => "COPIED is set".to_string(),
            RefcountFault::Copied => "COPIED is not set".to_string(),
            RefcountFault::Overlap => "another structure lies there too".to_string(),
        };
        let role = role.map_or("unreferenced", Role::name);
        write!(f, "cluster {cluster}")?;
        if *clusters > 1 {
            write!(f, " and {} behind it", clusters - 1)?;
        }
        write!(f, " ({role}): {finding}, refcount {on_disk}")
    }
}

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
struct CountedRun {
    first: u64,
    end: u64,
    count: u64,
    role: Role,
}

/// The references to clusters, their sums, and the counts on disk. All buffers are reused.
#[derive(Debug)]
pub struct ClusterCounts {
    references: Vec<Reference>,
    computed: Vec<CountedRun>,
    on_disk: Vec<CountedRun>,
    reports: Vec<RefcountReport>,
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

    /// Returns the findings, grouped by the step that made them. Each group is in the order of its clusters.
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

impl ClusterCounts {
    /// Adds the references up to counts, and records overlaps.
    ///
    /// # Errors
    /// There are more counts and overlaps than the bound.
    pub fn add_up(&mut self) -> Result<(), MapError> {
        self.references.sort_unstable_by_key(|reference| reference.first);
        for at in 0..self.references.len() {
            self.add_reference(self.references[at]);
            self.check_bound()?;
        }
        Ok(())
    }

    /// Adds one reference. References come sorted by their start, so this can change only the last runs.
    fn add_reference(&mut self, reference: Reference) {
        let Reference { mut first, end, role, .. } = reference;
        let touched = match self.computed.last() {
            Some(last) if last.end > first => {
                self.computed.partition_point(|counted| counted.end <= first)
            }
            _ => self.computed.len(),
        };
        let mut at = touched;
        while let Some(here) = self.computed.get(at).copied() {
            if first >= end {
                break;
            }
            if here.first < first {
                // The clusters before the reference keep their count.
                self.computed[at].end = first;
                self.computed.insert(at + 1, CountedRun { first, ..here });
                at += 1;
                continue;
            }
            let shared_end = here.end.min(end);
            if here.role != role || !role.shared() {
                self.reports.push(RefcountReport {
                    finding: RefcountFault::Overlap,
                    cluster: HostCluster::new(first),
                    clusters: shared_end - first,
                    references: here.count + 1,
                    on_disk: 0,
                    role: Some(role),
                });
            }
            if shared_end < here.end {
                self.computed.insert(at + 1, CountedRun { first: shared_end, ..here });
            }
            self.computed[at].end = shared_end;
            self.computed[at].count += 1;
            first = shared_end;
            at += 1;
        }
        if first < end {
            self.computed.push(CountedRun { first, end, count: 1, role });
        }
    }

    /// Compares the computed counts with the counts on disk, and the COPIED flags with both.
    pub fn compare(&mut self) {
        let mut on_disk = self.on_disk.iter().copied().peekable();
        let mut cursor = 0u64;
        for here in &self.computed {
            // Clusters with a count and without a reference.
            while let Some(counted) = on_disk.peek().copied() {
                let (first, end) = (counted.first.max(cursor), counted.end.min(here.first));
                if first < end {
                    self.reports.push(leak(first, end, counted.count));
                }
                if counted.end > here.first {
                    break;
                }
                on_disk.next();
            }
            cursor = here.first;
            while cursor < here.end {
                let counted = on_disk.peek().copied().filter(|counted| counted.first < here.end);
                let (end, count) = match counted {
                    Some(counted) if counted.first <= cursor => (counted.end, counted.count),
                    Some(counted) => (counted.first, 0),
                    None => (here.end, 0),
                };
                let end = end.min(here.end);
                if count != here.count {
                    let higher = count > here.count;
                    self.reports.push(RefcountReport {
                        finding: if higher {
                            RefcountFault::Leak
                        } else {
                            RefcountFault::Corruption
                        },
                        cluster: HostCluster::new(cursor),
                        clusters: end - cursor,
                        references: here.count,
                        on_disk: count,
                        role: Some(here.role),
                    });
                }
                cursor = end;
                if counted.is_some_and(|counted| counted.end <= cursor) {
                    on_disk.next();
                }
            }
        }
        for counted in on_disk {
            let first = counted.first.max(cursor);
            if first < counted.end {
                self.reports.push(leak(first, counted.end, counted.count));
            }
        }
        self.compare_copied();
    }

    fn compare_copied(&mut self) {
        let mut counted = self.on_disk.iter().peekable();
        for reference in &self.references {
            let Some(copied) = reference.copied else { continue };
            while counted.next_if(|counted| counted.end <= reference.first).is_some() {}
            let count = match counted.peek() {
                Some(counted) if counted.first <= reference.first => counted.count,
                _ => 0,
            };
            if copied != (count == 1) {
                self.reports.push(RefcountReport {
                    finding: RefcountFault::Copied,
                    cluster: HostCluster::new(reference.first),
                    clusters: 1,
                    references: u64::from(copied),
                    on_disk: count,
                    role: Some(reference.role),
                });
            }
        }
    }
}

fn leak(first: u64, end: u64, count: u64) -> RefcountReport {
    RefcountReport {
        finding: RefcountFault::Leak,
        cluster: HostCluster::new(first),
        clusters: end - first,
        references: 0,
        on_disk: count,
        role: None,
    }
}
