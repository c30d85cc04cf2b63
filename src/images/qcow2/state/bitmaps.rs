//! The bitmaps that an image has, and what is left of them.

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::constants::{BITMAP_AUTO, BITMAP_IN_USE, MAX_BITMAP_NAME_BYTES};
use crate::images::content::WriteNumber;
use crate::images::qcow2::encoding::bitmaps::{BitmapFields, Directory};

use super::place::Place;

/// What a bitmap is from its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewBitmap {
    /// log2 of how many guest bytes one bit stands for, 9 to 31.
    pub granularity_bits: u8,
    /// The flag that says that it was not saved correctly.
    pub in_use: bool,
    /// The flag that says that it must reflect all changes of the disk.
    pub auto: bool,
    /// The length of its name. It is longer where names would be alike, and never longer than QEMU
    /// opens.
    pub name_bytes: u16,
}

/// What becomes of clusters of bits.
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

/// What goes when a bitmap is deleted, and what it leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leaving {
    /// The one bitmap goes; with the last one goes everything that says that there are bitmaps.
    #[default]
    Nothing,
    /// All bitmaps go; the autoclear bit stays, without an extension.
    Bit,
    /// All bitmaps go as if by a program that knows nothing of them: it has cleared the bit and left
    /// the extension as it was, and its leaks were repaired.
    Extension,
}

/// The bitmaps of an image, and where their directory lies.
#[derive(Debug, Default)]
pub struct Bitmaps {
    /// The bitmaps, and behind them spare ones whose buffers are reused.
    pub all: Vec<Bitmap>,
    pub live: usize,
    /// Where the directory lies.
    pub directory: Place,
    /// Bitmaps made so far: names are not used again.
    pub made: u32,
    /// Where there are no bitmaps: what is left of them.
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

    /// The length of a new bitmap's name: the empty one is a name too, but for one bitmap only.
    pub fn name_bytes(&self, wanted: u16) -> u16 {
        let digits = (self.made + 1).ilog10() as u16 + 1;
        let unnamed = self.live().iter().any(|one| one.name_bytes == 0);
        if wanted == 0 && !unnamed { 0 } else { wanted.clamp(digits, MAX_BITMAP_NAME_BYTES) }
    }
}

#[derive(Debug, Default)]
pub struct Bitmap {
    /// Its number, from 1.
    pub number: u32,
    pub granularity_bits: u8,
    pub in_use: bool,
    pub auto: bool,
    pub name_bytes: u16,
    pub table: Place,
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

    /// Takes out the entries from `first` on, one after the other, and gives their clusters.
    pub fn cut(&mut self, first: u64) -> impl Iterator<Item = u64> {
        let kept = self.entries.partition_point(|(index, _)| *index < first);
        self.entries.drain(kept..).filter_map(|(_, bits)| match bits {
            Bits::Ones => None,
            Bits::Stamp(cluster, _) => Some(cluster),
        })
    }
}

/// A cluster of bits that are not all zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bits {
    Ones,
    /// In a cluster of the file.
    Stamp(u64, WriteNumber),
}
