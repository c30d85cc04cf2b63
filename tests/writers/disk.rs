//! A small writer of qcow2 images: the engine, and what it does for each request.

use std::ops::Range;

use qcowfuzz::disk::features::Feature;
use qcowfuzz::disk::offsets::GuestOffset;
use qcowfuzz::harness::Walker;
use qcowfuzz::harness::chain::Chain;
use qcowfuzz::harness::claims::Claims;
use qcowfuzz::harness::engine::{Answer, Engine, OpenDisk};

use super::clusters::{COMPRESSED, COPIED, OFFSET, Tables, ZERO};
use super::fault::WriterFault;

/// The writer, with one fault or none. It reads with our walker.
#[derive(Clone, Debug, Default)]
pub struct SmallWriter {
    pub fault: Option<WriterFault>,
}

pub struct SmallDisk<'s> {
    chain: &'s Chain,
    tables: Tables<'s>,
}

impl Engine for SmallWriter {
    type Disk<'s> = SmallDisk<'s>;

    fn name(&self) -> &str {
        "small writer"
    }

    fn claims(&self) -> Claims {
        Claims::QCOW2.no(&[
            Feature::ExtendedL2,
            Feature::DataFile,
            Feature::RawDataFile,
            Feature::Bitmaps,
            Feature::Dirty,
            Feature::OutOfDateRefcounts,
            Feature::Corrupt,
            Feature::UnknownBits,
        ])
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Answer<SmallDisk<'s>> {
        let tables = Tables::open(chain.image(), self.fault)?;
        Ok(SmallDisk { chain, tables })
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Answer<SmallDisk<'s>> {
        let disk = self.open(chain)?;
        if disk.tables.has(WriterFault::OpenWrites) && disk.tables.version == 3 {
            // The compatible bit of lazy refcounts.
            let bits = disk.tables.entry(80)?;
            disk.tables.set_entry(80, bits ^ 1)?;
        }
        Ok(disk)
    }
}

impl OpenDisk for SmallDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.tables.size
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        Walker::default().open(self.chain)?.read(guest, into)
    }

    fn write(&mut self, guest: GuestOffset, bytes: &[u8]) -> Answer {
        let end = guest.get() + bytes.len() as u64;
        let mut neighbours = None;
        for range in self.by_clusters(guest.get()..end) {
            let from = (range.start - guest.get()) as usize;
            let piece = &bytes[from..from + (range.end - range.start) as usize];
            let is_last = from > 0 && range.end == end;
            if self.tables.has(WriterFault::EndMissing) && is_last && piece.len() > 512 {
                self.write_piece(range.start, &piece[..piece.len() - 512], &mut neighbours)?;
            } else {
                self.write_piece(range.start, piece, &mut neighbours)?;
            }
        }
        Ok(())
    }

    fn write_zeroes(&mut self, guest: GuestOffset, length_bytes: u64) -> Answer {
        let mut range = guest.get()..guest.get() + length_bytes;
        if self.tables.has(WriterFault::ZerosPastEnd) {
            let cluster = self.tables.cluster_bytes();
            range = range.start / cluster * cluster..range.end.next_multiple_of(cluster);
            range.end = range.end.min(self.tables.size);
        }
        self.zero(range)
    }

    fn discard(&mut self, guest: GuestOffset, length_bytes: u64) -> Answer {
        if self.tables.has(WriterFault::DiscardIgnored) {
            return Ok(());
        }
        if self.tables.has(WriterFault::DiscardShowsBelow) {
            for range in self.by_clusters(guest.get()..guest.get() + length_bytes) {
                self.replace(range.start, 0)?;
            }
            return Ok(());
        }
        self.zero(guest.get()..guest.get() + length_bytes)
    }

    fn resize(&mut self, size_bytes: u64) -> Answer {
        let old = self.tables.size;
        self.tables.grow_l1(size_bytes)?;
        self.tables.size = size_bytes;
        if !self.tables.has(WriterFault::SizeNotStored) {
            self.tables.set_entry(24, size_bytes)?;
        }
        if !self.tables.has(WriterFault::GrownTail) {
            self.zero(old..size_bytes)?;
        }
        Ok(())
    }
}

impl SmallDisk<'_> {
    /// Returns the parts of a range in each cluster.
    fn by_clusters(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let cluster = self.tables.cluster_bytes();
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let end = (at / cluster * cluster + cluster).min(range.end);
            parts.push(at..end);
            at = end;
        }
        parts
    }

    /// Writes bytes inside one cluster. `neighbours` is the host cluster of the cluster before, which the same request
    /// has written.
    fn write_piece(&mut self, guest: u64, bytes: &[u8], neighbours: &mut Option<u64>) -> Answer {
        let bits = self.tables.cluster_bits;
        let inside = guest & (self.tables.cluster_bytes() - 1);
        if let (Some(before), true) = (*neighbours, self.tables.has(WriterFault::AssumedNeighbours))
        {
            *neighbours = Some(before + 1);
            return Ok(self.tables.write((before + 1) << bits, bytes)?);
        }
        let slot = self.tables.l2_slot(guest >> bits)?;
        let entry = self.tables.entry(slot)?;
        if self.is_owned(entry) {
            *neighbours = Some((entry & OFFSET) >> bits);
            return Ok(self.tables.write((entry & OFFSET) + inside, bytes)?);
        }
        let content = self.changed_cluster(guest, bytes, entry)?;
        let overwrites = self.tables.has(WriterFault::CompressedNeighbour);
        let new = match entry & COMPRESSED != 0 && overwrites {
            true => (entry & ((1 << (62 - (bits - 8))) - 1)) >> bits,
            false => self.tables.allocate(1)?,
        };
        self.tables.write(new << bits, &content)?;
        let copied = if self.tables.has(WriterFault::CopiedNotSet) { 0 } else { COPIED };
        self.tables.set_entry(slot, new << bits | copied)?;
        if new << bits != entry & OFFSET {
            self.tables.free_entry(entry)?;
        }
        *neighbours = Some(new);
        Ok(())
    }

    /// Reports whether an entry names a data cluster that nothing else uses.
    fn is_owned(&self, entry: u64) -> bool {
        let has_cluster = entry & COMPRESSED == 0 && entry & OFFSET != 0;
        let is_copied = entry & COPIED != 0 || self.tables.has(WriterFault::CopiedIgnored);
        let is_data = entry & ZERO == 0 || self.tables.has(WriterFault::ZeroFlagStays);
        has_cluster && is_copied && is_data
    }

    /// Returns the content of a cluster with some bytes changed.
    fn changed_cluster(&mut self, guest: u64, bytes: &[u8], entry: u64) -> Answer<Vec<u8>> {
        let cluster = self.tables.cluster_bytes();
        let start = guest / cluster * cluster;
        let mut content = vec![0; cluster as usize];
        let there = self.tables.size.saturating_sub(start).min(cluster) as usize;
        let is_below = entry & (COMPRESSED | OFFSET | ZERO) == 0;
        if !(is_below && self.tables.has(WriterFault::BelowLost)) {
            self.read(GuestOffset::new(start), &mut content[..there])?;
        }
        let inside = (guest - start) as usize;
        if self.tables.has(WriterFault::HeadLost) {
            content[..inside].fill(0);
        }
        if self.tables.has(WriterFault::TailLost) {
            content[inside..].fill(0);
        }
        content[inside..inside + bytes.len()].copy_from_slice(bytes);
        Ok(content)
    }

    /// Makes a range read as zeros: whole clusters by their entries.
    fn zero(&mut self, range: Range<u64>) -> Answer {
        let cluster = self.tables.cluster_bytes();
        let entry = match (self.tables.version, self.tables.has_backing) {
            (3, _) => Some(ZERO),
            (_, false) => Some(0),
            // Version 2 has no zero clusters.
            (_, true) => None,
        };
        for part in self.by_clusters(range) {
            let is_whole = part.start.is_multiple_of(cluster)
                && (part.end.is_multiple_of(cluster) || part.end == self.tables.size);
            match entry.filter(|_| is_whole) {
                Some(entry) => self.replace(part.start, entry)?,
                None => {
                    let zeros = vec![0; (part.end - part.start) as usize];
                    self.write_piece(part.start, &zeros, &mut None)?;
                }
            }
        }
        Ok(())
    }

    /// Gives a cluster another entry, and frees its host clusters.
    fn replace(&mut self, guest: u64, entry: u64) -> Answer {
        let slot = self.tables.l2_slot(guest >> self.tables.cluster_bits)?;
        let old = self.tables.entry(slot)?;
        self.tables.set_entry(slot, entry)?;
        Ok(self.tables.free_entry(old)?)
    }
}
