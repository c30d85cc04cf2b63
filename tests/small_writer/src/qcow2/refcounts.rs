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

    /// Allocates clusters at the end of the file. Returns the offset of the first.
    pub(super) fn allocate(&mut self, clusters: u64) -> Result<HostOffset, WriteError> {
        let first = self.append(clusters)?;
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
        if count == 1 && self.uses_freed() {
            self.freed.push(cluster);
        }
        Ok(())
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
        let place = self.place(block, cluster);
        let width = self.width_bits();
        let mut bytes = [0; 8];
        let length = width.div_ceil(8) as usize;
        self.file.read_at(place.at, &mut bytes[8 - length..])?;
        let number = u64::from_be_bytes(bytes);
        Ok(if width < 8 { number >> place.shift & ((1 << width) - 1) } else { number })
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

    /// Appends the refcount block for a cluster, counts it, and gives it to its entry of the table. The block may count
    /// itself.
    fn add_block(&mut self, cluster: HostCluster) -> Result<HostOffset, WriteError> {
        let block = self.append(1)?;
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
        let new = self.append(clusters)?;
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
