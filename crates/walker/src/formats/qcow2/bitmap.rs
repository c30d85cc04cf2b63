//! Persistent dirty bitmaps (specification, "Bitmaps extension" and "Bitmaps"): the header extension, the bitmap
//! directory, bitmap tables and bits. The bounds are QEMU's (`block/qcow2-bitmap.c`).
//!
//! # Arithmetic
//! A bitmap has less than 2^61 bytes, and its table and clusters end before 2^63. An offset that saturates lies
//! past all files.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, RangeInclusive};

use crate::disk::clusters::ClusterSize;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage, read_array};
use crate::formats::anatomy::StructureField;
use crate::formats::entries::{Entries, each_entries};
use crate::formats::error::{Flow, MapError};
use crate::formats::qcow2::constants::{
    BITMAP_ALL_ONES, BITMAP_AUTO, BITMAP_DIRTY_TRACKING, BITMAP_FIXED_BYTES, BITMAP_IN_USE,
    BITMAPS_EXTENSION_BYTES, MAX_BITMAP_NAME_BYTES, MAX_FILE_BYTES, OFFSET_MASK, bitmap_entry,
    bitmaps_extension,
};
use crate::formats::qcow2::geometry::Geometry;
use crate::formats::qcow2::header::Header;

/// The largest number of bitmaps that QEMU opens (`QCOW2_MAX_BITMAPS`).
pub const MAX_BITMAPS: u32 = 65_535;

/// The longest bitmap directory that QEMU opens (`QCOW2_MAX_BITMAP_DIRECTORY_SIZE`).
pub const MAX_DIRECTORY_BYTES: u64 = 65_535 * 1024;

/// The largest bitmap that QEMU opens, in bytes of its clusters (`BME_MAX_PHYS_SIZE`).
pub const MAX_DATA_BYTES: u64 = 512 << 20;

/// The allowed values of log2 of the guest bytes per bit.
pub const GRANULARITY_BITS: RangeInclusive<u8> = 9..=31;

/// QEMU opens no bitmap with flag bit 2, which is about extra data.
const FLAGS_KNOWN: u32 = BITMAP_IN_USE | BITMAP_AUTO;

/// Offset bits are those of L1 and L2 entries.
const RESERVED_MASK: u64 = !(OFFSET_MASK | BITMAP_ALL_ONES);

/// Returns the number of entries in a bitmap's table: the specification's `bitmap_table_size`.
pub fn table_entries_for(
    virtual_size_bytes: u64,
    granularity_bits: u8,
    cluster_size: ClusterSize,
) -> u64 {
    cluster_size.clusters_for(bits_for(virtual_size_bytes, granularity_bits).div_ceil(8))
}

/// Returns the number of bits in a bitmap of the whole disk.
pub fn bits_for(virtual_size_bytes: u64, granularity_bits: u8) -> u64 {
    // `fault` refuses a granularity above 31. One of 64 and more is too large for any disk.
    virtual_size_bytes.div_ceil(1u64.checked_shl(u32::from(granularity_bits)).unwrap_or(u64::MAX))
}

/// The bitmaps extension: the header extension that locates the bitmap directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapsExtension {
    /// The number of bitmaps.
    pub bitmaps: u32,
    /// The length of the directory with all its entries.
    pub directory_bytes: u64,
    /// The host offset of the directory.
    pub directory_offset: HostOffset,
}

impl BitmapsExtension {
    /// Parses the content of the extension, and checks it as QEMU does at open (`block/qcow2.c`,
    /// `qcow2_read_extensions`; `bitmap_list_load` for an empty directory).
    ///
    /// # Errors
    /// A field that QEMU refuses.
    pub fn parse(
        content: &[u8; BITMAPS_EXTENSION_BYTES],
        cluster_size: ClusterSize,
    ) -> Result<Self, MapError> {
        let bitmaps = bitmaps_extension::NB_BITMAPS.big_32(content);
        let reserved = bitmaps_extension::RESERVED.big(content);
        let directory_bytes = bitmaps_extension::BITMAP_DIRECTORY_SIZE.big(content);
        let directory_offset = bitmaps_extension::BITMAP_DIRECTORY_OFFSET.big(content);
        if reserved != 0 {
            return Err(bad("reserved", reserved, "0"));
        }
        if bitmaps == 0 || bitmaps > MAX_BITMAPS {
            return Err(bad("nb_bitmaps", u64::from(bitmaps), "1 to 65535"));
        }
        if directory_offset & cluster_size.mask() != 0 {
            let expected = "a multiple of the cluster size";
            return Err(bad("bitmap_directory_offset", directory_offset, expected));
        }
        if directory_bytes == 0 || directory_bytes > MAX_DIRECTORY_BYTES {
            return Err(bad("bitmap_directory_size", directory_bytes, "1 to 67107840"));
        }
        // QEMU stores file offsets in signed numbers.
        if directory_offset > i64::MAX as u64 - directory_bytes {
            let expected = "a directory that ends before 2^63";
            return Err(bad("bitmap_directory_offset", directory_offset, expected));
        }
        let directory_offset = HostOffset::new(directory_offset);
        Ok(Self { bitmaps, directory_bytes, directory_offset })
    }

    /// Returns the error for a bitmaps extension of another length.
    pub fn bad_length(length_bytes: u32) -> MapError {
        bad("length", u64::from(length_bytes), "24")
    }
}

fn bad(field: &'static str, found: u64, expected: &'static str) -> MapError {
    MapError::BitmapsExtension { field, found, expected }
}

/// The fixed part of a bitmap directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapEntry {
    /// The host offset of the bitmap table.
    pub table_offset: HostOffset,
    /// The number of entries in the bitmap table.
    pub table_entries: u32,
    /// Flag bits.
    pub flags: u32,
    /// The type; 1 is a dirty tracking bitmap.
    pub kind: u8,
    /// log2 of the guest bytes per bit.
    pub granularity_bits: u8,
    /// The length of the name.
    pub name_bytes: u16,
    /// The length of the extra data that follows the fixed part.
    pub extra_bytes: u32,
}

impl BitmapEntry {
    /// Parses the fixed part.
    pub fn parse(fixed: &[u8; BITMAP_FIXED_BYTES]) -> Self {
        let byte = |field: StructureField| field.big(fixed).to_le_bytes()[0];
        Self {
            table_offset: HostOffset::new(bitmap_entry::BITMAP_TABLE_OFFSET.big(fixed)),
            table_entries: bitmap_entry::BITMAP_TABLE_SIZE.big_32(fixed),
            flags: bitmap_entry::FLAGS.big_32(fixed),
            kind: byte(bitmap_entry::TYPE),
            granularity_bits: byte(bitmap_entry::GRANULARITY_BITS),
            name_bytes: bitmap_entry::NAME_SIZE.big_16(fixed),
            extra_bytes: bitmap_entry::EXTRA_DATA_SIZE.big_32(fixed),
        }
    }

    /// Returns the length of the whole entry, padded to 8 bytes.
    pub fn length_bytes(&self) -> u64 {
        let behind = u64::from(self.extra_bytes) + u64::from(self.name_bytes);
        (BITMAP_FIXED_BYTES as u64 + behind).next_multiple_of(8)
    }

    /// Reports whether the bitmap was not saved correctly. Readers ignore the bits of such a bitmap.
    pub fn in_use(&self) -> bool {
        self.flags & BITMAP_IN_USE != 0
    }

    /// Reports whether the bitmap must reflect all changes of the disk.
    pub fn is_auto(&self) -> bool {
        self.flags & BITMAP_AUTO != 0
    }

    /// Returns the reason for which QEMU refuses the entry at open, if it does: `bitmap_list_load`,
    /// `check_dir_entry`, and `load_bitmap_data` for the length of the table.
    pub fn fault(&self, geometry: &Geometry, virtual_size_bytes: u64) -> Option<&'static str> {
        let cluster_size = geometry.cluster_size;
        let table = self.table_offset.get();
        let entries = u64::from(self.table_entries);
        let needed = table_entries_for(virtual_size_bytes, self.granularity_bits, cluster_size);
        let faults = [
            (self.extra_bytes != 0, "it has extra data, which are not supported"),
            (self.kind != BITMAP_DIRTY_TRACKING, "its type is not 1"),
            (self.flags & !FLAGS_KNOWN != 0, "it has flags that are reserved"),
            (!GRANULARITY_BITS.contains(&self.granularity_bits), "granularity_bits is not 9 to 31"),
            (self.name_bytes > MAX_BITMAP_NAME_BYTES, "its name is longer than 1023 bytes"),
            (table == 0, "it has no table"),
            (table & cluster_size.mask() != 0, "its table is not on a cluster boundary"),
            (table > i64::MAX as u64 - entries * 8, "its table does not end before 2^63"),
            (entries == 0, "its table has no entries"),
            // A length that saturates is longer than the bound.
            (cluster_size.saturating_bytes(entries) > MAX_DATA_BYTES, "it is larger than 512 MiB"),
            (!self.in_use() && entries != needed, "its table is not as long as the disk needs it"),
        ];
        faults.into_iter().find_map(|(there, what)| there.then_some(what))
    }
}

/// The cluster of bits that an entry of a bitmap table stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapCluster {
    /// All bits are zeroes.
    AllZeroes,
    /// All bits are ones.
    AllOnes,
    /// The bits lie in a host cluster.
    Data(HostOffset),
}

/// An entry of a bitmap table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapTableEntry(pub u64);

impl BitmapTableEntry {
    /// Returns the cluster of bits that the entry stands for.
    ///
    /// # Errors
    /// Bits contradict each other, or reserved bits are set.
    pub fn cluster(self, cluster_size: ClusterSize) -> Result<BitmapCluster, &'static str> {
        let offset = self.0 & OFFSET_MASK;
        if self.0 & RESERVED_MASK != 0 {
            return Err("a table entry has bits that are reserved");
        }
        match (offset, self.0 & BITMAP_ALL_ONES != 0) {
            (0, false) => Ok(BitmapCluster::AllZeroes),
            (0, true) => Ok(BitmapCluster::AllOnes),
            (_, true) => Err("a table entry says all ones and has an offset"),
            (_, false) if offset & cluster_size.mask() != 0 => {
                Err("a cluster of bits is not on a cluster boundary")
            }
            (_, false) => Ok(BitmapCluster::Data(HostOffset::new(offset))),
        }
    }
}

/// Calls `take` with the index, the host offset and the fixed part of each entry. Checks the lengths as QEMU does at
/// open (`block/qcow2-bitmap.c`, `bitmap_list_load`), and nothing else of an entry.
///
/// # Errors
/// The entries do not fill the directory, a read fails, or `take` returns an error.
pub fn each_entry<S: Storage + ?Sized>(
    storage: &S,
    extension: &BitmapsExtension,
    mut take: impl FnMut(u32, HostOffset, &BitmapEntry) -> Result<(), MapError>,
) -> Result<(), MapError> {
    let BitmapsExtension { bitmaps, directory_bytes: mut left, directory_offset: mut at } =
        *extension;
    for index in 0..bitmaps {
        if left < BITMAP_FIXED_BYTES as u64 {
            let what = "it has fewer entries than the header says, or is cut short";
            return Err(MapError::BitmapDirectory { what });
        }
        let mut fixed = [0; BITMAP_FIXED_BYTES];
        storage.read_at(at, &mut fixed)?;
        let entry = BitmapEntry::parse(&fixed);
        let length_bytes = entry.length_bytes();
        left = left.checked_sub(length_bytes).ok_or(MapError::BitmapDirectory {
            what: "an entry reaches past the directory's end",
        })?;
        take(index, at, &entry)?;
        // The directory ends before 2^63, and this entry before the directory: the sum does not saturate.
        at += length_bytes;
    }
    match left {
        0 => Ok(()),
        _ => Err(MapError::BitmapDirectory { what: "it is longer than the header says" }),
    }
}

/// Fills `into` with the bits of the bitmap `entry` from byte `from` on: bit 0 of byte 0 stands for the first granule
/// of the disk. Bits behind its table are zeros. `index` is that of the bitmap in its directory, for errors.
///
/// # Errors
/// An entry of the table is malformed, or a read fails.
pub fn read_bits<S: Storage + ?Sized>(
    storage: &S,
    (index, entry): (u32, &BitmapEntry),
    cluster_size: ClusterSize,
    from: u64,
    into: &mut [u8],
) -> Result<(), MapError> {
    let (mut from, mut rest) = (from, into);
    while !rest.is_empty() {
        let inside = from & cluster_size.mask();
        let left = usize::try_from(cluster_size.bytes() - inside).unwrap_or(usize::MAX);
        let (piece, behind) = rest.split_at_mut(left.min(rest.len()));
        match cluster_of(storage, (index, entry), cluster_size, from)? {
            BitmapCluster::AllZeroes => piece.fill(0),
            BitmapCluster::AllOnes => piece.fill(0xff),
            BitmapCluster::Data(host) => storage.read_at(host + inside, piece)?,
        }
        from = from.saturating_add(piece.len() as u64);
        rest = behind;
    }
    Ok(())
}

/// Returns the cluster of bits that has the byte `from`.
fn cluster_of<S: Storage + ?Sized>(
    storage: &S,
    (index, entry): (u32, &BitmapEntry),
    cluster_size: ClusterSize,
    from: u64,
) -> Result<BitmapCluster, MapError> {
    let nth = from >> cluster_size.bits();
    if nth >= u64::from(entry.table_entries) {
        return Ok(BitmapCluster::AllZeroes);
    }
    let at: HostOffset = entry.table_offset + nth * 8;
    let word = BitmapTableEntry(u64::from_be_bytes(read_array(storage, at)?));
    word.cluster(cluster_size).map_err(|what| MapError::Bitmap { index, what })
}

/// The largest number of bits in a bitmap. With more, an assertion ends QEMU (`hbitmap_alloc`).
const MAX_BITS: u64 = 1 << 41;

/// The largest number of entries in all tables that are read. The entries take 1 GiB.
const MAX_READ_ENTRIES: u64 = 1 << 27;

/// A bitmap of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBitmap {
    /// The name. It ends before its first zero byte.
    pub name: Vec<u8>,
    /// Flag bits.
    pub flags: u32,
    /// log2 of the guest bytes per bit, 9 to 31.
    pub granularity_bits: u8,
}

/// Returns the bitmaps of the image in `storage`, in the order of their directory, with the checks that QEMU makes when
/// it loads them at open. A walk does not depend on them, so that only a reader that prints them calls this. Reads the
/// tables of bitmaps that
/// are not in use, and no bits (QEMU `block/qcow2-bitmap.c`, `qcow2_load_dirty_bitmaps`). The directory bounds the
/// length of all names: 64 MiB.
///
/// # Errors
/// QEMU refuses the directory, a bitmap or its table, the tables are too long to be read, or a read fails.
pub fn bitmap_list<S: Storage + ?Sized>(
    storage: &S,
    header: &Header,
    extension: Option<&BitmapsExtension>,
) -> Result<Vec<ListedBitmap>, MapError> {
    let Some(extension) = extension else { return Ok(Vec::new()) };
    let geometry = &header.geometry;
    let size_bytes = header.virtual_size_bytes();
    let (mut bitmaps, mut names) = (Vec::new(), BTreeSet::new());
    let (mut left, mut scratch) = (MAX_READ_ENTRIES, vec![0; PIECE_BYTES]);
    each_entry(storage, extension, |index, at, entry| {
        let fault = |what| MapError::Bitmap { index, what };
        if let Some(what) = entry.fault(geometry, size_bytes) {
            return Err(fault(what));
        }
        if bits_for(size_bytes, entry.granularity_bits) > MAX_BITS {
            return Err(fault("it has more than 2^41 bits"));
        }
        let name = name_of(storage, at, entry)?;
        let is_new = names.insert(name.clone());
        // QEMU looks at a name again only if the bits count.
        if !entry.in_use() {
            if !is_new {
                return Err(fault("another bitmap has the same name"));
            }
            left = left
                .checked_sub(entry.table_entries.into())
                .ok_or(MapError::TooLarge("tables of bitmaps"))?;
            check_table(storage, entry, geometry.cluster_size, &mut scratch, fault)?;
        }
        let BitmapEntry { flags, granularity_bits, .. } = *entry;
        bitmaps.push(ListedBitmap { name, flags, granularity_bits });
        Ok(())
    })?;
    Ok(bitmaps)
}

/// Reads the name of the directory entry at `at`, which has no extra data.
fn name_of<S: Storage + ?Sized>(
    storage: &S,
    at: HostOffset,
    entry: &BitmapEntry,
) -> Result<Vec<u8>, MapError> {
    let mut name = vec![0; usize::from(entry.name_bytes)];
    // The entry ends before 2^63.
    storage.read_at(at + BITMAP_FIXED_BYTES as u64, &mut name)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    name.truncate(end);
    Ok(name)
}

/// Checks the entries of a bitmap's table.
fn check_table<S: Storage + ?Sized>(
    storage: &S,
    entry: &BitmapEntry,
    cluster_size: ClusterSize,
    scratch: &mut [u8],
    fault: impl Fn(&'static str) -> MapError,
) -> Result<(), MapError> {
    let entries = u64::from(entry.table_entries);
    if entry.table_offset.get() > MAX_FILE_BYTES - entries * 8 {
        return Err(fault("its table lies past the end of the longest file"));
    }
    let _ = each_entries(storage, entry.table_offset, 0..entries, scratch, |piece| -> Flow {
        // Zeros are entries, too: all bits of their clusters are zeros.
        if let Entries::Read(_, words) = piece {
            for word in words {
                let word = BitmapTableEntry(u64::from_be_bytes(*word));
                word.cluster(cluster_size).map_err(&fault)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ClusterSize = ClusterSize::SMALLEST;

    #[test]
    fn table_entries_are_checked() {
        let data = BitmapCluster::Data(HostOffset::new(0x600));
        for (word, cluster) in
            [(0, BitmapCluster::AllZeroes), (1, BitmapCluster::AllOnes), (0x600, data)]
        {
            assert_eq!(BitmapTableEntry(word).cluster(SIZE), Ok(cluster));
        }
        for word in [2, 0x100, 1 << 56, 1 << 63, 0x601] {
            assert!(BitmapTableEntry(word).cluster(SIZE).is_err(), "{word:#x}");
        }
        assert!(BitmapTableEntry(0x600).cluster(ClusterSize::from_bits(10).unwrap()).is_err());
    }

    #[test]
    fn a_table_is_as_long_as_the_disk_needs_it() {
        // A cluster of 512 bytes has 4096 bits. Each bit stands for 512 guest bytes.
        for (size, entries) in [(0, 0), (1, 1), (2 << 20, 1), ((2 << 20) + 1, 2)] {
            assert_eq!(table_entries_for(size, 9, SIZE), entries, "{size}");
        }
    }
}
