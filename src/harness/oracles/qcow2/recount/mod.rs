//! The recount: refcounts computed from the bytes of an image alone. It reads every structure, records every
//! reference, and compares the counts with those on disk. It serves images in the loop and files of any size, because
//! its memory depends on the number of references and not on the file's size.
//!
//! The recount follows the references by itself, although the walker and the build do so too. It is there to find the
//! errors of both, so it must not share their way through the tables. It shares the reading of tables with the anatomy
//! and with the check of qcow2 images, which judge neither.

mod bitmaps;
mod counts;
mod references;

use std::ops::ControlFlow;

use crate::base::limits::MAX_RECOUNTED;
use crate::disk::clusters::HostCluster;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::check::cluster_counts::ClusterCounts;
use crate::formats::qcow2::head::Head;
use crate::formats::qcow2::table::HostTable;

pub use crate::formats::qcow2::check::cluster_counts::{
    Occupied, RefcountFault, RefcountReport, Role,
};

/// A recount of images. All buffers are reused.
#[derive(Debug)]
pub struct Recount {
    clusters: ClusterCounts,
    tables: [Vec<u8>; 2],
    head: Option<Head>,
    /// The bytes of the active L1 and L2 tables, without holes.
    active_table_bytes: u64,
    /// The bytes of all snapshots' L1 and L2 tables, without holes.
    snapshot_table_bytes: u64,
    /// The entries of bitmap tables that were read. Most of them reference nothing.
    bitmap_entries: usize,
    /// The file's end in clusters, rounded up.
    file_clusters: u64,
}

impl Recount {
    /// Creates an empty recount.
    pub fn new() -> Self {
        Self::bounded(MAX_RECOUNTED)
    }

    /// Creates a recount that keeps at most `bound` references, counts or reports. An image that needs more is an
    /// error.
    pub fn bounded(bound: usize) -> Self {
        Self {
            clusters: ClusterCounts::bounded(bound),
            tables: [vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]],
            head: None,
            active_table_bytes: 0,
            bitmap_entries: 0,
            snapshot_table_bytes: 0,
            file_clusters: 0,
        }
    }

    /// Recounts the image in `storage`, and returns the findings: overlaps, counts, and flags, each in the
    /// order of their clusters.
    ///
    /// # Errors
    /// The header, the snapshot table, the bitmap directory or an entry is malformed, or a read failed.
    pub fn recount<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
    ) -> Result<&[RefcountReport], MapError> {
        self.clusters.clear();
        (self.active_table_bytes, self.snapshot_table_bytes) = (0, 0);
        (self.bitmap_entries, self.file_clusters) = (0, 0);
        self.head = None;
        let head = Head::read(storage)?;
        let header = &head.header;
        let geometry = header.geometry;
        self.file_clusters = geometry.cluster_size.clusters_for(storage.length_bytes());
        self.reference(&geometry, HostOffset::ZERO, 1, Role::Header);
        self.l1(storage, &geometry, HostTable::active_l1(header), true)?;
        self.snapshots(storage, header)?;
        if let Some(extension) = &head.bitmaps {
            self.bitmaps(storage, header, extension)?;
        }
        self.counts(storage, header)?;
        self.head = Some(head);
        self.clusters.add_up()?;
        self.clusters.compare();
        Ok(self.clusters.reports())
    }

    /// Reads a table piece by piece, without its holes, and passes each piece on with its place in the table. While
    /// `take` works, other tables are read on another `level`.
    fn each_piece<S: Storage + ?Sized>(
        &mut self,
        storage: &S,
        table: HostTable,
        level: usize,
        mut take: impl FnMut(&mut Self, u64, &[u8]) -> Result<(), MapError>,
    ) -> Result<(), MapError> {
        let mut piece = std::mem::take(&mut self.tables[level]);
        let all = table.each_piece(storage, &mut piece, |skipped, bytes| {
            take(self, skipped, bytes).map(|()| ControlFlow::Continue(()))
        });
        self.tables[level] = piece;
        all.map(|_| ())
    }

    /// Returns the findings of the last recount.
    pub fn reports(&self) -> &[RefcountReport] {
        self.clusters.reports()
    }

    /// Returns the number of references to a cluster of the image that was recounted last.
    pub fn references(&self, cluster: HostCluster) -> u64 {
        self.clusters.computed(cluster.get())
    }

    /// Returns the head of the image that was recounted last.
    pub fn take_head(&mut self) -> Option<Head> {
        self.head.take()
    }

    /// Returns the bytes of the active L1 and L2 tables, without holes.
    pub fn active_table_bytes(&self) -> u64 {
        self.active_table_bytes
    }

    /// Returns the bytes of the L1 and L2 tables of all snapshots. A shared table counts for each snapshot.
    pub fn snapshot_table_bytes(&self) -> u64 {
        self.snapshot_table_bytes
    }

    /// Returns all clusters of the image of the last recount that have a reference or a count, in the order of the
    /// file.
    pub fn occupied(&self) -> Vec<Occupied> {
        self.clusters.occupied()
    }

    /// Returns the references to clusters past the end of the file. As in `qemu-img check`, up to one cluster may be
    /// missing; of compressed data, everything after the first cluster.
    pub fn past_end(&self) -> impl Iterator<Item = (Role, std::ops::Range<HostCluster>)> {
        let end = self.file_clusters;
        self.clusters.references().iter().filter_map(move |reference| {
            let past = match reference.role {
                Role::Compressed => reference.first >= end,
                _ => reference.end > end,
            };
            let clusters = HostCluster::new(reference.first)..HostCluster::new(reference.end);
            past.then_some((reference.role, clusters))
        })
    }
}

impl Default for Recount {
    fn default() -> Self {
        Self::new()
    }
}
