//! Refcounts of the small writer: it appends each new cluster to the file, and never uses a freed one again.

use qcowfuzz::disk::error::StorageError;

use super::clusters::Tables;
use super::fault::WriterFault;

impl Tables<'_> {
    /// Returns the number of counts in a refcount block.
    fn per_block(&self) -> u64 {
        (self.cluster_bytes() * 8) >> self.refcount_order
    }

    /// Allocates clusters at the end of the file. Returns the first.
    pub fn allocate(&mut self, count: u64) -> Result<u64, StorageError> {
        let first = self.append(count);
        if !self.has(WriterFault::CountNotRaised) {
            for cluster in first..first + count {
                self.set_refcount(cluster, 1)?;
            }
        }
        Ok(first)
    }

    /// Frees a reference to a cluster.
    pub fn free(&mut self, cluster: u64) -> Result<(), StorageError> {
        if self.has(WriterFault::CountNotLowered) {
            return Ok(());
        }
        let count = self.refcount(cluster)?;
        self.set_refcount(cluster, count.saturating_sub(1))
    }

    fn refcount(&self, cluster: u64) -> Result<u64, StorageError> {
        let index = cluster / self.per_block();
        if index >= self.table_entries {
            return Ok(0);
        }
        let block = self.entry(self.table_at + 8 * index)?;
        if block == 0 {
            return Ok(0);
        }
        let (at, shift, width) = self.place(block, cluster);
        let count = self.number(at, width.div_ceil(8))?;
        Ok(if width >= 8 { count } else { count >> shift & ((1 << width) - 1) })
    }

    fn set_refcount(&mut self, cluster: u64, count: u64) -> Result<(), StorageError> {
        let index = cluster / self.per_block();
        if index >= self.table_entries {
            self.grow_table()?;
        }
        let mut block = self.entry(self.table_at + 8 * index)?;
        if block == 0 {
            let new = self.append(1);
            block = new << self.cluster_bits;
            self.write(block, &vec![0; self.cluster_bytes() as usize])?;
            self.set_entry(self.table_at + 8 * index, block)?;
            if !self.has(WriterFault::BlockNotCounted) {
                // The block may count itself.
                self.set_refcount(new, 1)?;
            }
        }
        let (at, shift, width) = self.place(block, cluster);
        let length = width.div_ceil(8);
        let value = match width {
            8.. => count,
            _ => {
                let mask = ((1u64 << width) - 1) << shift;
                self.number(at, 1)? & !mask | count << shift
            }
        };
        self.write(at, &value.to_be_bytes()[8 - length as usize..])
    }

    /// Returns the byte of a count, its first bit there, and its width in bits.
    fn place(&self, block: u64, cluster: u64) -> (u64, u64, u64) {
        let width = 1 << self.refcount_order;
        let bit = cluster % self.per_block() * width;
        (block + bit / 8, bit % 8, width)
    }

    /// Moves the refcount table to the end of the file, where it has room for all clusters and some more.
    fn grow_table(&mut self) -> Result<(), StorageError> {
        let (old_at, old_entries) = (self.table_at, self.table_entries);
        let needed = (self.next + 64) / self.per_block() + 2;
        let clusters = (needed.max(old_entries + 1) * 8).div_ceil(self.cluster_bytes());
        let first = self.append(clusters);
        let mut bytes = vec![0; (old_entries * 8) as usize];
        self.read(old_at, &mut bytes)?;
        bytes.resize((clusters * self.cluster_bytes()) as usize, 0);
        self.write(first << self.cluster_bits, &bytes)?;
        (self.table_at, self.table_entries) = (first << self.cluster_bits, bytes.len() as u64 / 8);
        if !self.has(WriterFault::TableNotStored) {
            self.set_entry(48, self.table_at)?;
            self.write(56, &(clusters as u32).to_be_bytes())?;
        }
        for cluster in first..first + clusters {
            self.set_refcount(cluster, 1)?;
        }
        let old = old_at >> self.cluster_bits;
        (old..old + (old_entries * 8) / self.cluster_bytes())
            .try_for_each(|cluster| self.free(cluster))
    }
}
