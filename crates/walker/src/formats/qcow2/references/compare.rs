//! Adds references up to counts, and compares these with the counts on disk.

use crate::disk::clusters::HostCluster;
use crate::formats::error::MapError;

use super::clusters::{ClusterCounts, CountedRun, Reference};
use super::report::{RefcountFault, RefcountReport};

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
