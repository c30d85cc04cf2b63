//! The counts on disk against the references: the refcount table and its blocks, the sums, and the COPIED flags of the
//! active disk's tables.

use std::collections::BTreeMap;
use std::iter;
use std::ops::{ControlFlow, Range};

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage, read_array};
use crate::formats::error::MapError;
use crate::formats::qcow2::check::cluster_counts::Role;
use crate::formats::qcow2::check::paged_counts::{Counted, Overlap};
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
        let (storage, kept) = (self.storage, self.kept_counts());
        if first >= kept {
            return Ok(());
        }
        let _ = table.each_piece(storage, piece, |skipped, bytes| {
            let skipped = first + ((skipped * 8) >> order);
            entry::each_refcount_run(bytes, order, |entry, entries, count| {
                let first = (skipped + entry).min(kept);
                self.clusters.count(first..(skipped + entry + entries).min(kept), count);
            });
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// Returns the cluster behind the last one whose count on disk is kept: no structure lies behind it.
    fn kept_counts(&self) -> u64 {
        self.geometry().cluster_size.clusters_for(self.references_end())
    }

    /// Returns the count on disk of a cluster, or `None` if it cannot be read.
    ///
    /// # Errors
    /// A read fails.
    pub(super) fn refcount(&mut self, cluster: u64) -> Result<Option<u64>, MapError> {
        let next = self.unreadable.partition_point(|clusters| clusters.end <= cluster);
        if self.unreadable.get(next).is_some_and(|clusters| clusters.contains(&cluster)) {
            return Ok(None);
        }
        if cluster < self.kept_counts() {
            return Ok(Some(self.clusters.at(cluster).on_disk));
        }
        self.refcount_on_disk(cluster).map(Some)
    }

    /// Reads the count of a cluster past the end of the file. Its block can be read.
    fn refcount_on_disk(&self, cluster: u64) -> Result<u64, MapError> {
        let (storage, geometry) = (self.storage, self.geometry());
        let table = HostTable::refcounts(self.header);
        let (index, entry) =
            (cluster / geometry.refcounts_per_block(), cluster % geometry.refcounts_per_block());
        if index >= table.length_bytes / table.entry_bytes {
            return Ok(0);
        }
        let word =
            u64::from_be_bytes(read_array(storage, table.start + index * table.entry_bytes)?);
        let Some(block) = entry::refcount_block_offset(word) else { return Ok(0) };
        let order = geometry.refcount_order;
        // The eight bytes that hold the count.
        let word = entry >> (6 - order);
        let bytes = read_array::<8>(storage, block + word * 8)?;
        let index = entry - (word << (6 - order));
        Ok(entry::refcount_at(&bytes, order, index as usize).unwrap_or(0))
    }
}

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Compares the references with the counts on disk. Returns the cluster behind the last one that has a reference or
    /// a count.
    ///
    /// # Errors
    /// The image is too large.
    pub(super) fn compare(&mut self, blocks: &[RefcountBlock]) -> Result<u64, MapError> {
        // If the count is wrong, two structures in one cluster are no finding of their own.
        let overlaps = self.clusters.take_overlaps();
        let mut faulty = self.blocks_with_other_structures(blocks);
        let max = self.geometry().max_refcount();
        // The first cluster holds the header.
        let mut end_cluster = 1;
        let clusters = std::mem::take(&mut self.clusters);
        clusters.each_run(|run, Counted { references, on_disk }| {
            let run = run.start..run.end.min(self.end_cluster);
            // A sum stays at the largest count that a block can store.
            let (over, references) = (references.saturating_sub(max), references.min(max));
            if over > 0 && !run.is_empty() {
                let Range { start, end } = run;
                self.findings.corruptions(over.saturating_mul(end - start), format_args!(
                    "clusters {start} to {end} have {over} references more than a refcount can count"
                ));
                keep_faulty(&mut faulty, run.clone(), &overlaps);
            }
            for readable in without(run, &self.unreadable) {
                end_cluster = end_cluster.max(readable.end);
                if on_disk != references {
                    self.check_findings(readable.end - readable.start)?;
                    keep_faulty(&mut faulty, readable.clone(), &overlaps);
                    for cluster in readable {
                        self.findings.miscount(cluster, on_disk, references);
                    }
                }
            }
            Ok::<_, MapError>(())
        })?;
        self.clusters = clusters;
        for clusters in &self.unreadable {
            let (start, end) = (clusters.start, clusters.end.min(self.end_cluster));
            if start < end {
                self.findings.unreadable(start..end);
            }
        }
        self.overlaps(&overlaps, faulty)?;
        Ok(end_cluster)
    }

    /// Reports the refcount blocks whose cluster has other references, and returns their clusters. QEMU counts the
    /// blocks in the order of the table, and looks at the sum after each.
    fn blocks_with_other_structures(&mut self, blocks: &[RefcountBlock]) -> Vec<Range<u64>> {
        let max = self.geometry().max_refcount();
        let mut sums = self.other_references(blocks);
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

    /// Returns the numbers of references to the clusters of refcount blocks, without those from the refcount table.
    fn other_references(&mut self, blocks: &[RefcountBlock]) -> BTreeMap<u64, u64> {
        let mut sums = BTreeMap::new();
        for RefcountBlock { cluster, is_counted, .. } in blocks {
            let sum = sums.entry(*cluster).or_insert_with(|| self.clusters.at(*cluster).references);
            *sum -= u64::from(*is_counted);
        }
        sums
    }

    /// Reports clusters with two structures whose count is right. QEMU does not notice them.
    fn overlaps(
        &mut self,
        overlaps: &[Overlap],
        mut faulty: Vec<Range<u64>>,
    ) -> Result<(), MapError> {
        faulty.sort_unstable_by_key(|clusters| clusters.start);
        faulty.dedup_by(|next, last| {
            let is_joined = next.start <= last.end;
            last.end = if is_joined { last.end.max(next.end) } else { last.end };
            is_joined
        });
        for Overlap { cluster, role } in overlaps {
            // A cluster past the end of the file has no finding.
            let end = cluster.saturating_add(1).min(self.end_cluster);
            for cluster in without(*cluster..end, &faulty).flatten() {
                self.check_findings(1)?;
                let role = name(*role);
                self.findings.corruption(format_args!(
                    "cluster {cluster} is {role} and another structure too"
                ));
            }
        }
        Ok(())
    }
}

/// Adds clusters with a finding to `faulty`, if one of them holds two structures.
fn keep_faulty(faulty: &mut Vec<Range<u64>>, clusters: Range<u64>, overlaps: &[Overlap]) {
    let next = overlaps.partition_point(|overlap| overlap.cluster < clusters.start);
    if overlaps.get(next).is_some_and(|overlap| overlap.cluster < clusters.end) {
        faulty.push(clusters);
    }
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
        if !self.compare_copied("L2", l2, copied)? {
            return Ok(());
        }
        let (storage, table) = (self.storage, HostTable::l2(self.geometry(), l2));
        let _ = table.each_entry(storage, piece, |TableEntry { word, .. }| {
            let entry = L2Entry(word);
            if let Some(host) = allocation(entry, self.geometry()) {
                self.compare_copied("data", host, entry.copied())?;
            }
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// Compares a flag with the count of its cluster. A cluster in a data file belongs to one guest cluster. Reports
    /// whether the count can be read.
    fn compare_copied(
        &mut self,
        role: &str,
        host: HostOffset,
        copied: bool,
    ) -> Result<bool, MapError> {
        let cluster = self.geometry().cluster_size.host_cluster(host);
        let in_data_file = role == "data" && self.geometry().data_file;
        let count = if in_data_file { Some(1) } else { self.refcount(cluster.get())? };
        let Some(count) = count else { return Ok(false) };
        if copied != (count == 1) {
            let flag = if copied { "set" } else { "not set" };
            self.findings.corruption(format_args!(
                "OFLAG_COPIED {role} cluster {cluster}: {flag}, refcount={count}"
            ));
        }
        Ok(true)
    }
}
