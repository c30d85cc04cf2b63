//! The tables of the small writer: it reads and writes each entry in the file, and keeps none.

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::harness::chain::ChainFile;

use super::fault::WriterFault;

pub const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
pub const COPIED: u64 = 1 << 63;
pub const COMPRESSED: u64 = 1 << 62;
pub const ZERO: u64 = 1;

/// The header and the end of the file.
pub struct Tables<'s> {
    file: &'s ChainFile,
    fault: Option<WriterFault>,
    pub version: u32,
    pub cluster_bits: u32,
    pub size: u64,
    pub has_backing: bool,
    pub l1_at: u64,
    pub l1_entries: u64,
    pub table_at: u64,
    pub table_entries: u64,
    pub refcount_order: u32,
    /// The first cluster behind the file.
    pub next: u64,
}

impl<'s> Tables<'s> {
    pub fn open(file: &'s ChainFile, fault: Option<WriterFault>) -> Result<Self, StorageError> {
        let mut head = [0; 104];
        file.read_at(HostOffset::ZERO, &mut head)?;
        let long = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().unwrap());
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (version, cluster_bits) = (word(4), word(20));
        Ok(Self {
            file,
            fault,
            version,
            cluster_bits,
            size: long(24) / 512 * 512,
            has_backing: long(8) != 0,
            l1_at: long(40),
            l1_entries: u64::from(word(36)),
            table_at: long(48),
            table_entries: (u64::from(word(56)) << cluster_bits) / 8,
            refcount_order: if version == 2 { 4 } else { word(96) },
            next: file.length_bytes().div_ceil(1 << cluster_bits),
        })
    }

    pub fn has(&self, fault: WriterFault) -> bool {
        self.fault == Some(fault)
    }

    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Takes clusters behind the file, without counting them.
    pub fn append(&mut self, count: u64) -> u64 {
        let first = self.next;
        self.next += count;
        first
    }

    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), StorageError> {
        self.file.read_at(HostOffset::new(at), into)
    }

    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), StorageError> {
        self.file.write_at(HostOffset::new(at), bytes)
    }

    /// Reads a number of 1 to 8 bytes.
    pub fn number(&self, at: u64, width: u64) -> Result<u64, StorageError> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes[8 - width as usize..])?;
        Ok(u64::from_be_bytes(bytes))
    }

    pub fn entry(&self, at: u64) -> Result<u64, StorageError> {
        self.number(at, 8)
    }

    pub fn set_entry(&self, at: u64, entry: u64) -> Result<(), StorageError> {
        self.write(at, &entry.to_be_bytes())
    }

    /// Returns the place of the L2 entry of a guest cluster, in a table that only the active disk uses.
    pub fn l2_slot(&mut self, cluster: u64) -> Result<u64, StorageError> {
        let per_table = self.cluster_bytes() / 8;
        let slot = self.l1_at + 8 * (cluster / per_table);
        let entry = self.entry(slot)?;
        let old = entry & OFFSET;
        let mut table = old;
        let is_shared = entry & COPIED == 0 && !self.has(WriterFault::SharedTable);
        if old == 0 || is_shared {
            let new = self.allocate(1)?;
            table = new << self.cluster_bits;
            let mut bytes = vec![0; self.cluster_bytes() as usize];
            if old != 0 {
                self.read(old, &mut bytes)?;
            }
            self.write(table, &bytes)?;
            self.set_entry(slot, table | COPIED)?;
            if old != 0 {
                self.free(old >> self.cluster_bits)?;
            }
        }
        Ok(table + 8 * (cluster % per_table))
    }

    /// Frees the host clusters of an L2 entry.
    pub fn free_entry(&mut self, entry: u64) -> Result<(), StorageError> {
        if entry & COMPRESSED == 0 {
            return match entry & OFFSET {
                0 => Ok(()),
                offset => self.free(offset >> self.cluster_bits),
            };
        }
        let offset_bits = 62 - (self.cluster_bits - 8);
        let start = entry & ((1 << offset_bits) - 1);
        let sectors = ((entry & !COPIED & !COMPRESSED) >> offset_bits) + 1;
        let last = start / 512 * 512 + sectors * 512 - 1;
        (start >> self.cluster_bits..=last >> self.cluster_bits)
            .try_for_each(|cluster| self.free(cluster))
    }

    /// Moves the L1 table to the end of the file, if a disk of this size needs a longer one.
    pub fn grow_l1(&mut self, size: u64) -> Result<(), StorageError> {
        let entries = size.div_ceil(self.cluster_bytes() * (self.cluster_bytes() / 8));
        let (old_at, old_entries) = (self.l1_at, self.l1_entries);
        if entries <= old_entries {
            return Ok(());
        }
        let clusters = (entries * 8).div_ceil(self.cluster_bytes());
        let first = self.allocate(clusters)?;
        let mut bytes = vec![0; (old_entries * 8) as usize];
        self.read(old_at, &mut bytes)?;
        bytes.resize((clusters * self.cluster_bytes()) as usize, 0);
        self.l1_at = first << self.cluster_bits;
        self.write(self.l1_at, &bytes)?;
        self.l1_entries = entries;
        self.set_entry(40, self.l1_at)?;
        self.write(36, &(entries as u32).to_be_bytes())?;
        let old = old_at >> self.cluster_bits;
        (old..old + (old_entries * 8).div_ceil(self.cluster_bytes()))
            .try_for_each(|cluster| self.free(cluster))
    }
}
