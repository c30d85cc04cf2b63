//! The references of an L1 table to clusters: of the active one, or of that of a snapshot.

use std::ops::{ControlFlow, Range};

use qcowfuzz::disk::clusters::HostCluster;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::formats::qcow2::constants::COPIED;
use qcowfuzz::formats::qcow2::entry::{ClusterKind, L1Entry, L2Entry};
use qcowfuzz::formats::qcow2::table::{HostTable, TableEntry};

use super::tables::WrittenTables;
use crate::WriteError;

/// The bytes of a table that are read at once.
const ENTRIES_PIECE_BYTES: usize = 4096;

/// The clusters to which an L1 table refers, directly or by its L2 tables: each cluster with the number of its
/// references, sorted.
#[derive(Debug, Default)]
pub(super) struct ClusterReferences(Vec<(u64, u64)>);

impl ClusterReferences {
    /// Returns the number of references to a cluster.
    pub(super) fn to(&self, cluster: HostCluster) -> u64 {
        let found = self.0.binary_search_by_key(&cluster.get(), |(cluster, _)| *cluster);
        found.ok().and_then(|at| self.0.get(at)).map_or(0, |(_, references)| *references)
    }
}

impl WrittenTables<'_> {
    /// Returns the references of an L1 table and of its L2 tables.
    pub(super) fn references(&self, l1: HostTable) -> Result<ClusterReferences, WriteError> {
        let mut clusters = Vec::new();
        for entry in self.entries(l1)? {
            let Some(table) = L1Entry(entry.word).table() else { continue };
            clusters.push(self.cluster_size().host_cluster(table).get());
            for entry in self.entries(HostTable::l2(self.geometry(), table))? {
                clusters.extend(self.clusters_of(entry.word)?);
            }
        }
        clusters.sort_unstable();
        let groups = clusters.chunk_by(|one, other| one == other);
        let counted = groups.filter_map(|group| Some((*group.first()?, group.len() as u64)));
        Ok(ClusterReferences(counted.collect()))
    }

    /// Raises the count of each cluster by the number of its references.
    pub(super) fn raise(&mut self, references: &ClusterReferences) -> Result<(), WriteError> {
        let most = self.max_count();
        for (cluster, more) in &references.0 {
            if self.count(HostCluster::new(*cluster))?.saturating_add(*more) > most {
                return Err(WriteError::Unsupported(
                    "more references to a cluster than its refcount holds",
                ));
            }
        }
        for (cluster, more) in &references.0 {
            let cluster = HostCluster::new(*cluster);
            let count = self.count(cluster)?;
            self.set_count(cluster, count.saturating_add(*more))?;
        }
        Ok(())
    }

    /// Lowers the count of each cluster by the number of its references. The caller has removed these from the file.
    pub(super) fn lower(&mut self, references: &ClusterReferences) -> Result<(), WriteError> {
        self.flush()?;
        for (cluster, fewer) in &references.0 {
            let cluster = HostCluster::new(*cluster);
            let count = self.count(cluster)?;
            self.set_count(cluster, count.saturating_sub(*fewer))?;
        }
        Ok(())
    }

    /// Removes the flag COPIED from the entries of the L2 tables of an L1 table. If that is the active one, removes it
    /// from its entries, too.
    pub(super) fn clear_copied(&self, l1: HostTable, is_active: bool) -> Result<(), WriteError> {
        let cleared = |entry: TableEntry| match entry.word & COPIED {
            0 => Ok(()),
            _ => self.set_entry(entry.at, entry.word & !COPIED),
        };
        for entry in self.entries(l1)? {
            if let Some(table) = L1Entry(entry.word).table() {
                let entries = self.entries(HostTable::l2(self.geometry(), table))?;
                entries.into_iter().try_for_each(cleared)?;
            }
            if is_active {
                cleared(entry)?;
            }
        }
        Ok(())
    }

    /// Sets the flag COPIED in each active entry whose cluster will have a count of 1 without the references in
    /// `references`.
    pub(super) fn set_copied(&self, references: &ClusterReferences) -> Result<(), WriteError> {
        let will_be_copied = |host: HostOffset| -> Result<bool, WriteError> {
            let cluster = self.cluster_size().host_cluster(host);
            let fewer = references.to(cluster);
            Ok(fewer > 0 && self.count(cluster)?.saturating_sub(fewer) == 1)
        };
        for entry in self.entries(HostTable::active_l1(&self.header))? {
            let Some(table) = L1Entry(entry.word).table() else { continue };
            if will_be_copied(table)? {
                self.set_entry(entry.at, entry.word | COPIED)?;
            }
            for entry in self.entries(HostTable::l2(self.geometry(), table))? {
                let (ClusterKind::Normal(host) | ClusterKind::ZeroAllocated(host)) =
                    self.kind(entry.word)?
                else {
                    continue;
                };
                if !L2Entry(entry.word).copied() && will_be_copied(host)? {
                    self.set_entry(entry.at, entry.word | COPIED)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the clusters of the image that an L2 entry names. A data file has none.
    pub(super) fn clusters_of(&self, entry: u64) -> Result<Range<u64>, WriteError> {
        if self.data_file().is_some() {
            return Ok(0..0);
        }
        let (start, length) = match self.kind(entry)? {
            ClusterKind::Normal(host) | ClusterKind::ZeroAllocated(host) => (host, 1),
            ClusterKind::Compressed(run) => (run.offset, run.length_bytes()),
            _ => return Ok(0..0),
        };
        let last = start + length.saturating_sub(1);
        let cluster_size = self.cluster_size();
        let (first, last) = (cluster_size.host_cluster(start), cluster_size.host_cluster(last));
        Ok(first.get()..last.get().saturating_add(1))
    }

    /// Returns the entries of a table that are not zero.
    pub(super) fn entries(&self, table: HostTable) -> Result<Vec<TableEntry>, WriteError> {
        let mut entries = Vec::new();
        // The closure never stops the iteration.
        let _ = table.each_entry(self.file, &mut [0; ENTRIES_PIECE_BYTES], |entry| {
            entries.push(entry);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(entries)
    }
}
