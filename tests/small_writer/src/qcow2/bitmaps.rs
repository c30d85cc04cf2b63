//! Persistent dirty bitmaps. A change of the disk sets its bits in the file first: at each moment, no
//! bitmap lacks a bit. While their directory or their tables change, the autoclear bit is off, and readers ignore them.
//!
//! # Arithmetic
//! As in `references`.

use std::ops::Range;

use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::qcow2::bitmap::{
    BitmapCluster, BitmapEntry, BitmapTableEntry, BitmapsExtension, GRANULARITY_BITS,
    MAX_DATA_BYTES, bits_for, table_entries_for,
};
use qcowfuzz::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, BITMAP_AUTO, BITMAP_FIXED_BYTES, BITMAP_IN_USE, header,
};
use qcowfuzz::formats::qcow2::table::HostTable;

use super::stored_bitmaps::{FLAGS_AT, StoredBitmap};
use super::tables::WrittenTables;
use crate::{WriteError, WriterFault};

/// The offset of the header's field `autoclear_features`.
const AUTOCLEAR_AT: HostOffset = HostOffset::new(header::AUTOCLEAR_FEATURES.at as u64);

impl WrittenTables<'_> {
    /// Sets the bits of a guest range that is about to change, in all bitmaps that record changes.
    pub(super) fn mark(&mut self, guest: Range<u64>) -> Result<(), WriteError> {
        if self.bitmaps.all.is_empty() || guest.is_empty() {
            return Ok(());
        }
        match self.has(WriterFault::BitmapLate) {
            true => self.bitmaps.late.push(guest),
            false => self.mark_now(&guest)?,
        }
        Ok(())
    }

    /// Sets the bits that are late.
    pub(super) fn mark_late(&mut self) -> Result<(), WriteError> {
        let late = std::mem::take(&mut self.bitmaps.late);
        late.iter().try_for_each(|guest| self.mark_now(guest))
    }

    fn mark_now(&mut self, guest: &Range<u64>) -> Result<(), WriteError> {
        let mut is_changed = false;
        let last = match self.has(WriterFault::BitmapMissesEnd) {
            true => guest.start,
            false => guest.end.saturating_sub(1),
        };
        for index in 0..self.bitmaps.all.len() as u32 {
            let entry = self.stored_bitmap(index)?.entry;
            let is_enabled = entry.is_auto() || self.has(WriterFault::BitmapAlwaysEnabled);
            if is_enabled && !entry.in_use() {
                let bits =
                    guest.start >> entry.granularity_bits..(last >> entry.granularity_bits) + 1;
                is_changed |= self.set_bits(&entry, &bits)?;
            }
        }
        // In a power cut, the change may not be there without its bits.
        if is_changed { self.flush() } else { Ok(()) }
    }

    /// Sets bits of a bitmap. Returns false if all of them were set.
    fn set_bits(&mut self, entry: &BitmapEntry, bits: &Range<u64>) -> Result<bool, WriteError> {
        let cluster_bits = self.cluster_size().bytes() * 8;
        let mut is_changed = false;
        for nth in bits.start / cluster_bits..bits.end.div_ceil(cluster_bits) {
            if nth >= u64::from(entry.table_entries) {
                return Err(WriteError::Malformed("a bitmap ends before the disk"));
            }
            let first = nth * cluster_bits;
            let inside = bits.start.saturating_sub(first)..(bits.end - first).min(cluster_bits);
            let slot = entry.table_offset + nth * 8;
            is_changed |= match self.bit_cluster(slot)? {
                BitmapCluster::AllOnes => false,
                BitmapCluster::Data(host) => self.set_bits_at(host, &inside)?,
                BitmapCluster::AllZeroes => {
                    let new = self.allocate(1)?;
                    self.set_bits_at(new, &inside)?;
                    self.set_reference(slot, new.get())?;
                    true
                }
            };
        }
        Ok(is_changed)
    }

    fn bit_cluster(&self, slot: HostOffset) -> Result<BitmapCluster, WriteError> {
        let word = BitmapTableEntry(self.entry(slot)?);
        word.cluster(self.cluster_size()).map_err(WriteError::Malformed)
    }

    /// Sets bits in a cluster of bits. Returns false if all of them were set.
    fn set_bits_at(&self, host: HostOffset, bits: &Range<u64>) -> Result<bool, WriteError> {
        let (first, end) = (bits.start / 8, bits.end.div_ceil(8));
        let at = host + first;
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(first)).unwrap_or(0)];
        self.file.read_at(at, &mut bytes)?;
        let mut is_changed = false;
        for (nth, byte) in (first..).zip(&mut bytes) {
            let (start, before) = (nth * 8, *byte);
            for bit in start.max(bits.start)..(start + 8).min(bits.end) {
                *byte |= 1 << (bit - start);
            }
            is_changed |= *byte != before;
        }
        if is_changed {
            self.write(at, &bytes)?;
        }
        Ok(is_changed)
    }

    /// Adds a bitmap of zeros behind all others.
    pub(super) fn add_bitmap(
        &mut self,
        granularity_bits: u8,
        is_enabled: bool,
    ) -> Result<(), WriteError> {
        self.check_extension_place()?;
        if self.has(WriterFault::BitmapNotAdded) {
            return Ok(());
        }
        self.unlisted(|it| it.append_bitmap(granularity_bits, is_enabled))
    }

    /// Removes the bitmap at `index` of the directory.
    pub(super) fn remove_bitmap(&mut self, index: u32) -> Result<(), WriteError> {
        if self.has(WriterFault::BitmapNotRemoved) {
            return Ok(());
        }
        self.unlisted(|it| {
            let entry = it.stored_bitmap(index)?.entry;
            it.bitmaps.all.remove(index as usize);
            it.replace_directory()?;
            it.free_bits(&entry, 0)?;
            it.free_table(entry.table_offset, u64::from(entry.table_entries) * 8)
        })
    }

    /// Makes all bits of a bitmap zeros.
    pub(super) fn clear_bitmap(&mut self, index: u32) -> Result<(), WriteError> {
        if self.has(WriterFault::BitmapNotCleared) {
            return Ok(());
        }
        self.unlisted(|it| {
            let entry = it.stored_bitmap(index)?.entry;
            let used = it.entries(HostTable::bitmap(&entry))?;
            it.free_bits(&entry, 0)?;
            used.iter().try_for_each(|slot| it.set_entry(slot.at, 0))
        })
    }

    /// Has a bitmap record changes of the disk, or not.
    pub(super) fn enable_bitmap(&mut self, index: u32, is_enabled: bool) -> Result<(), WriteError> {
        if is_enabled && self.has(WriterFault::BitmapStaysDisabled) {
            return Ok(());
        }
        if !is_enabled && self.has(WriterFault::BitmapForgets) {
            self.clear_bitmap(index)?;
        }
        let bitmap = self.stored_bitmap(index)?;
        let others = bitmap.entry.flags & !BITMAP_AUTO;
        let flags = others | if is_enabled { BITMAP_AUTO } else { 0 };
        bitmap.set_flags(flags);
        let at = bitmap.at + FLAGS_AT as u64;
        self.write(at, &flags.to_be_bytes())
    }

    /// Makes a change while the autoclear bit is off.
    fn unlisted(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        self.set_autoclear(false)?;
        self.flush()?;
        change(self)?;
        self.flush()?;
        match self.bitmaps.all.is_empty() {
            true => Ok(()),
            false => self.set_autoclear(true),
        }
    }

    fn set_autoclear(&mut self, is_on: bool) -> Result<(), WriteError> {
        let others = self.header.autoclear & !AUTOCLEAR_BITMAPS;
        self.header.autoclear = others | if is_on { AUTOCLEAR_BITMAPS } else { 0 };
        self.set_entry(AUTOCLEAR_AT, self.header.autoclear)
    }

    /// Drops all bitmaps, as a program that does not support them: for the fault [`WriterFault::BitmapsDropped`].
    pub(super) fn drop_bitmaps(&mut self) -> Result<(), WriteError> {
        match self.bitmaps.all.is_empty() {
            true => Ok(()),
            false => self.set_autoclear(false),
        }
    }

    fn stored_bitmap(&mut self, index: u32) -> Result<&mut StoredBitmap, WriteError> {
        let bitmap = self.bitmaps.all.get_mut(index as usize);
        bitmap.ok_or(WriteError::Malformed("there is no such bitmap"))
    }

    fn append_bitmap(&mut self, granularity_bits: u8, is_enabled: bool) -> Result<(), WriteError> {
        let is_free =
            |name: &String| self.bitmaps.all.iter().all(|it| it.name() != name.as_bytes());
        // There are fewer bitmaps than numbers.
        let name = (0..=self.bitmaps.all.len()).map(|nth| nth.to_string()).find(is_free);
        let name = name.unwrap_or_default();
        let granularity_bits = match self.has(WriterFault::BitmapTooFine) {
            // A finer bitmap than the format has would make the image unreadable, which is another fault.
            true => granularity_bits.saturating_sub(1).max(*GRANULARITY_BITS.start()),
            false => granularity_bits,
        };
        let (table, entries) = self.new_bit_table(granularity_bits, self.header.size_bytes)?;
        let mut bytes = vec![0; BITMAP_FIXED_BYTES];
        // The type is dirty tracking.
        bytes[16..18].copy_from_slice(&[1, granularity_bits]);
        bytes[18..20].copy_from_slice(&(name.len() as u16).to_be_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let mut fixed = [0; BITMAP_FIXED_BYTES];
        fixed.copy_from_slice(&bytes[..BITMAP_FIXED_BYTES]);
        let (at, entry) = (HostOffset::ZERO, BitmapEntry::parse(&fixed));
        let mut bitmap = StoredBitmap { at, entry, bytes };
        bitmap.set_table(table, entries);
        let in_use = if self.has(WriterFault::BitmapStaysInUse) { BITMAP_IN_USE } else { 0 };
        bitmap.set_flags(in_use | if is_enabled { BITMAP_AUTO } else { 0 });
        self.bitmaps.all.push(bitmap);
        self.replace_directory()
    }

    /// Allocates a table of zeros. Returns its offset and its number of entries.
    fn new_bit_table(
        &mut self,
        granularity_bits: u8,
        size_bytes: u64,
    ) -> Result<(HostOffset, u32), WriteError> {
        let cluster_size = self.cluster_size();
        let entries = table_entries_for(size_bytes, granularity_bits, cluster_size);
        let clusters = cluster_size.clusters_for(entries.saturating_mul(8));
        let bits_bytes = cluster_size.saturating_bytes(entries);
        if clusters == 0 || bits_bytes > MAX_DATA_BYTES {
            return Err(WriteError::Unsupported("a bitmap without bits, or of more than 512 MiB"));
        }
        let entries = u32::try_from(entries).map_err(|_| WriteError::TooLong)?;
        let table = self.allocate(clusters)?;
        self.end_file_behind(table, clusters)?;
        Ok((table, entries))
    }

    /// Frees the clusters of bits of all entries of a table from this one on.
    fn free_bits(&mut self, entry: &BitmapEntry, first: u64) -> Result<(), WriteError> {
        let cluster_size = self.cluster_size();
        for slot in self.entries(HostTable::bitmap(entry))? {
            if slot.index >= first
                && let BitmapCluster::Data(host) = self.bit_cluster(slot.at)?
            {
                self.free_run(cluster_size.host_cluster(host), 1)?;
            }
        }
        Ok(())
    }

    /// Gives all bitmaps tables for another size of the disk, with zeros for its new part. Then calls `resize`, which
    /// changes the size.
    pub(super) fn resize_bitmaps(
        &mut self,
        size_bytes: u64,
        resize: impl FnOnce(&mut Self) -> Result<(), WriteError>,
    ) -> Result<(), WriteError> {
        if self.bitmaps.all.is_empty() || self.has(WriterFault::BitmapNotResized) {
            return resize(self);
        }
        if self.bitmaps.all.iter().any(|bitmap| bitmap.entry.in_use()) {
            return Err(WriteError::Unsupported("another size with bitmaps in use"));
        }
        self.unlisted(|it| {
            let kept_bytes = it.size_bytes().min(size_bytes);
            for index in 0..it.bitmaps.all.len() as u32 {
                it.resize_bitmap(index, kept_bytes, size_bytes)?;
            }
            it.replace_directory()?;
            resize(it)
        })
    }

    fn resize_bitmap(
        &mut self,
        index: u32,
        kept_bytes: u64,
        size_bytes: u64,
    ) -> Result<(), WriteError> {
        let entry = self.stored_bitmap(index)?.entry;
        self.cut_bits(&entry, bits_for(kept_bytes, entry.granularity_bits))?;
        let (table, entries) = self.new_bit_table(entry.granularity_bits, size_bytes)?;
        self.free_bits(&entry, u64::from(entries))?;
        let old_bytes = u64::from(entry.table_entries) * 8;
        let kept_bytes = u64::from(entries.min(entry.table_entries)) * 8;
        let clusters = self.cluster_size().clusters_for(u64::from(entries) * 8);
        self.copy_table((entry.table_offset, kept_bytes), (table, clusters), |_| ())?;
        self.stored_bitmap(index)?.set_table(table, entries);
        self.free_table(entry.table_offset, old_bytes)
    }

    /// Makes the bits behind the first `kept` zeros, in the cluster in which these end.
    fn cut_bits(&mut self, entry: &BitmapEntry, kept: u64) -> Result<(), WriteError> {
        let cluster_bytes = self.cluster_size().bytes();
        let (nth, inside) = (kept / (cluster_bytes * 8), kept % (cluster_bytes * 8));
        if inside == 0 || nth >= u64::from(entry.table_entries) {
            return Ok(());
        }
        let slot = entry.table_offset + nth * 8;
        match self.bit_cluster(slot)? {
            BitmapCluster::AllZeroes => Ok(()),
            BitmapCluster::AllOnes => {
                let new = self.allocate(1)?;
                self.set_bits_at(new, &(0..inside))?;
                self.set_reference(slot, new.get())
            }
            BitmapCluster::Data(host) => {
                let last = host + inside / 8;
                let mut byte = [0];
                self.file.read_at(last, &mut byte)?;
                self.write(last, &[byte[0] & ((1u16 << (inside % 8)) - 1) as u8])?;
                self.clear(last + 1..host + cluster_bytes)
            }
        }
    }

    /// Writes the directory to other clusters, and frees the old ones.
    fn replace_directory(&mut self) -> Result<(), WriteError> {
        let old = self.bitmaps.directory.take();
        let bytes: Vec<u8> = self.bitmaps.all.iter().flat_map(|it| &it.bytes).copied().collect();
        let clusters = self.cluster_size().clusters_for(bytes.len() as u64);
        if clusters > 0 {
            let directory_offset = self.allocate(clusters)?;
            self.write(directory_offset, &bytes)?;
            let mut at = directory_offset;
            for bitmap in &mut self.bitmaps.all {
                bitmap.at = at;
                at += bitmap.bytes.len() as u64;
            }
            let bitmaps = u32::try_from(self.bitmaps.all.len()).map_err(|_| WriteError::TooLong)?;
            let directory_bytes = bytes.len() as u64;
            let directory = BitmapsExtension { bitmaps, directory_bytes, directory_offset };
            self.write_extension(&directory)?;
            self.bitmaps.directory = Some(directory);
        }
        match old {
            Some(old) => self.free_table(old.directory_offset, old.directory_bytes),
            None => Ok(()),
        }
    }
}
