//! The bytes of on-disk structures, as the build writes them, and sizes that follow from a geometry.
//!
//! The walker and the recount decode the same structures with `formats::qcow2`. The build shares only constants,
//! declared fields and offset types with them, and calculates everything else itself: if both used one function, a
//! mistake in it would cancel out, and no oracle would see it. `tests/qemu/damaged/headers.rs` compares the fields with
//! those that qemu-img reads.

use std::ops::Range;

use crate::disk::clusters::{ClusterSize, SUBCLUSTERS};
use crate::disk::offsets::HostOffset;
use crate::formats::anatomy::StructureField;
use crate::formats::qcow2::constants::{
    BITMAP_ALL_ONES, BITMAP_DIRTY_TRACKING, BITMAP_FIXED_BYTES, BITMAPS_EXTENSION_BYTES, COPIED,
    L2_COMPRESSED, L2_ZERO, MAGIC, SNAPSHOT_FIXED_BYTES, SNAPSHOT_KNOWN_EXTRA_BYTES,
    V3_LENGTH_BYTES, bitmap_entry, bitmaps_extension, header, snapshot_entry,
};
use crate::formats::qcow2::geometry::{Compression, Geometry, Version};

/// Copies the bytes of a field to `offset` of a structure. Bytes past the end of the structure are dropped.
fn put(structure: &mut [u8], offset: usize, field: &[u8]) {
    if let Some(place) = structure.get_mut(offset..offset + field.len()) {
        place.copy_from_slice(field);
    }
}

/// Writes a number to a field of a structure, as far as it has room. A structure may end before the field.
fn put_field(structure: &mut [u8], field: StructureField, number: u64) {
    let bytes = number.to_be_bytes();
    put(structure, field.at, &bytes[bytes.len() - field.width_bytes..]);
}

/// Rounds up to a multiple of 8, as directories and tables pad their entries.
const fn padded(length_bytes: u64) -> u64 {
    (length_bytes + 7) & !7
}

/// The fixed part of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedPart {
    /// Version, cluster size, refcount width and the features that change structures.
    pub geometry: Geometry,
    /// The size of the disk.
    pub size_bytes: u64,
    /// The number of entries in the active L1 table.
    pub l1_entries: u32,
    /// The host offset of the active L1 table.
    pub l1_offset: HostOffset,
    /// The host offset of the refcount table.
    pub refcount_table_offset: HostOffset,
    /// The length of the refcount table in clusters.
    pub refcount_table_clusters: u32,
    /// The number of snapshots.
    pub snapshots: u32,
    /// The host offset of the snapshot table.
    pub snapshots_offset: HostOffset,
    /// The host offset of the backing file's name; 0 without a backing file.
    pub backing_file_offset: HostOffset,
    /// The length of the backing file's name.
    pub backing_file_bytes: u32,
    /// Incompatible feature bits.
    pub incompatible: u64,
    /// Compatible feature bits.
    pub compatible: u64,
    /// Autoclear feature bits.
    pub autoclear: u64,
    /// The length of the header. The extensions begin there.
    pub header_length_bytes: u32,
}

impl FixedPart {
    /// Writes all fields that the version and the header's length have room for to the beginning of `out`.
    pub fn write(&self, out: &mut [u8]) {
        let is_v3 = self.geometry.version == Version::V3;
        let mut put = |field, number| put_field(out, field, number);
        put(header::MAGIC, MAGIC.into());
        put(header::VERSION, if is_v3 { 3 } else { 2 });
        put(header::BACKING_FILE_OFFSET, self.backing_file_offset.get());
        put(header::BACKING_FILE_SIZE, self.backing_file_bytes.into());
        put(header::CLUSTER_BITS, self.geometry.cluster_size.bits().into());
        put(header::SIZE, self.size_bytes);
        // The field crypt_method stays 0.
        put(header::L1_SIZE, self.l1_entries.into());
        put(header::L1_TABLE_OFFSET, self.l1_offset.get());
        put(header::REFCOUNT_TABLE_OFFSET, self.refcount_table_offset.get());
        put(header::REFCOUNT_TABLE_CLUSTERS, self.refcount_table_clusters.into());
        put(header::NB_SNAPSHOTS, self.snapshots.into());
        put(header::SNAPSHOTS_OFFSET, self.snapshots_offset.get());
        if !is_v3 {
            return;
        }
        put(header::INCOMPATIBLE_FEATURES, self.incompatible);
        put(header::COMPATIBLE_FEATURES, self.compatible);
        put(header::AUTOCLEAR_FEATURES, self.autoclear);
        put(header::REFCOUNT_ORDER, self.geometry.refcount_order.into());
        put(header::HEADER_LENGTH, self.header_length_bytes.into());
        if self.header_length_bytes > V3_LENGTH_BYTES {
            put(header::COMPRESSION_TYPE, (self.geometry.compression == Compression::Zstd).into());
        }
    }
}

/// The length of a sector, the unit of lengths in descriptors of compressed clusters.
const SECTOR_BYTES: u64 = 512;

const fn flag(bit: u64, is_set: bool) -> u64 {
    if is_set { bit } else { 0 }
}

/// Returns an L1 entry that points to an L2 table.
pub fn l1_entry(table: HostOffset, copied: bool) -> u64 {
    table.get() + flag(COPIED, copied)
}

/// Returns the L2 entry of a host cluster. Under extended L2, the bitmap states the content.
pub fn allocated(host: HostOffset, copied: bool) -> u64 {
    host.get() + flag(COPIED, copied)
}

/// Returns the L2 entry of a cluster that reads as zeros, with or without a host cluster; not under extended L2.
pub fn zeros(host: Option<HostOffset>, copied: bool) -> u64 {
    let allocation = host.map_or(0, |host| allocated(host, copied));
    allocation + L2_ZERO
}

/// Returns the L2 entry of a compressed cluster. Its payload has `length_bytes` (at least 1) from `offset` on. The
/// descriptor has the offset in its lowest bits, and above it the number of sectors after the first one
/// (specification, "Compressed Clusters Descriptor").
pub fn compressed(offset: HostOffset, length_bytes: u32, cluster_size: ClusterSize) -> u64 {
    let offset_bits = 62 - (cluster_size.bits() - 8);
    let in_first_sector = offset.get() % SECTOR_BYTES;
    let sectors = (in_first_sector + u64::from(length_bytes)).div_ceil(SECTOR_BYTES);
    L2_COMPRESSED + (sectors.saturating_sub(1) << offset_bits) + offset.get()
}

/// The states of the 32 subclusters of a cluster. Bit i stands for subcluster i.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subclusters {
    /// The subclusters whose data lie in the host cluster.
    pub allocated: u32,
    /// The subclusters that read as zeros.
    pub zero: u32,
}

impl Subclusters {
    /// Every subcluster is allocated.
    pub const ALL_ALLOCATED: Self = Self { allocated: u32::MAX, zero: 0 };
    /// Every subcluster reads as zeros.
    pub const ALL_ZERO: Self = Self { allocated: 0, zero: u32::MAX };

    /// Returns the second half of an extended L2 entry (specification, "Extended L2 Entries").
    pub fn bitmap(self) -> u64 {
        u64::from(self.zero) * (1 << 32) + u64::from(self.allocated)
    }
}

/// Writes `count` to the `entries` of a part of a block. Their bytes must be zeros. Counts are `1 << refcount_order`
/// bits wide. Counts of less than a byte fill each byte from its lowest bit on; wider ones are big-endian. Entries
/// past the end of `part` and bits of `count` beyond the width are dropped.
#[inline]
pub fn put_run(part: &mut [u8], refcount_order: u32, entries: Range<usize>, count: u64) {
    let width_bits = 1usize << refcount_order;
    let per_word = 64 / width_bits;
    let word = repeated(count, width_bits);
    let mut index = entries.start;
    while index < entries.end {
        let byte = index * width_bits / 8;
        if index.is_multiple_of(per_word)
            && index + per_word <= entries.end
            && let Some(whole) = part.get_mut(byte..byte + 8)
        {
            whole.copy_from_slice(&word);
            index += per_word;
        } else {
            put_one(part, width_bits, index, count);
            index += 1;
        }
    }
}

/// Returns eight bytes in which each entry is `count`.
#[inline]
fn repeated(count: u64, width_bits: usize) -> [u8; 8] {
    // A word with a one at the lowest bit of each entry: all ones, divided by the ones of a single entry.
    let one_entry = u64::MAX >> (64 - width_bits);
    let lowest_bits = u64::MAX / one_entry;
    ((count & one_entry) * lowest_bits).to_be_bytes()
}

#[inline]
fn put_one(part: &mut [u8], width_bits: usize, index: usize, count: u64) {
    let first_bit = index * width_bits;
    if width_bits >= 8 {
        let width_bytes = width_bits / 8;
        put(part, first_bit / 8, &count.to_be_bytes()[8 - width_bytes..]);
    } else if let Some(byte) = part.get_mut(first_bit / 8) {
        let kept = count % (1 << width_bits);
        *byte |= (kept << (first_bit % 8)) as u8;
    }
}

/// An entry of the snapshot table, without its strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFields {
    /// The host offset of the snapshot's L1 table.
    pub l1_offset: HostOffset,
    /// The number of entries in this L1 table.
    pub l1_entries: u32,
    /// The length of the id string.
    pub id_bytes: u16,
    /// The length of the name.
    pub name_bytes: u16,
    /// The date of the snapshot, in seconds since 1970.
    pub date_seconds: u32,
    /// The nanoseconds within this second.
    pub date_nanoseconds: u32,
    /// The running time of the guest in nanoseconds.
    pub vm_clock_nanoseconds: u64,
    /// The length of the VM state. The fixed part contains it if it fits into 32 bits, and 0 if not.
    pub vm_state_bytes: u64,
    /// The size of the disk.
    pub disk_bytes: u64,
    /// The number of instructions that the guest has run; 0 if unknown.
    pub instructions: u64,
    /// The length of the extra data: the last three fields, as far as they fit, followed by unknown data.
    pub extra_bytes: u32,
}

impl SnapshotFields {
    /// Returns the length of the whole entry, with its padding.
    pub fn length_bytes(&self) -> u64 {
        let strings = u64::from(self.id_bytes) + u64::from(self.name_bytes);
        padded(SNAPSHOT_FIXED_BYTES as u64 + u64::from(self.extra_bytes) + strings)
    }

    /// Writes the fixed part and the extra data to the beginning of `out`, and returns the rest. Unknown extra data are
    /// filled with `unknown`.
    pub fn write<'o>(&self, out: &'o mut [u8], unknown: u8) -> &'o mut [u8] {
        let known_bytes = SNAPSHOT_KNOWN_EXTRA_BYTES.min(self.extra_bytes as usize);
        let (entry, strings) = out.split_at_mut(SNAPSHOT_FIXED_BYTES + self.extra_bytes as usize);
        let (known, others) = entry.split_at_mut(SNAPSHOT_FIXED_BYTES + known_bytes);
        others.fill(unknown);
        let mut whole = [0; SNAPSHOT_FIXED_BYTES + SNAPSHOT_KNOWN_EXTRA_BYTES];
        let short_state = u32::try_from(self.vm_state_bytes).unwrap_or(0);
        let mut put = |field, number| put_field(&mut whole, field, number);
        put(snapshot_entry::L1_TABLE_OFFSET, self.l1_offset.get());
        put(snapshot_entry::L1_SIZE, self.l1_entries.into());
        put(snapshot_entry::ID_STR_SIZE, self.id_bytes.into());
        put(snapshot_entry::NAME_SIZE, self.name_bytes.into());
        put(snapshot_entry::DATE_SEC, self.date_seconds.into());
        put(snapshot_entry::DATE_NSEC, self.date_nanoseconds.into());
        put(snapshot_entry::VM_CLOCK_NSEC, self.vm_clock_nanoseconds);
        put(snapshot_entry::VM_STATE_SIZE, short_state.into());
        put(snapshot_entry::EXTRA_DATA_SIZE, self.extra_bytes.into());
        put(snapshot_entry::VM_STATE_SIZE_LARGE, self.vm_state_bytes);
        put(snapshot_entry::DISK_SIZE, self.disk_bytes);
        put(snapshot_entry::ICOUNT, self.instructions);
        // The extra data may end inside a field.
        known.copy_from_slice(&whole[..known.len()]);
        strings
    }
}

/// The content of the bitmaps extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The number of bitmaps.
    pub bitmaps: u32,
    /// The length of the directory with all its entries.
    pub length_bytes: u64,
    /// The host offset of the directory.
    pub offset: HostOffset,
}

impl Directory {
    /// Returns the content of the header extension.
    pub fn extension(&self) -> [u8; BITMAPS_EXTENSION_BYTES] {
        let mut content = [0; BITMAPS_EXTENSION_BYTES];
        // The reserved field stays 0.
        put_field(&mut content, bitmaps_extension::NB_BITMAPS, self.bitmaps.into());
        put_field(&mut content, bitmaps_extension::BITMAP_DIRECTORY_SIZE, self.length_bytes);
        put_field(&mut content, bitmaps_extension::BITMAP_DIRECTORY_OFFSET, self.offset.get());
        content
    }
}

/// An entry of the bitmap directory, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapFields {
    /// The host offset of the bitmap table.
    pub table_offset: HostOffset,
    /// The number of entries in the bitmap table.
    pub table_entries: u32,
    /// Flag bits.
    pub flags: u32,
    /// log2 of the guest bytes per bit.
    pub granularity_bits: u8,
    /// The length of the name.
    pub name_bytes: u16,
}

impl BitmapFields {
    /// Returns the length of the whole entry, with its padding.
    pub fn length_bytes(&self) -> u64 {
        padded(BITMAP_FIXED_BYTES as u64 + u64::from(self.name_bytes))
    }

    /// Writes the fixed part to the beginning of `out`, and returns the place of the name.
    pub fn write<'o>(&self, out: &'o mut [u8]) -> &'o mut [u8] {
        let (fixed, behind) = out.split_at_mut(BITMAP_FIXED_BYTES);
        // The length of the extra data stays 0.
        put_field(fixed, bitmap_entry::BITMAP_TABLE_OFFSET, self.table_offset.get());
        put_field(fixed, bitmap_entry::BITMAP_TABLE_SIZE, self.table_entries.into());
        put_field(fixed, bitmap_entry::FLAGS, self.flags.into());
        put_field(fixed, bitmap_entry::TYPE, BITMAP_DIRTY_TRACKING.into());
        put_field(fixed, bitmap_entry::GRANULARITY_BITS, self.granularity_bits.into());
        put_field(fixed, bitmap_entry::NAME_SIZE, self.name_bytes.into());
        &mut behind[..usize::from(self.name_bytes)]
    }
}

/// The bitmap table entry of a cluster of bits that are all ones.
pub const ONES: u64 = BITMAP_ALL_ONES;

/// Returns the bitmap table entry of a cluster of bits.
pub fn bits_at(host: HostOffset) -> u64 {
    host.get()
}

/// Returns the number of bits in a bitmap of a whole disk.
pub fn bits_of_disk(size_bytes: u64, granularity_bits: u8) -> u64 {
    let whole = size_bytes >> granularity_bits;
    whole + u64::from(size_bytes != whole << granularity_bits)
}

/// Returns the number of entries in the table of such a bitmap.
pub fn table_entries(size_bytes: u64, granularity_bits: u8, cluster_size: ClusterSize) -> u64 {
    let bits_per_cluster = cluster_size.bytes() * 8;
    bits_of_disk(size_bytes, granularity_bits).div_ceil(bits_per_cluster)
}

/// Sizes that follow from a geometry, for the code that builds images.
pub trait Sizes {
    /// Returns the length of an L2 entry.
    fn l2_entry_bytes(&self) -> u64;

    /// Returns log2 of the number of entries in an L2 table, which is always one cluster long.
    fn l2_bits(&self) -> u32;

    /// Returns the number of entries in an L2 table.
    fn l2_entries(&self) -> u64;

    /// Returns the number of guest bytes that an L2 table maps, at most 2^39.
    fn l2_span_bytes(&self) -> u64;

    /// Returns the size of a cell, the smallest unit of mapping: a subcluster under extended L2, otherwise a cluster.
    fn cell_bytes(&self) -> u64;

    /// Returns the number of L1 entries that a disk of `size_bytes` needs.
    fn l1_entries_for(&self, size_bytes: u64) -> u64;

    /// Returns the number of clusters that a refcount block counts: from 64 (512-byte clusters, 64-bit counts) to
    /// 2^24.
    fn refcounts_per_block(&self) -> u64;

    /// Returns the largest refcount that a block can store.
    fn max_refcount(&self) -> u64;
}

impl Sizes for Geometry {
    #[inline]
    fn l2_entry_bytes(&self) -> u64 {
        // The entry, and the bitmap of its subclusters.
        8 + if self.extended_l2 { 8 } else { 0 }
    }

    #[inline]
    fn l2_bits(&self) -> u32 {
        // A cluster has 2^cluster_bits bytes, and an entry 2^3 of them; the bitmap doubles that.
        self.cluster_size.bits() - 3 - u32::from(self.extended_l2)
    }

    #[inline]
    fn l2_entries(&self) -> u64 {
        1 << self.l2_bits()
    }

    #[inline]
    fn l2_span_bytes(&self) -> u64 {
        self.l2_entries() << self.cluster_size.bits()
    }

    #[inline]
    fn cell_bytes(&self) -> u64 {
        let cells = if self.extended_l2 { SUBCLUSTERS } else { 1 };
        self.cluster_size.bytes() >> cells.ilog2()
    }

    #[inline]
    fn l1_entries_for(&self, size_bytes: u64) -> u64 {
        size_bytes.div_ceil(self.l2_span_bytes())
    }

    #[inline]
    fn refcounts_per_block(&self) -> u64 {
        let block_bits = self.cluster_size.bytes() * 8;
        block_bits >> self.refcount_order
    }

    #[inline]
    fn max_refcount(&self) -> u64 {
        u64::MAX >> (64 - (1 << self.refcount_order))
    }
}

#[cfg(test)]
mod tests;
