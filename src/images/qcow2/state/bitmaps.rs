//! The bitmaps of an image, and the remains of deleted ones.

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{BITMAP_AUTO, BITMAP_IN_USE, MAX_BITMAP_NAME_BYTES};
use crate::images::content::WriteNumber;
use crate::images::qcow2::encoding::bitmaps::{BitmapFields, Directory};

use super::given::GivenString;
use super::place::TablePlace;

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
