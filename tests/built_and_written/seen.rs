//! The disks that our walker sees in an image, cluster by cluster, and the clusters of the file that they use.

use std::fmt::Display;
use test_support::prelude::*;

use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::internal::harness::oracles::qcow2::recount::{Recount, Role};
use qcowfuzz::internal::harness::oracles::qcow2::refcounts;

/// The content of an image.
pub struct SeenImage {
    /// The active disk, and behind it those of the snapshots in the order of their table.
    disks: Vec<SeenDisk>,
    /// The number of host clusters that entries of L2 tables name, as the recount counts them.
    named: u64,
}

struct SeenDisk {
    size_bytes: u64,
    clusters: Vec<SeenCluster>,
}

/// A cluster of a disk.
#[derive(Clone, Copy)]
struct SeenCluster {
    /// A guest reads other bytes than zeros.
    is_data: bool,
    /// The cluster is unallocated and whole. A writer that frees whole clusters may keep a host cluster for one that
    /// the end of the disk cuts: QEMU does so under extended L2, where it frees no part of a cluster.
    is_free: bool,
    /// The host cluster that the entry names.
    host: Option<HostOffset>,
}

impl SeenImage {
    /// Reads the image of a chain, which has no other files.
    ///
    /// # Errors
    /// The fingerprint of a wrong refcount.
    pub fn of(chain: &Chain) -> Result<Self, String> {
        let mut recount = Recount::new();
        refcounts::check(&mut recount, chain.image(), &[], &mut Err)
            .map_err(|found| found.fingerprint())?;
        let occupied = recount.occupied();
        let data = occupied.iter().filter(|run| run.role == Some(Role::Data));
        let named = data.map(|run| run.end - run.first).sum();
        let header = Header::read(chain.image()).unwrap();
        let cluster_bytes = header.geometry.cluster_size.bytes();
        let mut walker = Walker::default();
        let mut disks = vec![SeenDisk::of(walker.open(chain).unwrap(), cluster_bytes)];
        for index in 0..header.snapshots {
            let snapshot = walker.open_snapshot(chain, index).unwrap();
            disks.push(SeenDisk::of(snapshot, cluster_bytes));
        }
        Ok(Self { disks, named })
    }

    /// Returns the number of snapshots.
    pub fn snapshots(&self) -> usize {
        self.disks.len() - 1
    }

    /// Returns the number of host clusters with data of some disk.
    pub fn data_clusters(&self) -> usize {
        self.hosts(|cluster| cluster.is_data)
    }

    /// Returns the number of host clusters that entries name, but none of a cluster on a disk.
    pub fn hidden_clusters(&self) -> u64 {
        self.named - self.hosts(|_| true) as u64
    }

    fn hosts(&self, is_counted: impl Fn(&SeenCluster) -> bool) -> usize {
        let clusters = self.disks.iter().flat_map(|disk| &disk.clusters);
        let hosts = clusters.filter(|cluster| is_counted(cluster)).filter_map(|it| it.host);
        hosts.collect::<BTreeSet<_>>().len()
    }

    /// Compares this image, which the build has made, with one that a writer has changed.
    ///
    /// # Errors
    /// The first disagreement.
    pub fn compare(&self, written: &Self) -> Result<(), String> {
        same("snapshots", self.snapshots(), written.snapshots())?;
        for (number, (ours, theirs)) in self.disks.iter().zip(&written.disks).enumerate() {
            let compared = ours.compare(theirs);
            compared.map_err(|found| format!("{found} (disk {number}, 0 is the active one)"))?;
        }
        same("clusters of data", self.data_clusters(), written.data_clusters())
    }
}

impl SeenDisk {
    fn of(mut disk: Box<dyn OpenDisk + '_>, cluster_bytes: u64) -> Self {
        let size_bytes = disk.virtual_size_bytes();
        let mut extents: Vec<Extent> = Vec::new();
        let mut keep = |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        };
        disk.map(Window::ALL, &mut keep).unwrap();
        let mut clusters = Vec::new();
        for extent in extents {
            assert!(
                extent.start.get().is_multiple_of(cluster_bytes),
                "{extent}: parts of clusters"
            );
            for inside in (0..extent.length_bytes).step_by(cluster_bytes as usize) {
                let mapping = extent.mapping.advanced(inside).unwrap();
                let guest = extent.start.checked_add(inside).unwrap();
                let length = cluster_bytes.min(size_bytes - guest.get());
                let mut has_bytes = || {
                    let mut bytes = vec![0; length as usize];
                    disk.read(guest, &mut bytes).unwrap();
                    bytes.iter().any(|byte| *byte != 0)
                };
                clusters.push(SeenCluster {
                    // A writer may store zeros.
                    is_data: mapping.data && has_bytes(),
                    is_free: !mapping.present && length == cluster_bytes,
                    host: mapping.offset,
                });
            }
        }
        Self { size_bytes, clusters }
    }

    fn compare(&self, written: &Self) -> Result<(), String> {
        same("size", self.size_bytes, written.size_bytes)?;
        for (number, (ours, theirs)) in self.clusters.iter().zip(&written.clusters).enumerate() {
            let name = |cluster: &SeenCluster| if cluster.is_data { "data" } else { "zeros" };
            same("guest", name(ours), name(theirs))
                .map_err(|found| format!("{found} in cluster {number}"))?;
            if ours.is_free && theirs.host.is_some() {
                return Err(format!(
                    "free: built without a host cluster, cluster {number} has one"
                ));
            }
        }
        Ok(())
    }
}

/// Requires that both images have the same value.
fn same<T: PartialEq + Display>(what: &str, built: T, written: T) -> Result<(), String> {
    match built == written {
        true => Ok(()),
        false => Err(format!("{what}: built {built}, written {written}")),
    }
}
