//! Persistent dirty bitmaps: a directory, a table for each bitmap, clusters of bits.
//!
//! Bits do not describe the disk's content. They are stamps, so that no two bitmaps are equal.

mod serialise;
#[cfg(test)]
mod tests;

use super::encoding::bitmaps::{bits_of_disk, table_entries};
use crate::formats::qcow2::geometry::Version;
use crate::images::content::WriteNumber;

use super::builder::Builder;
use super::state::{Bitmap, Bits, Fill, GivenString, Leaving, NewBitmap};

impl Builder {
    /// Returns the number of bitmaps.
    pub fn bitmap_count(&self) -> usize {
        self.bitmaps.live
    }

    /// Returns log2 of the guest bytes per bit of each bitmap, and whether it is one that was not saved correctly.
    pub fn bitmap_properties(&self) -> impl Iterator<Item = (u8, bool)> {
        self.bitmaps.live().iter().map(|bitmap| (bitmap.granularity_bits, bitmap.in_use))
    }

    /// Returns the number of entries in a bitmap's table, at least 1, or `None` if there is no such bitmap.
    pub fn bitmap_table_entries(&self, index: usize) -> Option<u64> {
        self.bitmaps.live().get(index).map(|bitmap| bitmap.table_entries)
    }

    /// Adds a bitmap of zeroes. Returns false if there are too many bitmaps, the bitmap would be too large, the file
    /// is full, the image has version 2, or the disk is empty: a table has at least one entry, so a valid bitmap of
    /// an empty disk does not exist.
    pub fn bitmap(&mut self, wanted: NewBitmap) -> bool {
        let NewBitmap { granularity_bits, in_use, auto, name_bytes, name } = wanted;
        let needed = self.table_entries(granularity_bits, self.plan.size_bytes);
        if self.plan.geometry.version == Version::V2
            || self.bitmaps.live >= self.limits.bitmaps
            || needed == 0 && !in_use
            || !self.bits_allowed(granularity_bits, self.plan.size_bytes)
        {
            return false;
        }
        let table_entries = needed.max(1);
        let Some(table) = self.replace_place((0, 0), table_entries * 8) else { return false };
        let made = self.bitmaps.name_bytes(name_bytes);
        let name_bytes = name.map_or(made, GivenString::length_bytes);
        let bitmaps = &mut self.bitmaps;
        if bitmaps.live == bitmaps.all.len() {
            bitmaps.all.push(Bitmap::default());
        }
        let spare = &mut bitmaps.all[bitmaps.live];
        let mut entries = std::mem::take(&mut spare.entries);
        entries.clear();
        let number = bitmaps.made + 1;
        *spare = Bitmap {
            number,
            granularity_bits,
            in_use,
            auto,
            name_bytes,
            name,
            table,
            table_entries,
            entries,
        };
        bitmaps.live += 1;
        if !self.replace_bitmap_directory() {
            self.bitmaps.live -= 1;
            self.free_place(table);
            return false;
        }
        self.bitmaps.made += 1;
        (self.bitmaps.bit_left, self.bitmaps.extension_left) = (false, None);
        true
    }

    /// Changes entries of a bitmap's table, from `first` (modulo the table's length) up to its end. Returns false if
    /// nothing changed. A full file ends the change early.
    pub fn fill_bitmap(
        &mut self,
        index: usize,
        first: u64,
        count: u64,
        fill: Fill,
        write: WriteNumber,
    ) -> bool {
        let Self { bitmaps, placement, .. } = self;
        let Some(bitmap) = bitmaps.all[..bitmaps.live].get_mut(index) else { return false };
        // The remainder is defined, because a table has at least one entry.
        let first = first % bitmap.table_entries;
        let end = (first + count).min(bitmap.table_entries);
        let mut changed = false;
        for index in first..end {
            let at = bitmap.entries.binary_search_by_key(&index, |(index, _)| *index);
            let old = at.ok().map(|at| bitmap.entries[at].1);
            let new = match (fill, old) {
                (Fill::Zeroes, _) => None,
                (Fill::Ones, _) => Some(Bits::Ones),
                (Fill::Bits, Some(Bits::Stamp(cluster, _))) => Some(Bits::Stamp(cluster, write)),
                (Fill::Bits, _) => match placement.allocate(1, placement.policy) {
                    Some(cluster) => Some(Bits::Stamp(cluster, write)),
                    None => break,
                },
            };
            match (old, new) {
                (Some(Bits::Stamp(..)), Some(Bits::Stamp(..))) => {}
                (Some(Bits::Stamp(cluster, _)), _) => placement.clusters.free(cluster, 1),
                _ => {}
            }
            match (at, new) {
                (Ok(at), Some(bits)) => bitmap.entries[at].1 = bits,
                (Err(at), Some(bits)) => bitmap.entries.insert(at, (index, bits)),
                (Ok(at), None) => drop(bitmap.entries.remove(at)),
                (Err(_), None) => {}
            }
            changed |= old != new;
        }
        changed
    }

    /// Deletes the bitmap at `index`, or all of them. Returns false if there are none, or if the file is full.
    pub fn delete_bitmap(&mut self, index: usize, leaving: Leaving) -> bool {
        let extension = self.bitmaps_extension();
        match leaving {
            Leaving::Nothing => {
                return self.delete_one_bitmap(index);
            }
            Leaving::Bit => {
                let had = self.bitmaps.live > 0 || !self.bitmaps.bit_left;
                if self.plan.geometry.version == Version::V2 || !had {
                    return false;
                }
                (self.bitmaps.bit_left, self.bitmaps.extension_left) = (true, None);
            }
            Leaving::Extension => {
                if self.bitmaps.live == 0 {
                    return false;
                }
                (self.bitmaps.bit_left, self.bitmaps.extension_left) = (false, extension);
            }
        }
        while self.bitmaps.live > 0 {
            self.bitmaps.live -= 1;
            self.release_bitmap(self.bitmaps.live);
        }
        // An empty directory needs no cluster.
        self.replace_bitmap_directory()
    }

    fn delete_one_bitmap(&mut self, index: usize) -> bool {
        let live = self.bitmaps.live;
        if index >= live {
            return false;
        }
        self.bitmaps.all[index..live].rotate_left(1);
        self.bitmaps.live -= 1;
        if !self.replace_bitmap_directory() {
            self.bitmaps.live += 1;
            self.bitmaps.all[index..live].rotate_right(1);
            return false;
        }
        self.release_bitmap(live - 1);
        true
    }

    /// Frees the table and the bits of a bitmap. The bitmap may already be a spare one.
    fn release_bitmap(&mut self, at: usize) {
        let Self { bitmaps, placement, .. } = self;
        let bitmap = &mut bitmaps.all[at];
        bitmap.cut(0).for_each(|cluster| placement.clusters.free(cluster, 1));
        let table = bitmap.table;
        self.free_place(table);
    }

    /// Reports whether all bitmaps may belong to a disk of that size.
    pub(super) fn bitmaps_allow(&self, size_bytes: u64) -> bool {
        let mut granularities = self.bitmaps.live().iter().map(|one| one.granularity_bits);
        granularities.all(|bits| self.bits_allowed(bits, size_bytes))
    }

    /// Adapts the bitmaps to the disk's new size. A bitmap in use stays as it is: readers ignore it, so it may have
    /// any length. A bitmap that cannot follow, because the file is full or the disk is empty, becomes one in use, as
    /// on disk while QEMU has it open.
    pub(super) fn resize_bitmaps(&mut self) {
        for at in 0..self.bitmaps.live {
            let Bitmap { granularity_bits, in_use, table, .. } = self.bitmaps.all[at];
            if in_use {
                continue;
            }
            let entries = self.table_entries(granularity_bits, self.plan.size_bytes);
            let clusters = self.plan.geometry.cluster_size.clusters_for(entries * 8);
            let place = match clusters {
                0 => None,
                _ if clusters == table.1 => Some(table),
                _ => self.replace_place(table, entries * 8),
            };
            let Self { bitmaps, placement, .. } = self;
            let bitmap = &mut bitmaps.all[at];
            let Some(table) = place else {
                bitmap.in_use = true;
                continue;
            };
            bitmap.cut(entries).for_each(|cluster| placement.clusters.free(cluster, 1));
            (bitmap.table, bitmap.table_entries) = (table, entries);
        }
    }

    /// Returns the number of entries that a bitmap of the disk needs. QEMU counts whole sectors of the disk.
    fn table_entries(&self, granularity_bits: u8, size_bytes: u64) -> u64 {
        table_entries(size_bytes & !511, granularity_bits, self.plan.geometry.cluster_size)
    }

    fn bits_allowed(&self, granularity_bits: u8, size_bytes: u64) -> bool {
        bits_of_disk(size_bytes & !511, granularity_bits) <= self.limits.bitmap_bits
    }

    /// Allocates a directory for the current bitmaps, and frees the old one.
    fn replace_bitmap_directory(&mut self) -> bool {
        let bytes = self.bitmaps.directory_bytes();
        let place = self.replace_place(self.bitmaps.directory, bytes);
        self.bitmaps.directory = place.unwrap_or(self.bitmaps.directory);
        place.is_some()
    }
}
