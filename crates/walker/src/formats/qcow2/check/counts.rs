//! The counts on disk against the references: the refcount table and its blocks, the sums, and the COPIED flags of the
//! active disk's tables.

use std::collections::BTreeMap;
use std::iter;
use std::ops::{ControlFlow, Range};

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::check::cluster_counts::{ClusterCounts, RefcountFault, Role};
use crate::formats::qcow2::check::references::allocation;
use crate::formats::qcow2::check::{ImageCheck, name};
use crate::formats::qcow2::constants::MAX_FILE_BYTES;
use crate::formats::qcow2::entry;
use crate::formats::qcow2::entry::{L1Entry, L2Entry, Layout};
use crate::formats::qcow2::table::{HostTable, TableEntry};

/// Bits 0–8 of a refcount table entry.
const REFCOUNT_TABLE_RESERVED: u64 = 0x1FF;

/// A refcount block inside the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RefcountBlock {
    /// Its cluster.
    pub(super) cluster: u64,
    /// The index of the entry that names it.
    pub(super) index: u64,
    /// Its reference counts. Otherwise the block lies past the end of the file by a cluster.
    is_counted: bool,
}

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Checks the refcount table, and reads the counts on disk. Returns the blocks inside the file.
    ///
    /// The caller has added all other references, which decide where the file ends.
    ///
    /// # Errors
    /// A read fails, or the image is too large.
    pub(super) fn refcount_table(&mut self) -> Result<Vec<RefcountBlock>, MapError> {
        let (storage, table) = (self.storage, HostTable::refcounts(self.header));
        self.reference(table.start, table.length_bytes, Role::RefcountTable);
        let (mut blocks, mut piece) = (Vec::new(), vec![0; PIECE_BYTES]);
        let _ = table.each_entry(storage, &mut vec![0; PIECE_BYTES], |entry| {
            blocks.extend(self.refcount_entry(entry));
            if let Some(block) = entry::refcount_block_offset(entry.word) {
                self.refcount_block(block, entry.index, &mut piece)?;
            }
            self.check_bound()?;
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(blocks)
    }

    /// Checks an entry of the refcount table. Returns its block if it lies inside the file.
    fn refcount_entry(&mut self, entry: TableEntry) -> Option<RefcountBlock> {
        let TableEntry { index, word, .. } = entry;
        let mut fault = |what| {
            self.findings
                .corruption(format_args!("refcount table entry {index} ({word:#x}): {what}"));
            None
        };
        if word & REFCOUNT_TABLE_RESERVED != 0 {
            return fault("reserved bits are set");
        }
        let block = entry::refcount_block_offset(word)?;
        let cluster_size = self.header.geometry.cluster_size;
        if !cluster_size.is_aligned(block) {
            return fault("the refcount block is not on a cluster boundary");
        }
        let cluster = cluster_size.host_cluster(block).get();
        if cluster >= self.end_cluster {
            return fault("the refcount block lies past the end of the file");
        }
        let is_counted = self.reference(block, cluster_size.bytes(), Role::RefcountBlock);
        Some(RefcountBlock { cluster, index, is_counted })
    }

    /// Reads the counts of the block that entry `index` names. QEMU reads the counts of a block even if it does not
    /// count the reference to it.
    fn refcount_block(
        &mut self,
        block: HostOffset,
        index: u64,
        piece: &mut [u8],
    ) -> Result<(), MapError> {
        let geometry = self.geometry();
        let (order, clusters) = (geometry.refcount_order, geometry.refcounts_per_block());
        // The refcount table has 2^20 entries at most, and a block 2^24.
        let first = index * clusters;
        let table = HostTable::refcount_block(geometry, block);
        if self.is_unaligned(block) || table.range().end.get() > MAX_FILE_BYTES {
            self.unreadable.push(first..first + clusters);
            return Ok(());
        }
        let storage = self.storage;
        let _ = table.each_piece(storage, piece, |skipped, bytes| {
            let skipped = first + ((skipped * 8) >> order);
            entry::each_refcount_run(bytes, order, |entry, entries, count| {
                self.clusters.count(skipped + entry, entries, count);
            });
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// Returns the count on disk of a cluster, or `None` if it cannot be read.
    pub(super) fn refcount(&self, cluster: u64) -> Option<u64> {
        let next = self.unreadable.partition_point(|clusters| clusters.end <= cluster);
        let is_unreadable =
            self.unreadable.get(next).is_some_and(|clusters| clusters.contains(&cluster));
        (!is_unreadable).then(|| self.clusters.on_disk(cluster))
    }
}

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

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Compares each COPIED flag with the count on disk (QEMU, `check_oflag_copied`).
    ///
    /// # Errors
    /// A read fails, or the image is too large.
    pub(super) fn copied(&mut self) -> Result<(), MapError> {
        let (storage, table) = (self.storage, HostTable::active_l1(self.header));
        let mut l2_piece = vec![0; PIECE_BYTES];
        let _ = table.each_entry(
            storage,
            &mut vec![0; PIECE_BYTES],
            |TableEntry { word, .. }| {
                if let Some(l2) = L1Entry(word).table() {
                    self.copied_in(l2, L1Entry(word).copied(), &mut l2_piece)?;
                    self.check_bound()?;
                }
                Ok::<_, MapError>(ControlFlow::Continue(()))
            },
        )?;
        Ok(())
    }

    /// Checks the flag of an L2 table and the flags of its entries. If the count of the table cannot be read, QEMU
    /// does not look at its entries.
    fn copied_in(
        &mut self,
        l2: HostOffset,
        copied: bool,
        piece: &mut [u8],
    ) -> Result<(), MapError> {
        if !self.compare_copied("L2", l2, copied) {
            return Ok(());
        }
        let (storage, table) = (self.storage, HostTable::l2(self.geometry(), l2));
        let _ = table.each_entry(storage, piece, |TableEntry { word, .. }| {
            let entry = L2Entry(word);
            if let Some(host) = allocation(entry, self.geometry()) {
                self.compare_copied("data", host, entry.copied());
            }
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// Compares a flag with the count of its cluster. A cluster in a data file belongs to one guest cluster. Reports
    /// whether the count can be read.
    fn compare_copied(&mut self, role: &str, host: HostOffset, copied: bool) -> bool {
        let cluster = self.geometry().cluster_size.host_cluster(host);
        let in_data_file = role == "data" && self.geometry().data_file;
        let count = if in_data_file { Some(1) } else { self.refcount(cluster.get()) };
        let Some(count) = count else { return false };
        if copied != (count == 1) {
            let flag = if copied { "set" } else { "not set" };
            self.findings.corruption(format_args!(
                "OFLAG_COPIED {role} cluster {cluster}: {flag}, refcount={count}"
            ));
        }
        true
    }
}
