//! Operands that are one word of a list.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::formats::anatomy::Part;
use crate::formats::qcow2::geometry::Version;
use crate::images::content::Shape;
use crate::images::content::look::Look;
use crate::images::damage::Transform;
use crate::images::format::file_plan::ExtentForm;
use crate::images::qcow2::payload::Coding;
use crate::images::qcow2::placement::Policy;
use crate::images::qcow2::{FileEnd, Fill, Leaving};

use super::encoding::{Operand, OperandKind};

/// Defines a plain enum as an operand of one byte: its [`OperandKind`], its values and their words, in the order of the
/// encoding. If the fold is larger than the number of values, the remaining bytes decode to the first value.
macro_rules! words {
    ($type:ty, $kind:ident, $expected:literal, $($value:path = $word:literal),+ $(,)?) => {
        words!($type, $kind, fold [$($value),+].len(), $expected, $($value = $word),+);
    };
    (
        $type:ty, $kind:ident, fold $fold:expr, $expected:literal,
        $($value:path = $word:literal),+ $(,)?
    ) => {
        impl Operand for $type {
            const BYTES: usize = 1;
            const EXPECTED: &'static str = $expected;
            const KIND: OperandKind = OperandKind::$kind;

            fn decode(bytes: &mut &[u8]) -> Self {
                const VALUES: &[$type] = &[$($value),+];
                let index = usize::from(bytes.get_u8()) % $fold;
                VALUES.get(index).copied().unwrap_or(VALUES[0])
            }
            fn encode(self, out: &mut impl BufMut) {
                const VALUES: &[$type] = &[$($value),+];
                let at = VALUES.iter().position(|value| *value == self).unwrap_or(0);
                out.put_u8(at as u8);
            }
            fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($value => $word),+ })
            }
            fn parse(text: &str) -> Option<Self> {
                match text { $($word => Some($value),)+ _ => None }
            }
        }
    };
}

/// The treatment of an allocation when its cluster is zeroed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// The cluster is freed.
    #[default]
    No,
    /// The cluster stays allocated.
    Yes,
}

/// The change of subclusters by an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change {
    /// The subclusters hold data.
    #[default]
    Write,
    /// The subclusters read as zeros.
    Zero,
    /// The subclusters become unallocated.
    Unallocate,
}

/// A request about the bytes that the engine has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncKind {
    /// The engine flushes the disk.
    #[default]
    Flush,
    /// The power is cut. The engine does not notice.
    Cut,
    /// The engine's process is killed. The engine does not notice.
    Kill,
}

/// The use of the bytes in a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BytesKind {
    /// The payload of the next compressed cluster.
    #[default]
    Payload,
    /// The name of the next bitmap or snapshot.
    Name,
    /// The id of the next snapshot.
    Id,
    /// The body of the first unknown extension of the next header that has one.
    Extension,
    /// The byte of a compressed cluster that the next attack on one changes: a little-endian number.
    Inside,
    /// The data of the next write whose content is `own` or `repeat`.
    Data,
}

impl BytesKind {
    /// All uses, in the order of the encoding.
    pub const ALL: [Self; 6] =
        [Self::Payload, Self::Name, Self::Id, Self::Extension, Self::Inside, Self::Data];
}

/// The content of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataContent {
    /// As `write`, and in the build also behind the first 64 KiB of a cluster.
    #[default]
    Deep,
    /// Zeros.
    Zeros,
    /// The bytes that a guest reads there already.
    Same,
    /// The bytes that a guest read there before the writing.
    Former,
    /// Bytes of the program, then zeros.
    Own,
    /// Bytes of the program, repeated.
    Repeat,
    /// Entries of a table of the image.
    Entries,
    /// Refcounts.
    Counts,
}

/// The location of an image's guest data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataIn {
    /// In the image.
    #[default]
    Image,
    /// In an external data file.
    File,
    /// In an external data file that is a raw image of the disk.
    RawFile,
}

words!(
    DataIn,
    Other,
    fold 8,
    "image, file or raw_file",
    DataIn::Image = "image",
    DataIn::File = "file",
    DataIn::RawFile = "raw_file"
);
words!(
    Part,
    Other,
    fold 16,
    "l2, bitmap, l1, header, extension, refcount_table, refcount_block, snapshot, snapshot_table, \
     bitmap_directory, bitmap_table, payload, table, block_front, directory or metadata",
    Part::L2 = "l2",
    Part::Bitmap = "bitmap",
    Part::L1 = "l1",
    Part::Header = "header",
    Part::Extension = "extension",
    Part::RefcountTable = "refcount_table",
    Part::RefcountBlock = "refcount_block",
    Part::Snapshot = "snapshot",
    Part::SnapshotTable = "snapshot_table",
    Part::BitmapDirectory = "bitmap_directory",
    Part::BitmapTable = "bitmap_table",
    Part::Payload = "payload",
    Part::Table = "table",
    Part::BlockFront = "block_front",
    Part::Directory = "directory",
    Part::Metadata = "metadata",
);
words!(
    Transform,
    Other,
    fold 16,
    "flip, boundary, add, add_clusters, structure, own, past_end, misalign, swap or set",
    Transform::Flip = "flip",
    Transform::Boundary = "boundary",
    Transform::Add = "add",
    Transform::AddClusters = "add_clusters",
    Transform::Structure = "structure",
    Transform::Own = "own",
    Transform::PastEnd = "past_end",
    Transform::Misalign = "misalign",
    Transform::Swap = "swap",
    Transform::Set = "set",
);
words!(
    ExtentForm,
    Other,
    fold 8,
    "flat, vmfs, sparse, vmfs_sparse or se_sparse",
    ExtentForm::Flat = "flat",
    ExtentForm::Vmfs = "vmfs",
    ExtentForm::Sparse = "sparse",
    ExtentForm::Cowd = "vmfs_sparse",
    ExtentForm::SeSparse = "se_sparse",
);
words!(
    Look,
    Content,
    fold 16,
    "mbr, qcow2, vmdk, cowd, descriptor, vpc, vpc_end, vhdx, luks, vdi or parallels",
    Look::Mbr = "mbr",
    Look::Qcow2 = "qcow2",
    Look::Vmdk = "vmdk",
    Look::Cowd = "cowd",
    Look::Descriptor = "descriptor",
    Look::Vpc = "vpc",
    Look::VpcEnd = "vpc_end",
    Look::Vhdx = "vhdx",
    Look::Luks = "luks",
    Look::Vdi = "vdi",
    Look::Parallels = "parallels",
);
words!(Keep, Content, "no or yes", Keep::No = "no", Keep::Yes = "yes");
words!(
    Change,
    Content,
    "write, zero or unallocate",
    Change::Write = "write",
    Change::Zero = "zero",
    Change::Unallocate = "unallocate",
);
words!(
    SyncKind,
    Other,
    "flush, cut or kill",
    SyncKind::Flush = "flush",
    SyncKind::Cut = "cut",
    SyncKind::Kill = "kill",
);
words!(
    BytesKind,
    Content,
    fold 8,
    "payload, name, id, extension, inside or data",
    BytesKind::Payload = "payload",
    BytesKind::Name = "name",
    BytesKind::Id = "id",
    BytesKind::Extension = "extension",
    BytesKind::Inside = "inside",
    BytesKind::Data = "data",
);
words!(
    DataContent,
    Content,
    fold 16,
    "deep, zeros, same, former, own, repeat, entries or counts",
    DataContent::Deep = "deep",
    DataContent::Zeros = "zeros",
    DataContent::Same = "same",
    DataContent::Former = "former",
    DataContent::Own = "own",
    DataContent::Repeat = "repeat",
    DataContent::Entries = "entries",
    DataContent::Counts = "counts",
);
words!(
    Policy,
    Other,
    "append, first, random or mixed",
    Policy::Append = "append",
    Policy::FirstHole = "first",
    Policy::RandomHole = "random",
    Policy::Mixed = "mixed",
);
words!(
    Fill,
    Content,
    "zeroes, ones or bits",
    Fill::Zeroes = "zeroes",
    Fill::Ones = "ones",
    Fill::Bits = "bits",
);
words!(
    Leaving,
    Other,
    "nothing, bit or extension",
    Leaving::Nothing = "nothing",
    Leaving::Bit = "bit",
    Leaving::Extension = "extension",
);

/// The format's version. Three quarters of all bytes are version 3, which has more features.
impl Operand for Version {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "2 or 3";
    const KIND: OperandKind = OperandKind::Other;

    fn decode(bytes: &mut &[u8]) -> Self {
        if bytes.get_u8() % 4 == 1 { Self::V2 } else { Self::V3 }
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(u8::from(self == Self::V2));
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self == Self::V2 { "2" } else { "3" })
    }
    fn parse(text: &str) -> Option<Self> {
        match text {
            "2" => Some(Self::V2),
            "3" => Some(Self::V3),
            _ => None,
        }
    }
}

/// The kind of clusters past the end of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hidden {
    /// Data.
    #[default]
    Data,
    /// Compressed data.
    Compressed,
    /// Clusters that read as zeros, without an allocation.
    Zeros,
    /// Allocations without data.
    Allocated,
}

words!(
    FileEnd,
    Other,
    "cluster, sector, content, zeros or garbage",
    FileEnd::Cluster = "cluster",
    FileEnd::Sector = "sector",
    FileEnd::Content = "content",
    FileEnd::Zeros = "zeros",
    FileEnd::Garbage = "garbage",
);
words!(
    Hidden,
    Content,
    "data, compressed, zeros or allocated",
    Hidden::Data = "data",
    Hidden::Compressed = "compressed",
    Hidden::Zeros = "zeros",
    Hidden::Allocated = "allocated",
);

/// The words of the shapes, in the order of [`Shape::ALL`].
const SHAPES: [&str; Shape::ALL.len()] = [
    "zeros", "text", "speck", "eighth", "half", "most", "coins", "mixed", "noise", "nearly", "far",
];

/// The number of shapes that `compress` can name.
const FIRST_SHAPES: usize = 8;

fn parse_shape(text: &str, known: usize) -> Option<Shape> {
    let at = SHAPES.iter().position(|word| *word == text).filter(|at| *at < known)?;
    Some(Shape::ALL[at])
}

/// The first eight shapes.
impl Operand for Shape {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "zeros, text, speck, eighth, half, most, coins or mixed";
    const KIND: OperandKind = OperandKind::Content;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self::ALL[usize::from(bytes.get_u8()) % FIRST_SHAPES]
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self as u8);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHAPES[self as usize])
    }
    fn parse(text: &str) -> Option<Self> {
        parse_shape(text, FIRST_SHAPES)
    }
}

/// Any shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnyShape(pub Shape);

impl Operand for AnyShape {
    const BYTES: usize = 1;
    const EXPECTED: &'static str =
        "zeros, text, speck, eighth, half, most, coins, mixed, noise, nearly or far";
    const KIND: OperandKind = OperandKind::Content;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(Shape::ALL[usize::from(bytes.get_u8()) % Shape::ALL.len()])
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0 as u8);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHAPES[self.0 as usize])
    }
    fn parse(text: &str) -> Option<Self> {
        parse_shape(text, SHAPES.len()).map(Self)
    }
}

words!(
    Coding,
    Content,
    "usual, stored, fixed, quick, dynamic, window, longer, trailing, pieces, ended or largest",
    Coding::Usual = "usual",
    Coding::Stored = "stored",
    Coding::Fixed = "fixed",
    Coding::Quick = "quick",
    Coding::Dynamic = "dynamic",
    Coding::Window = "window",
    Coding::Longer = "longer",
    Coding::Trailing = "trailing",
    Coding::Pieces = "pieces",
    Coding::Ended = "ended",
    Coding::Largest = "largest",
);

/// Flags of a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitmapFlags(u8);

impl BitmapFlags {
    /// The bitmap was not saved correctly.
    pub const IN_USE: Self = Self(1);
    /// The bitmap must reflect all changes of the disk.
    pub const AUTO: Self = Self(2);
    /// The texts, indexed by value.
    const TEXTS: [&'static str; 4] = ["none", "in_use", "auto", "in_use,auto"];

    /// Reports whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Operand for BitmapFlags {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "none, in_use, auto or in_use,auto";
    const KIND: OperandKind = OperandKind::Content;

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u8() % 4)
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::TEXTS[usize::from(self.0)])
    }
    fn parse(text: &str) -> Option<Self> {
        let value = Self::TEXTS.iter().position(|known| *known == text)?;
        Some(Self(value as u8))
    }
}
