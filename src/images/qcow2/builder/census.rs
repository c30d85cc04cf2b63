//! Measurements of a builder: its progress between two operations of a program, and the vitals of an image.

use crate::disk::observer::{Event, Observer, Rare, State, Vital};
use crate::images::qcow2::encoding::Sizes;
use crate::images::qcow2::placement::Tally;
use crate::images::qcow2::placement::clusters::Clusters;
use crate::images::qcow2::plan::HeaderFlags;
use crate::images::qcow2::serialise::BuildScratch;

use super::Builder;

/// The progress of a builder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    tally: Tally,
    tables: usize,
    copied: usize,
}

impl Census {
    /// Reports the events since `before`.
    pub fn report(&self, before: &Self, observer: &dyn Observer) {
        if self.copied > before.copied {
            observer.event(State::Build, Event::SharedTable);
            observer.rare(Rare::TableCopied);
        }
        if self.tables > before.tables {
            observer.event(State::Build, Event::Table);
        }
        if self == before {
            observer.event(State::Build, Event::InPlace);
        }
        self.tally.report(&before.tally, State::Build, observer);
    }
}

impl Builder {
    /// Returns the progress since [`Builder::begin`].
    #[inline]
    pub fn census(&self) -> Census {
        Census {
            tally: self.placement.tally(),
            tables: self.tables.count(),
            copied: self.tables.copied(),
        }
    }

    /// Reports the vitals of the image of the last build with `scratch`. It must be this builder's image.
    pub fn report_vitals(&self, scratch: &BuildScratch, observer: &dyn Observer) {
        if !observer.observes() {
            return;
        }
        let BuildScratch { placement, refcounts, out_of_date, .. } = scratch;
        let clusters = &placement.clusters;
        let deviations = out_of_date.deviations();
        let leaked = deviations.iter().filter(|one| one.on_disk > one.references).count();
        let uncounted = deviations.iter().filter(|one| one.on_disk < one.references).count();
        for (vital, value) in [
            (Vital::Tables, self.tables.count() as u64),
            (Vital::Blocks, refcounts.block_count() as u64),
            (Vital::TableClusters, refcounts.table().1),
            (Vital::Snapshots, self.snapshot_count() as u64),
            (Vital::Bitmaps, self.bitmap_count() as u64),
            (Vital::Leaked, leaked as u64),
            (Vital::Uncounted, uncounted as u64),
        ] {
            observer.vital(vital, value);
        }
        report_clusters(clusters, observer);
    }

    /// Reports the vitals and the rare events of an image in another format than qcow2.
    pub fn report_file(&self, observer: &dyn Observer) {
        if observer.observes() {
            report_clusters(&self.placement.clusters, observer);
            self.report_disk(observer);
        }
    }

    /// Reports the rare events of the disk that a guest sees.
    fn report_disk(&self, observer: &dyn Observer) {
        let size = self.plan.size_bytes;
        for (rare, fires) in [
            (Rare::EmptyDisk, size == 0),
            (Rare::OddTail, size & self.plan.geometry.cluster_size.mask() != 0),
            (Rare::HugeDisk, size >= 1 << 60),
        ] {
            if fires {
                observer.rare(rare);
            }
        }
    }

    /// Reports the rare events in an image that was built with `scratch`.
    pub fn report_rare(&self, scratch: &BuildScratch, observer: &dyn Observer) {
        if !observer.observes() {
            return;
        }
        let BuildScratch { placement, out_of_date, .. } = scratch;
        let clusters = &placement.clusters;
        let deviations = out_of_date.deviations().len();
        let size = self.plan.size_bytes;
        let sizes = self.snapshots.live().iter().map(|snapshot| snapshot.size_bytes);
        let most = self.plan.geometry.max_refcount();
        let payload = self.payload_end.map(|end| end.cluster);
        for (rare, fires) in [
            (Rare::OutOfDate, deviations > 0),
            (Rare::DataFile, self.plan.geometry.data_file),
            (Rare::SnapshotSize, sizes.into_iter().any(|other| other != size)),
            (
                Rare::CountAtMaximum,
                most > 1 && clusters.runs().iter().any(|run| run.references == most),
            ),
            (Rare::CompressedAtEnd, payload.is_some_and(|last| last + 1 == clusters.end())),
        ] {
            if fires {
                observer.rare(rare);
            }
        }
        self.report_disk(observer);
        debug_assert!(deviations == 0 || self.plan.has(HeaderFlags::OUT_OF_DATE));
    }
}

/// Reports the vitals of the clusters of a file.
fn report_clusters(clusters: &Clusters, observer: &dyn Observer) {
    let pairs = clusters.runs().windows(2);
    let holes = pairs.filter(|pair| pair[0].end < pair[1].first).count();
    observer.vital(Vital::Holes, holes as u64);
    observer.vital(Vital::FileClusters, clusters.end());
}
