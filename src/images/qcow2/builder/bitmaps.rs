//! Persistent dirty bitmaps: a directory, a table for each bitmap, clusters of bits, and their bytes.
//!
//! Bits do not describe the disk's content. They are stamps, so that no two bitmaps are equal.

use crate::disk::offsets::GuestOffset;
use crate::formats::qcow2::constants::AUTOCLEAR_BITMAPS;
use crate::formats::qcow2::geometry::Version;
use crate::images::content::{WriteNumber, stamp};
use crate::images::files::image::Image;
use crate::images::qcow2::encoding::{Directory, ONES, bits_at, bits_of_disk, table_entries};
use crate::images::qcow2::state::{Bitmap, Bits, Fill, GivenString, Leaving, NewBitmap};
use crate::images::qcow2::tables;

use super::Builder;

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
    pub fn bitmaps_allow(&self, size_bytes: u64) -> bool {
        let mut granularities = self.bitmaps.live().iter().map(|one| one.granularity_bits);
        granularities.all(|bits| self.bits_allowed(bits, size_bytes))
    }

    /// Adapts the bitmaps to the disk's new size. A bitmap in use stays as it is: readers ignore it, so it may have
    /// any length. A bitmap that cannot follow, because the file is full or the disk is empty, becomes one in use, as
    /// on disk while QEMU has it open.
    pub fn resize_bitmaps(&mut self) {
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

impl Bitmap {
    /// Writes the name: as many letters as there is room for, and the number in decimal.
    fn write_name(&self, name: &mut [u8]) {
        name.fill(b'b');
        let mut left = self.number;
        for byte in name.iter_mut().rev() {
            if left == 0 {
                break;
            }
            *byte = b'0' + (left % 10) as u8;
            left /= 10;
        }
    }
}

impl Builder {
    /// Returns the autoclear feature bits that the bitmaps need.
    pub fn bitmaps_autoclear(&self) -> u64 {
        let there = self.bitmaps.live > 0 || self.bitmaps.bit_left;
        if there { AUTOCLEAR_BITMAPS } else { 0 }
    }

    /// Returns the header extension of the bitmaps, or the one that deleted bitmaps have left.
    pub fn bitmaps_extension(&self) -> Option<Directory> {
        match self.bitmaps.live {
            0 => self.bitmaps.extension_left,
            live => Some(Directory {
                bitmaps: live as u32,
                length_bytes: self.bitmaps.directory_bytes(),
                offset: self.host_offset(self.bitmaps.directory.0),
            }),
        }
    }

    /// Writes directory, tables and bits.
    pub fn write_bitmaps(&self, image: &mut Image) {
        let mut at = self.host_offset(self.bitmaps.directory.0);
        for bitmap in self.bitmaps.live() {
            let table = self.host_offset(bitmap.table.0);
            let entry = bitmap.entry(table);
            let length = entry.length_bytes();
            let name = entry.write(image.place(at, length as usize));
            match bitmap.name {
                Some(given) => name.copy_from_slice(self.given.string(given)),
                None => bitmap.write_name(name),
            }
            at += length;
            tables::write_sparse(image, table, &bitmap.entries, |bits| match bits {
                Bits::Ones => ONES,
                Bits::Stamp(cluster, _) => bits_at(self.host_offset(cluster)),
            });
            for (index, bits) in &bitmap.entries {
                if let Bits::Stamp(cluster, write) = bits {
                    self.write_bits(image, bitmap, *index, *cluster, *write);
                }
            }
        }
    }

    /// Writes the first bits of a cluster, as many as the disk has.
    fn write_bits(
        &self,
        image: &mut Image,
        bitmap: &Bitmap,
        index: u64,
        cluster: u64,
        write: WriteNumber,
    ) {
        let granularity_bits = bitmap.granularity_bits;
        let before = index * self.plan.geometry.cluster_size.bytes() * 8;
        let bits =
            bits_of_disk(self.plan.virtual_size_bytes(), granularity_bits).saturating_sub(before);
        let mut bytes = stamp(GuestOffset::new(before << granularity_bits), write);
        // The checksum comes first, because a cluster may have only a few bits.
        bytes.reverse();
        for (first, byte) in (0..).step_by(8).zip(&mut bytes) {
            let there = bits.saturating_sub(first).min(8);
            *byte &= ((1u16 << there) - 1) as u8;
        }
        image.write(self.host_offset(cluster), &bytes);
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::clusters::ClusterSize;
    use crate::disk::storage::Storage;
    use crate::formats::qcow2::geometry::{Compression, Geometry};
    use crate::images::limits::Limits;
    use crate::images::qcow2::ImagePlan;
    use crate::images::qcow2::refcounts::RefcountPlacement;

    use super::*;

    const WRITE: WriteNumber = WriteNumber(1);

    /// Returns a builder of a disk of `size_bytes` in clusters of 512 bytes. The file may grow by at most
    /// `host_clusters`.
    fn builder(version: Version, size_bytes: u64, host_clusters: u64) -> Builder {
        let geometry = Geometry {
            version,
            cluster_size: ClusterSize::SMALLEST,
            refcount_order: 4,
            extended_l2: false,
            compression: Compression::Deflate,
            data_file: false,
        };
        let refcounts = RefcountPlacement::default();
        let plan = ImagePlan { refcounts, ..ImagePlan::new(geometry, size_bytes) };
        let mut builder = Builder::new();
        builder.begin(plan, Limits::WALKED);
        let begun = builder.placement.append_at();
        builder.begin(plan, Limits { host_clusters: begun + host_clusters, ..Limits::WALKED });
        builder
    }

    fn plain(granularity_bits: u8) -> NewBitmap {
        NewBitmap { granularity_bits, ..NewBitmap::default() }
    }

    fn allocated(builder: &Builder) -> u64 {
        builder.placement.clusters.runs().iter().map(|run| run.end - run.first).sum()
    }

    /// A bitmap of two clusters, whose second cluster has five bits of the disk.
    #[test]
    fn bits_past_the_end_of_the_disk_stay_zero() {
        let mut seen = 0;
        for number in 1..=16 {
            let mut builder = builder(Version::V3, (4096 + 5) * 512, 1000);
            assert!(builder.bitmap(plain(9)));
            assert!(builder.fill_bitmap(0, 0, 2, Fill::Bits, WriteNumber(number)));
            let mut image = Image::default();
            builder.write_bitmaps(&mut image);
            let entries = &builder.bitmaps.live()[0].entries;
            let Bits::Stamp(cluster, _) = entries[1].1 else { panic!("{entries:?}") };
            let mut bits = [0; 512];
            image.seal(1 << 20);
            image.read_at(builder.host_offset(cluster), &mut bits).unwrap();
            assert!(bits[0] < 1 << 5 && bits[1..].iter().all(|byte| *byte == 0), "{bits:x?}");
            seen |= bits[0];
        }
        assert_eq!(seen, 0x1f);
    }

    /// The guest bytes of one table cluster: one bit for each sector, 4096 bits for each entry, 64 entries.
    const SPAN: u64 = 64 * 4096 * 512;

    #[test]
    fn everything_is_freed_again() {
        let mut builder = builder(Version::V3, SPAN * 3, 1000);
        let before = allocated(&builder);
        assert!(builder.bitmap(plain(9)));
        assert!(builder.bitmap(plain(31)));
        assert!(builder.fill_bitmap(0, 100, 32, Fill::Bits, WRITE));
        assert!(builder.fill_bitmap(0, 110, 9, Fill::Ones, WRITE));
        assert!(!builder.fill_bitmap(0, 110, 9, Fill::Ones, WRITE));
        // Three clusters of one table, one of the other, the directory, and bits.
        assert_eq!(allocated(&builder) - before, 3 + 1 + 1 + 23);
        assert!(builder.delete_bitmap(0, Leaving::Nothing));
        assert_eq!(allocated(&builder) - before, 1 + 1);
        assert!(builder.delete_bitmap(0, Leaving::Nothing));
        assert_eq!(allocated(&builder), before);
        assert_eq!((builder.bitmaps_autoclear(), builder.bitmaps_extension()), (0, None));
    }

    #[test]
    fn tables_follow_the_disk() {
        let mut builder = builder(Version::V3, SPAN, 3000);
        assert!(builder.bitmap(plain(9)));
        assert!(builder.fill_bitmap(0, 60, 4, Fill::Bits, WRITE));
        let entries = |builder: &Builder| {
            let bitmap = &builder.bitmaps.live()[0];
            (bitmap.table_entries, bitmap.table.1, bitmap.entries.len())
        };
        for (size, expected) in [(SPAN + 1, (64, 1, 4)), (SPAN + 512, (65, 2, 4)), (1, (0, 0, 0))] {
            // A disk of less than a sector is empty.
            let expected = if size == 1 { (65, 2, 4) } else { expected };
            assert!(builder.resize(size).is_some());
            assert_eq!(entries(&builder), expected, "{size}");
            assert_eq!(builder.bitmaps.live()[0].in_use, size == 1);
        }
        // A bitmap in use stays as it is.
        assert!(builder.resize(SPAN).is_some());
        assert_eq!(entries(&builder), (65, 2, 4));
    }

    #[test]
    fn entries_past_a_smaller_disk_are_freed() {
        let mut builder = builder(Version::V3, SPAN, 3000);
        assert!(builder.bitmap(plain(9)));
        let before = allocated(&builder);
        assert!(builder.fill_bitmap(0, 30, 10, Fill::Bits, WRITE));
        assert!(builder.resize(SPAN / 2).is_some());
        assert_eq!(allocated(&builder), before + 2);
    }

    #[test]
    fn a_bitmap_that_cannot_follow_is_in_use() {
        let mut builder = builder(Version::V3, SPAN * 2, 9);
        // The L1 table does not shrink, and does not have to grow.
        assert!(builder.resize(SPAN).is_some());
        assert!(builder.bitmap(plain(9)));
        while builder.placement.allocate(1, Default::default()).is_some() {}
        assert!(builder.resize(SPAN * 2).is_some());
        let bitmap = &builder.bitmaps.live()[0];
        assert_eq!((bitmap.in_use, bitmap.table.1, bitmap.table_entries), (true, 1, 64));
    }

    #[test]
    fn what_cannot_be_done_changes_nothing() {
        let mut full = builder(Version::V3, SPAN, 1);
        let before = allocated(&full);
        // There is room for the table, but not for the directory.
        assert!(!full.bitmap(plain(9)));
        assert_eq!((full.bitmap_count(), allocated(&full)), (0, before));

        let mut version_2 = builder(Version::V2, SPAN, 9);
        assert!(!version_2.bitmap(plain(9)) && !version_2.delete_bitmap(0, Leaving::Bit));

        let mut empty = builder(Version::V3, 511, 9);
        assert!(!empty.bitmap(plain(9)));
        assert!(empty.bitmap(NewBitmap { in_use: true, ..plain(9) }));

        let mut large = builder(Version::V3, SPAN, 900);
        large.limits.bitmap_bits = SPAN / 512;
        assert!(large.bitmap(plain(9)));
        assert_eq!(large.resize(SPAN + 512), None);
        assert!(large.bitmap(plain(10)));
        assert!(large.delete_bitmap(0, Leaving::Nothing));
        assert!(large.resize(SPAN + 512).is_some());
        assert!(!large.bitmap(plain(9)));
    }

    #[test]
    fn names_differ() {
        let mut builder = builder(Version::V3, SPAN, 900);
        for wanted in [0, 0, 1, 1, 1023, 2] {
            assert!(builder.bitmap(NewBitmap { name_bytes: wanted, ..plain(31) }));
        }
        let lengths: Vec<u16> = builder.bitmaps.live().iter().map(|one| one.name_bytes).collect();
        assert_eq!(lengths, [0, 1, 1, 1, 1023, 2]);
        // The tenth has a number of two digits.
        assert!(builder.delete_bitmap(0, Leaving::Extension));
        for _ in 6..10 {
            assert!(builder.bitmap(NewBitmap { name_bytes: 1, ..plain(31) }));
        }
        assert_eq!(builder.bitmaps.live().last().map(|one| one.name_bytes), Some(2));
    }
}
