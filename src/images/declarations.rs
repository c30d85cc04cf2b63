//! The declarations of an image: the files below it, its features, its snapshots and bitmaps. The build records the
//! declarations that the program meant, and an oracle compares the image with them.

use std::ops::Range;

use crate::disk::image_format::ImageFormat;

/// The declarations that an image was meant to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declarations {
    /// The name of the backing file; empty for none.
    pub backing_name: Vec<u8>,
    /// The format of the backing file; `None` if the image does not name it.
    pub backing_format: Option<ImageFormat>,
    /// The name of the external data file; empty for none.
    pub data_file_name: Vec<u8>,
    /// The known incompatible, compatible and autoclear feature bits.
    pub features: [u64; 3],
    /// The length of each snapshot's VM state, in the order of the table.
    pub vm_state_bytes: Vec<u64>,
    /// Each bitmap, in the order of the directory.
    pub bitmaps: Vec<BitmapDeclaration>,
    /// The strings that the program gives.
    pub strings: DeclaredStrings,
}

/// A string of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringOwner {
    /// The name of the bitmap with this index.
    BitmapName(usize),
    /// The id of the snapshot with this index.
    SnapshotId(usize),
    /// The name of the snapshot with this index.
    SnapshotName(usize),
    /// The body of the first header extension of this type.
    Extension(u32),
}

/// The strings that a program gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeclaredStrings {
    bytes: Vec<u8>,
    all: Vec<(StringOwner, Range<usize>)>,
}

impl DeclaredStrings {
    /// Adds a string.
    pub fn add(&mut self, owner: StringOwner, string: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(string);
        self.all.push((owner, start..self.bytes.len()));
    }

    /// Returns each string with its owner.
    pub fn iter(&self) -> impl Iterator<Item = (StringOwner, &[u8])> {
        let string = |range: &Range<usize>| self.bytes.get(range.clone()).unwrap_or_default();
        self.all.iter().map(move |(owner, range)| (*owner, string(range)))
    }

    /// Removes all strings, and keeps the buffers.
    fn clear(&mut self) {
        self.bytes.clear();
        self.all.clear();
    }
}

/// The directory entry that a bitmap was meant to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapDeclaration {
    /// The bits are not valid.
    pub in_use: bool,
    /// Writers must keep the bitmap up to date.
    pub auto: bool,
    /// The binary logarithm of the number of guest bytes for one bit.
    pub granularity_bits: u8,
}

impl Declarations {
    /// Removes all declarations, and keeps the buffers.
    pub fn clear(&mut self) {
        self.backing_name.clear();
        self.data_file_name.clear();
        self.vm_state_bytes.clear();
        self.bitmaps.clear();
        self.strings.clear();
        (self.backing_format, self.features) = (None, [0; 3]);
    }
}
