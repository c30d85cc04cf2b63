//! Reference counts: each change goes to the file at once.

use qcowfuzz::disk::clusters::HostCluster;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::qcow2::constants::{MAX_REFCOUNT_TABLE_BYTES, header};
use qcowfuzz::formats::qcow2::entry;
use qcowfuzz::formats::qcow2::table::HostTable;

use super::tables::WrittenTables;
use crate::{WriteError, WriterFault};

/// The offset of the header's field `refcount_table_offset`, with `refcount_table_clusters` behind it.
const TABLE_OFFSET_AT: HostOffset = HostOffset::new(header::REFCOUNT_TABLE_OFFSET.at as u64);
/// The clusters behind the end of the file for which a longer table has room.
const SPARE_CLUSTERS: u64 = 64;
/// The most counts of the first refcount block among which the writer searches for free clusters.
const MOST_SEARCHED: u64 = 256;

/// Free clusters before the end, which new clusters take first.
#[derive(Debug, Default)]
pub(super) struct FreeClusters {
    pub(super) clusters: Vec<HostCluster>,
    /// The clusters that were free when the image was opened have been searched for.
    has_searched: bool,
}

/// The place of a count in a refcount block.
struct CountPlace {
    at: HostOffset,
    /// The first bit in that byte. Wider counts begin at 0.
    shift: u32,
}

impl WrittenTables<'_> {
    /// Returns the number of counts in a refcount block.
    fn per_block(&self) -> u64 {
        (self.cluster_size().bytes() * 8) >> self.geometry().refcount_order
    }

    fn table_entries(&self) -> u64 {
        let clusters = u64::from(self.header.refcount_table_clusters);
        self.cluster_size().saturating_bytes(clusters) / 8
    }

    /// Reserves clusters of zeros, and counts them. Returns the offset of the first.
    pub(super) fn allocate(&mut self, clusters: u64) -> Result<HostOffset, WriteError> {
        let first = self.reserve(clusters)?;
        if !self.has(WriterFault::CountNotRaised) {
            self.count_run(first, clusters)?;
        }
        Ok(first)
    }

    /// Gives each cluster of a run the count 1.
    pub(super) fn count_run(&mut self, first: HostOffset, clusters: u64) -> Result<(), WriteError> {
        let first = self.cluster_size().host_cluster(first).get();
        for cluster in first..first.saturating_add(clusters) {
            self.set_count(HostCluster::new(cluster), 1)?;
        }
        Ok(())
    }

    /// Lowers the count of each cluster of a run. The caller has removed the references from the file. The flush keeps
    /// a power cut from leaving lower counts beside the old references.
    pub(super) fn free_run(&mut self, first: HostCluster, clusters: u64) -> Result<(), WriteError> {
        if !self.has(WriterFault::FreedEarly) {
            self.flush()?;
        }
        for cluster in first.get()..first.get().saturating_add(clusters) {
            self.free(HostCluster::new(cluster))?;
        }
        Ok(())
    }

    /// Removes a reference to a cluster.
    fn free(&mut self, cluster: HostCluster) -> Result<(), WriteError> {
        if self.has(WriterFault::CountNotLowered) {
            return Ok(());
        }
        let count = self.count(cluster)?;
        self.lower_from(cluster, count)
    }

    /// Gives a cluster the count below `count`.
    pub(super) fn lower_from(
        &mut self,
        cluster: HostCluster,
        count: u64,
    ) -> Result<(), WriteError> {
        self.set_count(cluster, count.saturating_sub(1))?;
        if count == 1 {
            self.free.clusters.push(cluster);
        }
        Ok(())
    }

    /// Takes a free cluster before the end: one that was freed, or one that was free when the image was opened. No
    /// entry in the file names it, not even after a power cut: a cluster is freed behind a flush.
    pub(super) fn take_free(&mut self) -> Result<Option<HostCluster>, WriteError> {
        if self.has(WriterFault::FreedNotUsed) {
            return Ok(None);
        }
        // Later, a cluster without a count may be one that is about to get it.
        if !std::mem::replace(&mut self.free.has_searched, true) {
            let mut free = self.free_in_first_block()?;
            self.free.clusters.retain(|cluster| !free.contains(cluster));
            free.append(&mut self.free.clusters);
            self.free.clusters = free;
        }
        Ok(self.free.clusters.pop())
    }

    /// Returns the clusters before the end that the first refcount block counts as free, the last one first.
    fn free_in_first_block(&self) -> Result<Vec<HostCluster>, WriteError> {
        let table = self.entry(self.header.refcount_table_offset)?;
        let Some(block) = entry::refcount_block_offset(table) else { return Ok(Vec::new()) };
        let clusters = self.cluster_size().host_cluster(self.end()).get();
        let clusters = clusters.min(self.per_block()).min(MOST_SEARCHED);
        let mut counts = vec![0; (clusters as usize * self.width_bits() as usize).div_ceil(8)];
        self.file.read_at(block, &mut counts)?;
        let is_free = |cluster: &HostCluster| {
            let CountPlace { at, shift } = self.place(HostOffset::ZERO, *cluster);
            let bytes = counts.get(at.get() as usize..).unwrap_or_default();
            self.count_in(bytes, shift) == 0
        };
        Ok((1..clusters).rev().map(HostCluster::new).filter(is_free).collect())
    }

    /// Returns the place of the table's entry for a cluster, if the table is long enough.
    fn table_slot(&self, cluster: HostCluster) -> Option<HostOffset> {
        let index = cluster.get() / self.per_block();
        let is_there = index < self.table_entries();
        is_there.then(|| self.header.refcount_table_offset + index.saturating_mul(8))
    }

    /// Returns the end of the last cluster that has a count.
    pub(super) fn end_of_counted(&self) -> Result<HostOffset, WriteError> {
        for slot in self.entries(HostTable::refcounts(&self.header))?.into_iter().rev() {
            let Some(block) = entry::refcount_block_offset(slot.word) else { continue };
            let length_bytes = self.cluster_size().bytes();
            let counts = HostTable { start: block, length_bytes, entry_bytes: 8 };
            let Some(last) = self.entries(counts)?.pop() else { continue };
            let per_word = u64::from(u64::BITS / self.width_bits());
            let before = slot.index.saturating_mul(self.per_block());
            let first = before.saturating_add(last.index.saturating_mul(per_word));
            for cluster in (first..first.saturating_add(per_word)).rev() {
                if self.count(HostCluster::new(cluster))? > 0 {
                    let end = self.cluster_size().saturating_bytes(cluster.saturating_add(1));
                    return Ok(HostOffset::new(end));
                }
            }
        }
        Ok(HostOffset::ZERO)
    }

    /// Returns the count of a cluster.
    pub(super) fn count(&self, cluster: HostCluster) -> Result<u64, WriteError> {
        let Some(slot) = self.table_slot(cluster) else { return Ok(0) };
        let Some(block) = entry::refcount_block_offset(self.entry(slot)?) else { return Ok(0) };
        let CountPlace { at, shift } = self.place(block, cluster);
        let mut bytes = [0; 8];
        let count = &mut bytes[..self.width_bits().div_ceil(8) as usize];
        self.file.read_at(at, count)?;
        Ok(self.count_in(count, shift))
    }

    /// Returns the count at the beginning of `bytes`, in a narrow one from the bit `shift` on.
    fn count_in(&self, bytes: &[u8], shift: u32) -> u64 {
        let width = self.width_bits();
        let bytes = bytes.iter().take(width.div_ceil(8) as usize);
        let number = bytes.fold(0, |number, byte| number << 8 | u64::from(*byte));
        if width < 8 { number >> shift & ((1 << width) - 1) } else { number }
    }

    /// Gives a cluster another count.
    pub(super) fn set_count(&mut self, cluster: HostCluster, count: u64) -> Result<(), WriteError> {
        if self.table_slot(cluster).is_none() {
            self.grow_table()?;
        }
        let slot = self.table_slot(cluster).ok_or(WriteError::TooLong)?;
        let block = match entry::refcount_block_offset(self.entry(slot)?) {
            Some(block) => block,
            None => self.add_block(cluster)?,
        };
        self.write_count(block, cluster, count)
    }

    /// Writes the count of a cluster to its block.
    fn write_count(
        &self,
        block: HostOffset,
        cluster: HostCluster,
        count: u64,
    ) -> Result<(), WriteError> {
        let CountPlace { at, shift } = self.place(block, cluster);
        let width = self.width_bits();
        if width >= 8 {
            return self.write(at, &count.to_be_bytes()[8 - width as usize / 8..]);
        }
        let mut byte = [0];
        self.file.read_at(at, &mut byte)?;
        let mask = ((1 << width) - 1) << shift;
        self.write(at, &[byte[0] & !mask | (count << shift) as u8 & mask])
    }

    /// Adds the refcount block for a cluster, counts it, and gives it to its entry of the table. The block may count
    /// itself.
    fn add_block(&mut self, cluster: HostCluster) -> Result<HostOffset, WriteError> {
        let block = self.reserve(1)?;
        self.end_file_behind(block, 1)?;
        let own = self.cluster_size().host_cluster(block);
        let counts_itself = own.get() / self.per_block() == cluster.get() / self.per_block();
        match counts_itself {
            _ if self.has(WriterFault::BlockNotCounted) => {}
            true => self.write_count(block, own, 1)?,
            false => self.set_count(own, 1)?,
        }
        // To count the block may have moved the table.
        let slot = self.table_slot(cluster).ok_or(WriteError::TooLong)?;
        self.set_reference(slot, block.get())?;
        Ok(block)
    }

    /// Returns the largest count.
    pub(super) fn max_count(&self) -> u64 {
        u64::MAX >> 64u32.saturating_sub(self.width_bits())
    }

    /// Returns the width of a count: 1 to 64 bits.
    fn width_bits(&self) -> u32 {
        1 << self.geometry().refcount_order
    }

    fn place(&self, block: HostOffset, cluster: HostCluster) -> CountPlace {
        let bit = (cluster.get() % self.per_block()) << self.geometry().refcount_order;
        CountPlace { at: block + bit / 8, shift: (bit % 8) as u32 }
    }

    /// Moves the refcount table to the end of the file, where it has room for all clusters and some more.
    /// QEMU opens no longer table than [`MAX_REFCOUNT_TABLE_BYTES`].
    fn grow_table(&mut self) -> Result<(), WriteError> {
        let cluster_size = self.cluster_size();
        let (old, old_entries) = (self.header.refcount_table_offset, self.table_entries());
        let old_clusters = u64::from(self.header.refcount_table_clusters);
        let last = cluster_size.host_cluster(self.end()).get().saturating_add(SPARE_CLUSTERS);
        let needed = (last / self.per_block()).saturating_add(2);
        // A quarter more, so that a long table rarely moves.
        let wanted = needed.saturating_add(needed / 4).min(MAX_REFCOUNT_TABLE_BYTES / 8);
        if wanted <= old_entries {
            return Err(WriteError::TooLong);
        }
        let clusters = cluster_size.clusters_for(wanted.saturating_mul(8));
        let new = self.reserve(clusters)?;
        self.copy_table((old, old_entries * 8), (new, clusters), |_| ())?;
        self.header.refcount_table_offset = new;
        self.header.refcount_table_clusters =
            u32::try_from(clusters).map_err(|_| WriteError::TooLong)?;
        // The new table counts its own clusters, before the header names it.
        self.count_run(new, clusters)?;
        if !self.has(WriterFault::TableNotStored) {
            // Both fields in one write: a power cut leaves the old values or the new ones, never a mix.
            let mut fields = [0; 12];
            fields[..8].copy_from_slice(&new.get().to_be_bytes());
            fields[8..].copy_from_slice(&self.header.refcount_table_clusters.to_be_bytes());
            self.flush()?;
            self.write(TABLE_OFFSET_AT, &fields)?;
        }
        self.free_run(cluster_size.host_cluster(old), old_clusters)
    }
}
