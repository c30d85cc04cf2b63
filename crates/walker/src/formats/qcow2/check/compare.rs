//! Compares the references with the counts on disk.

use std::collections::BTreeMap;
use std::iter;
use std::ops::Range;

use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::layout::Layout;
use crate::formats::qcow2::references::{ClusterCounts, RefcountFault};

use super::counts::RefcountBlock;
use super::findings::name;
use super::image_check::ImageCheck;

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Adds the references up, and compares them with the counts on disk. Returns the cluster behind the last one that
    /// has a reference or a count.
    ///
    /// # Errors
    /// The image is too large.
    pub(super) fn compare(&mut self, blocks: &[RefcountBlock]) -> Result<u64, MapError> {
        self.clusters.add_up()?;
        // If the count is wrong, two structures in one cluster are no finding of their own.
        let mut faulty = self.blocks_with_other_structures(blocks);
        let max = self.geometry().max_refcount();
        // The first cluster holds the header.
        let mut end_cluster = 1;
        for piece in self.clusters.occupied() {
            let (first, end) = (piece.first, piece.end.min(self.end_cluster));
            // A sum stays at the largest count that a block can store.
            let references = piece.references.min(max);
            let over = piece.references - references;
            if over > 0 && first < end {
                let times = over.saturating_mul(end - first);
                self.findings.corruptions(times, format_args!(
                    "clusters {first} to {end} have {over} references more than a refcount can count"
                ));
                faulty.push(first..end);
            }
            for readable in without(first..end, &self.unreadable) {
                end_cluster = end_cluster.max(readable.end);
                if piece.on_disk != references {
                    self.check_findings(readable.end - readable.start)?;
                    faulty.push(readable.clone());
                    for cluster in readable {
                        self.findings.miscount(cluster, piece.on_disk, references);
                    }
                }
            }
        }
        for clusters in &self.unreadable {
            let (start, end) = (clusters.start, clusters.end.min(self.end_cluster));
            if start < end {
                self.findings.unreadable(start..end);
            }
        }
        self.overlaps(faulty)?;
        Ok(end_cluster)
    }

    /// Reports the refcount blocks whose cluster has other references, and returns their clusters. QEMU counts the
    /// blocks in the order of the table, and looks at the sum after each.
    fn blocks_with_other_structures(&mut self, blocks: &[RefcountBlock]) -> Vec<Range<u64>> {
        let max = self.geometry().max_refcount();
        let mut sums = other_references(&self.clusters, blocks);
        let mut faulty = Vec::new();
        for RefcountBlock { cluster, index, is_counted } in blocks {
            let Some(sum) = sums.get_mut(cluster) else { continue };
            *sum += u64::from(*is_counted);
            let references = (*sum).min(max);
            if references != 1 {
                self.findings
                    .corruption(format_args!("refcount block {index} refcount={references}"));
                faulty.push(*cluster..*cluster + 1);
            }
        }
        faulty
    }

    /// Reports clusters with two structures whose count is right. QEMU does not notice them.
    fn overlaps(&mut self, mut faulty: Vec<Range<u64>>) -> Result<(), MapError> {
        faulty.sort_unstable_by_key(|clusters| clusters.start);
        faulty.dedup_by(|next, last| {
            let is_joined = next.start <= last.end;
            last.end = if is_joined { last.end.max(next.end) } else { last.end };
            is_joined
        });
        for report in self.clusters.reports() {
            let RefcountFault::Overlap = report.finding else { continue };
            let first = report.cluster.get();
            // Clusters are those of a file of less than 2^63 bytes.
            let end = first.saturating_add(report.clusters).min(self.end_cluster);
            self.check_findings(end.saturating_sub(first))?;
            for cluster in without(first..end, &faulty).flatten() {
                let role = report.role.map_or("unreferenced", name);
                self.findings.corruption(format_args!(
                    "cluster {cluster} is {role} and another structure too"
                ));
            }
        }
        Ok(())
    }
}

/// Returns the numbers of references to the clusters of refcount blocks, without those from the refcount table.
fn other_references(clusters: &ClusterCounts, blocks: &[RefcountBlock]) -> BTreeMap<u64, u64> {
    let mut sums = BTreeMap::new();
    for RefcountBlock { cluster, is_counted, .. } in blocks {
        let sum = sums.entry(*cluster).or_insert_with(|| clusters.computed(*cluster));
        *sum -= u64::from(*is_counted);
    }
    sums
}

/// Returns the parts of `range` outside of `gaps`, which are sorted and do not overlap.
fn without(range: Range<u64>, gaps: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> {
    let next = gaps.partition_point(|gap| gap.end <= range.start);
    let gaps = gaps.get(next..).unwrap_or_default().iter();
    let gaps = gaps.take_while(move |gap| gap.start < range.end).cloned();
    let mut from = range.start;
    gaps.chain(iter::once(range.end..range.end)).filter_map(move |gap| {
        let part = from..gap.start.min(range.end);
        from = from.max(gap.end);
        (!part.is_empty()).then_some(part)
    })
}
