//! The new clusters of writes, and their content.
//!
//! # Arithmetic
//! As in the requests: no offset on a disk saturates.

use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::qcow2::entry::{ClusterKind, L1Entry};
use qcowfuzz::harness::files::chain::ChainFile;
use qcowfuzz::walkers::WalkScratch;

use super::SmallWriter;
use crate::{WriteError, WriterFault};

/// Buffers that a writer reuses from image to image.
#[derive(Debug, Default)]
pub struct WriterBuffers {
    pub(super) walk: WalkScratch,
    /// The content of a cluster.
    cluster: Vec<u8>,
}

/// A clone has buffers of its own.
impl Clone for WriterBuffers {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl WriterBuffers {
    /// Forgets the last compressed clusters that were read, as [`WalkScratch::forget`] does.
    pub fn forget(&mut self) {
        self.walk.forget();
    }
}

impl SmallWriter<'_> {
    /// Allocates a cluster of the image, with the content of the cluster of `guest` and some bytes changed.
    pub(super) fn cluster_in_image(
        &mut self,
        guest: u64,
        bytes: &[u8],
        kind: ClusterKind,
    ) -> Result<HostOffset, WriteError> {
        let cluster_size = self.tables.cluster_size();
        let inside = guest & cluster_size.mask();
        match kind {
            ClusterKind::Compressed(run) if self.tables.has(WriterFault::CompressedNeighbour) => {
                let content = self.changed_cluster(guest, bytes, kind)?;
                let new = cluster_size.host_offset(cluster_size.host_cluster(run.offset));
                self.tables.write(new, &content)?;
                self.buffers.cluster = content;
                Ok(new)
            }
            ClusterKind::Normal(old) => self.copied_cluster(guest, bytes, old),
            ClusterKind::ZeroPlain | ClusterKind::ZeroAllocated(_) => {
                self.new_cluster(inside, bytes)
            }
            ClusterKind::Unallocated if self.layers.len() == 1 => self.new_cluster(inside, bytes),
            _ => {
                let content = self.changed_cluster(guest, bytes, kind)?;
                let new = self.new_cluster(0, &content)?;
                self.buffers.cluster = content;
                Ok(new)
            }
        }
    }

    /// Writes a cluster that had no data before to the data file, where it lies at its guest offset. Old bytes may lie
    /// there. Behind the disk, the file need not have any.
    pub(super) fn cluster_in_data_file(
        &mut self,
        file: &ChainFile,
        guest: u64,
        bytes: &[u8],
        kind: ClusterKind,
    ) -> Result<HostOffset, WriteError> {
        let cluster_size = self.tables.cluster_size();
        let start = cluster_size.cluster_start(GuestOffset::new(guest)).get();
        let end = start.saturating_add(cluster_size.bytes()).min(self.virtual_size_bytes());
        let at_end = cluster_size.saturating_bytes(cluster_size.clusters_for(file.length_bytes()));
        let host = HostOffset::new(match self.tables.has(WriterFault::DataFileAtEnd) {
            true => at_end,
            false => start,
        });
        if kind == ClusterKind::Unallocated && self.layers.len() > 1 {
            let content = self.changed_cluster(guest, bytes, kind)?;
            let there = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
            self.tables.write_data(host, &content[..there.min(content.len())])?;
            self.buffers.cluster = content;
            return Ok(host);
        }
        let first = host + guest.saturating_sub(start);
        let behind = first + bytes.len() as u64;
        if !self.tables.has(WriterFault::DataFileNotCleared) {
            self.tables.clear_data(host..first)?;
            self.tables.clear_data(behind..host + end.saturating_sub(start))?;
        }
        self.tables.write_data(first, bytes)?;
        Ok(host)
    }

    /// Allocates a cluster with `bytes` from `inside` on. All other bytes are zeros: the cluster is a hole of the file.
    fn new_cluster(&mut self, inside: u64, bytes: &[u8]) -> Result<HostOffset, WriteError> {
        let new = match self.tables.has(WriterFault::CountedLate) || self.tables.counts_later {
            true => self.tables.reserve(1)?,
            false => self.tables.allocate(1)?,
        };
        self.tables.write_to_hole(new + inside, bytes)?;
        Ok(new)
    }

    /// Allocates a copy of the cluster at `old`, with the bytes from `guest` on changed. Holes stay holes.
    fn copied_cluster(
        &mut self,
        guest: u64,
        bytes: &[u8],
        old: HostOffset,
    ) -> Result<HostOffset, WriteError> {
        let cluster_size = self.tables.cluster_size();
        let inside = cluster_size.inside(GuestOffset::new(guest));
        let behind = inside.saturating_add(bytes.len() as u64);
        let new = self.new_cluster(inside, bytes)?;
        if !self.tables.has(WriterFault::HeadLost) {
            self.tables.copy(0..inside, old, new)?;
        }
        if !self.tables.has(WriterFault::TailLost) {
            let disk = self.virtual_size_bytes().saturating_sub(guest).saturating_add(inside);
            self.tables.copy(behind..cluster_size.bytes().min(disk), old, new)?;
        }
        Ok(new)
    }

    /// Returns the place of the byte at `guest` in the file with the data, if its cluster is there as it is.
    pub(super) fn data_cluster(&self, guest: u64) -> Result<Option<HostOffset>, WriteError> {
        let cluster_size = self.tables.cluster_size();
        let cluster = cluster_size.guest_cluster(GuestOffset::new(guest));
        let Some(table) = L1Entry(self.tables.entry(self.tables.l1_slot(cluster)?)?).table() else {
            return Ok(None);
        };
        let slot = table + cluster.get() % (cluster_size.bytes() / 8) * 8;
        Ok(match self.tables.kind(self.tables.entry(slot)?)? {
            ClusterKind::Normal(host) => Some(host + cluster_size.inside(GuestOffset::new(guest))),
            _ => None,
        })
    }

    /// Returns the content of the cluster of `guest` with some bytes changed. The caller returns the buffer
    /// to `buffers.cluster`.
    pub(super) fn changed_cluster(
        &mut self,
        guest: u64,
        bytes: &[u8],
        kind: ClusterKind,
    ) -> Result<Vec<u8>, WriteError> {
        let cluster_size = self.tables.cluster_size();
        let start = cluster_size.cluster_start(GuestOffset::new(guest));
        let mut content = std::mem::take(&mut self.buffers.cluster);
        content.resize(cluster_size.bytes_usize(), 0);
        let there = self.virtual_size_bytes().saturating_sub(start.get());
        let there = there.min(cluster_size.bytes()) as usize;
        let (old, behind) = content.split_at_mut(there);
        behind.fill(0);
        match kind {
            ClusterKind::Unallocated if self.tables.has(WriterFault::BelowLost) => old.fill(0),
            _ if bytes.len() >= there => {}
            _ => {
                self.read(start, old)?;
                self.disk = None;
            }
        }
        let (head, rest) =
            content.split_at_mut(cluster_size.inside(GuestOffset::new(guest)) as usize);
        let (changed, tail) = rest.split_at_mut(bytes.len().min(rest.len()));
        changed.copy_from_slice(&bytes[..changed.len()]);
        if self.tables.has(WriterFault::HeadLost) {
            head.fill(0);
        }
        if self.tables.has(WriterFault::TailLost) {
            tail.fill(0);
        }
        Ok(content)
    }
}
