//! Operands that are one word of a list.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::formats::anatomy::Part;
use crate::formats::qcow2::geometry::Version;
use crate::images::content::Look;
use crate::images::content::Shape;
use crate::images::damage::Transform;
use crate::images::format::file_plan::ExtentForm;
use crate::images::format::looks;
use crate::images::qcow2::payload::Coding;
use crate::images::qcow2::placement::Policy;
use crate::images::qcow2::{FileEnd, Fill, Leaving};

use super::encoding::{Operand, OperandKind, operand};

/// Declares a plain enum as an operand of one byte: its [`OperandKind`], its values and their words, in the order of
/// the encoding. Decoding takes the byte modulo `fold`, by default the number of values. If `fold` is larger, the
/// remaining numbers decode to the first value. The form with `enum` defines the type, too.
macro_rules! words {
    (@list ($($text:literal)*) $last:literal) => { concat!($($text,)* $last) };
    (@list ($($text:literal)*) $word:literal $last:literal) => {
        concat!($($text,)* $word, " or ", $last)
    };
    (@list ($($text:literal)*) $word:literal $($rest:literal)+) => {
        words!(@list ($($text)* $word ", ") $($rest)+)
    };
    (
        $(#[$doc:meta])*
        pub enum $type:ident: $kind:ident $(, fold $fold:literal)? {
            $(#[$first_doc:meta])* $first:ident = $first_word:literal,
            $($(#[$value_doc:meta])* $value:ident = $word:literal,)+
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $type {
            $(#[$first_doc])*
            #[default]
            $first,
            $($(#[$value_doc])* $value,)+
        }

        words!($type, $kind, $(fold = $fold,)? $first = $first_word, $($value = $word),+);
    };
    ($type:ident, $kind:ident, fold = $fold:expr, $($value:ident = $word:literal),+ $(,)?) => {
        operand!(
            $type,
            u8,
            OperandKind::$kind,
            words!(@list () $($word)+),
            |number| {
                const VALUES: &[$type] = &[$($type::$value),+];
                VALUES.get(usize::from(number) % $fold).copied().unwrap_or(VALUES[0])
            },
            |it| {
                const VALUES: &[$type] = &[$($type::$value),+];
                VALUES.iter().position(|value| *value == it).unwrap_or(0) as u8
            },
            |it, f| f.write_str(match it { $($type::$value => $word),+ }),
            |text| match text { $($word => Some($type::$value),)+ _ => None },
        );
    };
    ($type:ident, $kind:ident, $($value:ident = $word:literal),+ $(,)?) => {
        words!($type, $kind, fold = [$($word),+].len(), $($value = $word),+);
    };
}

words! {
    /// The location of an image's guest data.
    pub enum DataIn: Other, fold 8 {
        /// In the image.
        Image = "image",
        /// In an external data file.
        File = "file",
        /// In an external data file that is a raw image of the disk.
        RawFile = "raw_file",
    }
}
words!(
    Part,
    Other,
    fold = 16,
    L2 = "l2",
    Bitmap = "bitmap",
    L1 = "l1",
    Header = "header",
    Extension = "extension",
    RefcountTable = "refcount_table",
    RefcountBlock = "refcount_block",
    Snapshot = "snapshot",
    SnapshotTable = "snapshot_table",
    BitmapDirectory = "bitmap_directory",
    BitmapTable = "bitmap_table",
    Payload = "payload",
    Table = "table",
    BlockFront = "block_front",
    Directory = "directory",
    Metadata = "metadata"
);
words!(
    Transform,
    Other,
    fold = 16,
    Flip = "flip",
    Boundary = "boundary",
    Add = "add",
    AddClusters = "add_clusters",
    Structure = "structure",
    Own = "own",
    PastEnd = "past_end",
    Misalign = "misalign",
    Swap = "swap",
    Set = "set"
);
words!(
    ExtentForm,
    Other,
    fold = 8,
    Flat = "flat",
    Vmfs = "vmfs",
    Sparse = "sparse",
    Cowd = "vmfs_sparse",
    SeSparse = "se_sparse"
);
operand!(
    Look,
    u8,
    OperandKind::Content,
    "mbr, luks, parallels, qcow2, or the word of another format for a sector that looks like its own",
    |number| looks::made(Self(number % 16)).form.look,
    |it| it.0,
    |it, f| f.write_str(looks::made(it).form.word),
    |text| looks::all().iter().map(|made| made.form).find(|it| it.word == text).map(|it| it.look),
);
words! {
    /// The treatment of an allocation when its cluster is zeroed.
    pub enum Keep: Content {
        /// The cluster is freed.
        No = "no",
        /// The cluster stays allocated.
        Yes = "yes",
    }
}
words! {
    /// The change of subclusters by an operation.
    pub enum Change: Content {
        /// The subclusters hold data.
        Write = "write",
        /// The subclusters read as zeros.
        Zero = "zero",
        /// The subclusters become unallocated.
        Unallocate = "unallocate",
    }
}
words! {
    /// A request about the bytes that the engine has written.
    pub enum SyncKind: Other {
        /// The engine flushes the disk.
        Flush = "flush",
        /// The power is cut. The engine does not notice.
        Cut = "cut",
        /// The engine's process is killed. The engine does not notice.
        Kill = "kill",
    }
}
words! {
    /// The cause of a cut while an engine has an image open for writing.
    pub enum CutKind: Other {
        /// The power fails: of the writes after the last flush, the disk has kept any sectors.
        Power = "power",
        /// The engine's process ends: the file has all that was written up to then.
        Process = "process",
    }
}
words! {
    /// The bytes that a block device has behind an image.
    pub enum OldBytes: Other, fold 8 {
        /// Bytes of files.
        Data = "data",
        /// Words that look like entries of tables.
        Entries = "entries",
        /// Words that look like refcounts.
        Counts = "counts",
        /// Zeros.
        Zeros = "zeros",
    }
}
words! {
    /// The kind of file operations of which some fail.
    pub enum FileOperation: Other, fold 8 {
        /// Writes of bytes.
        Write = "write",
        /// Reads of bytes.
        Read = "read",
        /// Flushes.
        Flush = "flush",
        /// New lengths of a file.
        Length = "length",
    }
}
impl FileOperation {
    /// All kinds.
    pub(crate) const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Flush, Self::Length];
}
words! {
    /// How a file operation fails.
    pub enum DeviceError: Other, fold 8 {
        /// The device reports an error (EIO).
        Io = "io",
        /// The device has no room (ENOSPC).
        Full = "full",
        /// A write stores the whole sectors in its first half, and then the device reports an error.
        Short = "short",
    }
}
words! {
    /// The number of file operations that fail.
    pub enum Failures: Other {
        /// One operation.
        One = "one",
        /// All operations from there on, until the image is closed.
        All = "all",
    }
}
words! {
    /// The use of the bytes in a program.
    pub enum BytesKind: Content, fold 8 {
        /// The payload of the next compressed cluster.
        Payload = "payload",
        /// The name of the next bitmap or snapshot.
        Name = "name",
        /// The id of the next snapshot.
        Id = "id",
        /// The body of the first unknown extension of the next header that has one.
        Extension = "extension",
        /// The byte of a compressed cluster that the next attack on one changes: a little-endian number.
        Inside = "inside",
        /// The data of the next write whose content is `own` or `repeat`.
        Data = "data",
    }
}

impl BytesKind {
    /// All uses, in the order of the encoding.
    pub const ALL: [Self; 6] =
        [Self::Payload, Self::Name, Self::Id, Self::Extension, Self::Inside, Self::Data];
}

words! {
    /// The content of a write.
    pub enum DataContent: Content, fold 16 {
        /// As `write`, and in the build also behind the first 64 KiB of a cluster.
        Deep = "deep",
        /// Zeros.
        Zeros = "zeros",
        /// The bytes that a guest reads there already.
        Same = "same",
        /// The bytes that a guest read there before the writing.
        Former = "former",
        /// Bytes of the program, then zeros.
        Own = "own",
        /// Bytes of the program, repeated.
        Repeat = "repeat",
        /// Entries of a table of the image.
        Entries = "entries",
        /// Refcounts.
        Counts = "counts",
    }
}
words!(
    Policy,
    Other,
    Append = "append",
    FirstHole = "first",
    RandomHole = "random",
    Mixed = "mixed"
);
words!(Fill, Content, Zeroes = "zeroes", Ones = "ones", Bits = "bits");
words!(Leaving, Other, Nothing = "nothing", Bit = "bit", Extension = "extension");

// The format's version. Three quarters of all bytes are version 3, which has more features.
operand!(
    Version,
    u8,
    OperandKind::Other,
    "2 or 3",
    |number| if number % 4 == 1 { Self::V2 } else { Self::V3 },
    |it| u8::from(it == Self::V2),
    |it, f| f.write_str(if it == Self::V2 { "2" } else { "3" }),
    |text| match text {
        "2" => Some(Self::V2),
        "3" => Some(Self::V3),
        _ => None,
    },
);

words!(
    FileEnd,
    Other,
    Cluster = "cluster",
    Sector = "sector",
    Content = "content",
    Zeros = "zeros",
    Garbage = "garbage"
);
words! {
    /// The kind of clusters past the end of the disk.
    pub enum Hidden: Content {
        /// Data.
        Data = "data",
        /// Compressed data.
        Compressed = "compressed",
        /// Clusters that read as zeros, without an allocation.
        Zeros = "zeros",
        /// Allocations without data.
        Allocated = "allocated",
    }
}

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

// The first eight shapes.
operand!(
    Shape,
    u8,
    OperandKind::Content,
    "zeros, text, speck, eighth, half, most, coins or mixed",
    |number| Self::ALL[usize::from(number) % FIRST_SHAPES],
    |it| it as u8,
    |it, f| f.write_str(SHAPES[it as usize]),
    |text| parse_shape(text, FIRST_SHAPES),
);

/// Any shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnyShape(pub Shape);

operand!(
    AnyShape,
    u8,
    OperandKind::Content,
    "zeros, text, speck, eighth, half, most, coins, mixed, noise, nearly or far",
    |number| Self(Shape::ALL[usize::from(number) % Shape::ALL.len()]),
    |it| it.0 as u8,
    |it, f| f.write_str(SHAPES[it.0 as usize]),
    |text| parse_shape(text, SHAPES.len()).map(Self),
);

words!(
    Coding,
    Content,
    Usual = "usual",
    Stored = "stored",
    Fixed = "fixed",
    Quick = "quick",
    Dynamic = "dynamic",
    Window = "window",
    Longer = "longer",
    Trailing = "trailing",
    Pieces = "pieces",
    Ended = "ended",
    Largest = "largest"
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

operand!(
    BitmapFlags,
    u8,
    OperandKind::Content,
    "none, in_use, auto or in_use,auto",
    |number| Self(number % 4),
    |it| it.0,
    |it, f| f.write_str(Self::TEXTS[usize::from(it.0)]),
    |text| {
        let value = Self::TEXTS.iter().position(|known| *known == text)?;
        Some(Self(value as u8))
    },
);
