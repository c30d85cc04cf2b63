//! The state that a [`Builder`](super::Builder) keeps between operations.

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{
    BITMAP_AUTO, BITMAP_IN_USE, MAX_BITMAP_NAME_BYTES, SNAPSHOT_V3_EXTRA_BYTES as V3_EXTRA_BYTES,
};
use crate::images::content::{STAMP_BYTES, WriteNumber};
use crate::images::files::image::Image;

use super::encoding::{BitmapFields, Directory};
use super::payload::GivenPayload;
use super::tables::TableId;

/// The snapshots of an image, and the location of their table.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// The snapshots, followed by spare ones whose buffers are reused.
    pub all: Vec<Snapshot>,
    pub live: usize,
    /// The location of the snapshot table.
    pub table: TablePlace,
    /// The number of snapshots taken so far. Ids are not used again.
    pub taken: u32,
}

impl Snapshots {
    pub fn clear(&mut self) {
        (self.live, self.table, self.taken) = (0, (0, 0), 0);
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    pub fn live(&self) -> &[Snapshot] {
        &self.all[..self.live]
    }

    pub fn table_bytes(&self) -> u64 {
        self.live().iter().map(|one| one.entry(HostOffset::ZERO).length_bytes()).sum()
    }
}

#[derive(Debug, Default)]
pub struct Snapshot {
    pub l1: L1,
    /// The size of the disk when the snapshot was taken.
    pub size_bytes: u64,
    /// The number of the snapshot, from 1. It is the id.
    pub number: u32,
    /// The length of the VM state.
    pub vm_state_bytes: u64,
    pub details: SnapshotDetails,
}

/// The details of a snapshot beside the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotDetails {
    /// The length of the entry's extra data; in version 3 at least 16. If they are too short for the disk's size,
    /// which needs 16 bytes, the disk keeps its size while the snapshot exists.
    pub extra_bytes: u32,
    /// The saved state of the guest's memory and devices, if any.
    pub vm_state: Option<VmState>,
    /// The length of the id, which is a number in decimal with leading zeros. It is at least as long as the number,
    /// or empty if no other id is.
    pub id_bytes: u16,
    /// The length of the name, which is the same number.
    pub name_bytes: u16,
    /// The id, if the program gives it. Its length is `id_bytes`.
    pub id: Option<GivenString>,
    /// The name, if the program gives it. Its length is `name_bytes`.
    pub name: Option<GivenString>,
    /// Date, clock and instruction count are not zero.
    pub timed: bool,
}

impl SnapshotDetails {
    /// The details of a plain snapshot.
    pub const PLAIN: Self = Self {
        extra_bytes: V3_EXTRA_BYTES,
        vm_state: None,
        id_bytes: 1,
        name_bytes: 1,
        id: None,
        name: None,
        timed: false,
    };
}

impl Default for SnapshotDetails {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// A VM state to be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmState {
    /// The number of written clusters.
    pub clusters: u64,
    /// log2 of the distance between two written clusters, in clusters. The state has holes, and may be longer than 4
    /// GiB.
    pub spread_bits: u32,
    /// The number of the write.
    pub write: WriteNumber,
}

/// The fixed properties of a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewBitmap {
    /// log2 of the guest bytes per bit, 9 to 31.
    pub granularity_bits: u8,
    /// The flag for a bitmap that was not saved correctly.
    pub in_use: bool,
    /// The flag for a bitmap that must reflect all changes of the disk.
    pub auto: bool,
    /// The length of the name. The name is longer if two names would be equal otherwise, and never longer than QEMU
    /// opens.
    pub name_bytes: u16,
    /// The name, if the program gives it.
    pub name: Option<GivenString>,
}

/// The new content of clusters of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// All zeroes, without a cluster.
    #[default]
    Zeroes,
    /// All ones, without a cluster.
    Ones,
    /// Bits in a cluster.
    Bits,
}

/// The bitmaps that a deletion removes, and the remains that it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaving {
    /// One bitmap is removed. With the last bitmap, the extension and the bit disappear.
    #[default]
    Nothing,
    /// All bitmaps are removed. The autoclear bit stays, without an extension.
    Bit,
    /// All bitmaps are removed, as by a program that does not support bitmaps: it has cleared the bit and kept the
    /// extension, and its leaks were repaired.
    Extension,
}

/// The bitmaps of an image, and the location of their directory.
#[derive(Debug, Default)]
pub struct Bitmaps {
    /// The bitmaps, followed by spare ones whose buffers are reused.
    pub all: Vec<Bitmap>,
    pub live: usize,
    /// The location of the directory.
    pub directory: TablePlace,
    /// The number of bitmaps made so far. Names are not used again.
    pub made: u32,
    /// The autoclear bit stays set without a bitmap.
    pub bit_left: bool,
    pub extension_left: Option<Directory>,
}

impl Bitmaps {
    pub fn clear(&mut self) {
        (self.live, self.directory, self.made) = (0, (0, 0), 0);
        (self.bit_left, self.extension_left) = (false, None);
    }

    pub fn live(&self) -> &[Bitmap] {
        &self.all[..self.live]
    }

    pub fn directory_bytes(&self) -> u64 {
        self.live().iter().map(|one| one.entry(HostOffset::ZERO).length_bytes()).sum()
    }

    /// Returns the length of a new bitmap's name. Only one bitmap may have an empty name.
    pub fn name_bytes(&self, wanted: u16) -> u16 {
        let digits = (self.made + 1).ilog10() as u16 + 1;
        let unnamed = self.live().iter().any(|one| one.name_bytes == 0);
        if wanted == 0 && !unnamed { 0 } else { wanted.clamp(digits, MAX_BITMAP_NAME_BYTES) }
    }
}

#[derive(Debug, Default)]
pub struct Bitmap {
    /// The number of the bitmap, from 1.
    pub number: u32,
    pub granularity_bits: u8,
    pub in_use: bool,
    pub auto: bool,
    pub name_bytes: u16,
    /// The name, if the program gives it.
    pub name: Option<GivenString>,
    pub table: TablePlace,
    pub table_entries: u64,
    /// The entries that are not all zeroes, sorted by index.
    pub entries: Vec<(u64, Bits)>,
}

impl Bitmap {
    pub fn entry(&self, table_offset: HostOffset) -> BitmapFields {
        let in_use = if self.in_use { BITMAP_IN_USE } else { 0 };
        let auto = if self.auto { BITMAP_AUTO } else { 0 };
        let table_entries = u32::try_from(self.table_entries).unwrap_or(u32::MAX);
        let Self { granularity_bits, name_bytes, .. } = *self;
        let flags = in_use | auto;
        BitmapFields { table_offset, table_entries, flags, granularity_bits, name_bytes }
    }

    /// Removes the entries from `first` on, one after the other, and yields their clusters.
    pub fn cut(&mut self, first: u64) -> impl Iterator<Item = u64> {
        let kept = self.entries.partition_point(|(index, _)| *index < first);
        self.entries.drain(kept..).filter_map(|(_, bits)| match bits {
            Bits::Ones => None,
            Bits::Stamp(cluster, _) => Some(cluster),
        })
    }
}

/// The content of a cluster of bits that are not all zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Ones,
    /// In a cluster of the file.
    Stamp(u64, WriteNumber),
}

/// An L1 table, of the active disk or of a snapshot.
#[derive(Debug, Default)]
pub struct L1 {
    /// The location; empty for a disk of size 0.
    pub place: TablePlace,
    /// The number of entries.
    pub entries: u64,
    /// The entries that are not empty, sorted by index.
    pub tables: Vec<(u64, TableId)>,
}

impl L1 {
    /// Removes everything, and keeps the buffer.
    pub fn clear(&mut self) {
        (self.place, self.entries) = ((0, 0), 0);
        self.tables.clear();
    }

    /// Returns the L2 table at `index`.
    #[inline]
    pub fn get(&self, index: u64) -> Option<TableId> {
        let at = self.tables.binary_search_by_key(&index, |(index, _)| *index).ok()?;
        Some(self.tables[at].1)
    }

    /// Sets the L2 table at `index`.
    pub fn set(&mut self, index: u64, table: TableId) {
        match self.tables.binary_search_by_key(&index, |(index, _)| *index) {
            Ok(at) => self.tables[at].1 = table,
            Err(at) => self.tables.insert(at, (index, table)),
        }
    }

    /// Returns the entries that are not empty, in order.
    pub fn tables(&self) -> &[(u64, TableId)] {
        &self.tables
    }

    /// Replaces this table by a copy of `original` that has no location yet. The copy has the same length, but only the
    /// first `kept` of the entries that are not empty.
    pub fn copy_entries(&mut self, original: &Self, kept: usize) {
        (self.place, self.entries) = ((0, 0), original.entries);
        self.tables.clear();
        self.tables.extend_from_slice(&original.tables[..kept]);
    }

    /// Takes over the entries of `other`, and keeps its own place.
    pub fn become_entries(&mut self, other: &Self) {
        self.tables.clone_from(&other.tables);
    }
}

/// The end of a file. A reader reads zeros past it, and `qemu-img check` accepts a last cluster that is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileEnd {
    /// The end of the last cluster.
    #[default]
    Cluster,
    /// The end of the sector that was written last, inside the last cluster.
    Sector,
    /// The byte that was written last.
    Content,
    /// A tail of zeros after the last cluster.
    Zeros,
    /// A tail of garbage after the last cluster.
    Garbage,
}

/// The parts of a file beyond the disk that the program asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileState {
    pub end: FileEnd,
    /// The length of the tail after the last cluster.
    pub tail_bytes: u64,
    /// Tables may map clusters past the end of the disk.
    pub beyond: bool,
}

/// The end of the last payload: at `offset`, in `cluster`, which it touches.
#[derive(Clone, Copy, Debug)]
pub struct PayloadEnd {
    pub cluster: u64,
    pub offset: HostOffset,
}

/// A string in a builder's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GivenString {
    start: u32,
    length_bytes: u16,
}

impl GivenString {
    /// Returns the length of the string.
    pub fn length_bytes(self) -> u16 {
        self.length_bytes
    }
}

/// The strings and the payloads of an image.
#[derive(Debug, Default)]
pub struct Given {
    strings: Vec<u8>,
    payloads: Vec<GivenPayload>,
}

impl Given {
    pub fn clear(&mut self) {
        self.strings.clear();
        self.payloads.clear();
    }

    /// Reports whether there is room for another payload.
    pub fn has_room(&self) -> bool {
        self.payloads.len() < usize::from(u16::MAX)
    }

    /// Adds a payload, and returns its index.
    pub fn add_payload(&mut self, payload: GivenPayload) -> u16 {
        self.payloads.push(payload);
        // There was room.
        (self.payloads.len() - 1) as u16
    }

    /// Returns the content behind the stamp of a payload.
    pub fn content(&self, index: u16) -> &[u8] {
        &self.payloads[usize::from(index)].content
    }

    /// Writes a payload with its stamp.
    pub fn write_payload(
        &self,
        image: &mut Image,
        at: HostOffset,
        index: u16,
        stamp: &[u8; STAMP_BYTES],
    ) {
        let GivenPayload { bytes, stamp_at, .. } = &self.payloads[usize::from(index)];
        match stamp_at {
            Some(stamp_at) => {
                let (before, rest) = bytes.split_at(*stamp_at);
                image.write_parts(at, &[before, stamp, &rest[STAMP_BYTES..]], &[]);
            }
            None => image.write(at, bytes),
        }
    }

    /// Returns the bytes of a string.
    pub fn string(&self, string: GivenString) -> &[u8] {
        &self.strings[string.start as usize..][..usize::from(string.length_bytes)]
    }

    /// Adds a string of at most `most` bytes.
    pub fn add_string(&mut self, bytes: &[u8], most: usize) -> GivenString {
        let bytes = bytes.get(..most).unwrap_or(bytes);
        // A program has far less than 4 GiB of bytes, and each string at most 4,095.
        let string =
            GivenString { start: self.strings.len() as u32, length_bytes: bytes.len() as u16 };
        self.strings.extend_from_slice(bytes);
        string
    }
}

/// The location of a table: its first cluster, and the number of clusters.
pub type TablePlace = (u64, u64);
