//! Counts that are out of date, as lazy refcounts leave them when a writer is killed: allocated clusters without a
//! count, and freed clusters with one. Tables are always correct, and so are the counts of the header and of refcount
//! structures, because a writer updates these first.

use crate::disk::clusters::HostCluster;
use crate::images::content::entropy::Entropy;
use crate::images::files::Deviation;
use crate::images::qcow2::builder::Builder;
use crate::images::qcow2::encoding::Sizes;
use crate::images::qcow2::placement::Placement;
use crate::images::qcow2::placement::clusters::{ClusterRun, Clusters};
use crate::images::qcow2::tables::ClusterMapping;

/// The counts of one image that are out of date.
#[derive(Debug, Default)]
pub struct OutOfDate {
    /// The clusters with their counts on disk.
    clusters: Clusters,
    /// Sorted by cluster.
    deviations: Vec<Deviation>,
}

/// The largest number of clusters that the build tries.
const MAX_TRIES: u64 = 8;

impl OutOfDate {
    pub(in crate::images::qcow2) fn clear(&mut self) {
        self.deviations.clear();
    }

    /// Returns the counts to write, if they differ from the placement.
    pub fn runs(&self) -> Option<&[ClusterRun]> {
        (!self.deviations.is_empty()).then(|| self.clusters.runs())
    }

    pub(in crate::images::qcow2) fn deviations(&self) -> &[Deviation] {
        &self.deviations
    }

    fn get_mut(&mut self, cluster: u64) -> Option<&mut Deviation> {
        let at = self.deviations.binary_search_by_key(&cluster, |one| one.cluster.get());
        at.ok().map(|at| &mut self.deviations[at])
    }

    fn add(&mut self, cluster: u64, references: u64, on_disk: u64) {
        let at = self.deviations.partition_point(|one| one.cluster.get() < cluster);
        let cluster = HostCluster::new(cluster);
        self.deviations.insert(at, Deviation { cluster, references, on_disk, flags: 0 });
    }
}

impl Builder {
    /// Chooses clusters of the program, and leaves their counts out of date.
    pub fn leave_out_of_date(&self, placement: &Placement, out_of_date: &mut OutOfDate) {
        let style = self.plan.style.unwrap_or_default();
        let mut entropy = Entropy::new(style.entropy().next_u64() ^ self.plan.rng_seed);
        out_of_date.clusters.copy_from(&placement.clusters);
        let tries = 2 + entropy.below(MAX_TRIES - 1);
        let runs = self.placement.clusters.runs();
        for _ in 0..tries {
            let run = runs[entropy.below(runs.len() as u64) as usize];
            let cluster = run.first + entropy.below(run.end - run.first);
            let freed = entropy.one_in(2);
            // In most cases the cluster after the run is free, because it once belonged to the run.
            if freed && self.counts_free(run.end, placement, out_of_date) {
                continue;
            }
            // The header is allocated first, and never freed.
            if cluster == 0 || out_of_date.get_mut(cluster).is_some() {
                continue;
            }
            if freed && run.references < self.plan.geometry.max_refcount() {
                out_of_date.clusters.add_reference(cluster);
                out_of_date.add(cluster, run.references, run.references + 1);
            } else {
                out_of_date.clusters.drop_reference(cluster);
                out_of_date.add(cluster, run.references, run.references - 1);
            }
        }
        if !out_of_date.deviations.is_empty() {
            self.count_flags(out_of_date);
        }
    }

    /// Counts a free cluster inside the file, if a block exists for its count.
    fn counts_free(
        &self,
        cluster: u64,
        placement: &Placement,
        out_of_date: &mut OutOfDate,
    ) -> bool {
        let inside = cluster < placement.clusters.end();
        // The cluster before it has a block.
        let counted = !cluster.is_multiple_of(self.plan.geometry.refcounts_per_block());
        let free = out_of_date.clusters.is_free(cluster, 1);
        if inside && counted && free && placement.clusters.is_free(cluster, 1) {
            out_of_date.clusters.allocate(cluster, 1);
            out_of_date.add(cluster, 0, 1);
            return true;
        }
        false
    }

    /// Records the entries whose COPIED flag, which follows the references, disagrees with the count.
    fn count_flags(&self, out_of_date: &mut OutOfDate) {
        let mut note = |cluster: u64| {
            if let Some(deviation) = out_of_date.get_mut(cluster) {
                deviation.flags +=
                    u64::from((deviation.references == 1) != (deviation.on_disk == 1));
            }
        };
        for (_, table) in self.active.tables() {
            note(self.tables.host(*table).get());
            let entries = self.tables.pages(*table).flat_map(|(_, page)| page);
            for entry in entries.filter(|entry| !matches!(entry, ClusterMapping::Compressed(_))) {
                self.referenced(*entry).for_each(&mut note);
            }
        }
    }
}
