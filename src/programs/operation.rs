//! The operations: one table of opcodes, from which decoding, encoding and text follow. Opcodes are append-only: a number that is taken keeps its meaning and its operands.

use std::fmt;
use std::ops::Range;

use bytes::{Buf, BufMut};

use crate::formats::qcow2::anatomy::Part;
use crate::formats::qcow2::geometry::Version;
use crate::images::content::Shape;
use crate::images::damage::Transform;
use crate::images::qcow2::payload::Coding;
use crate::images::qcow2::placement::Policy;
use crate::images::qcow2::{FileEnd, Fill, HeaderFlags, HeaderLength, Leaving};

use super::operand::{
    AnyShape, At, BitmapFlags, Change, Count, DataIn, Extra, Features, Gap, Hidden, Inside, Keep,
    Length, Magnitude, NameLength, Number, Operand, Relative, Size, Skew,
};
use super::text::{TextError, TextOperands, print_operand};

/// How long an operation is.
pub const OPERATION_BYTES: usize = 8;

/// Opcode bytes below this are canonical: a number of its own for each operation. Those that no
/// operation has are skipped, and never emitted.
const CANONICAL_OPCODES: u8 = 40;

/// What the opcode bytes from [`CANONICAL_OPCODES`] on mean: one table, repeated, with the operations
/// that build in the majority. It is frozen: operations to come have their canonical number only.
const ALIASES: [u8; 32] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5, 6, 6, 7, 8, 9, 10, 10, 11,
    12,
];

macro_rules! operations {
    ($($(#[$doc:meta])* $code:literal $text:literal $name:ident {
        $($(#[$operand_doc:meta])* $operand:ident: $kind:ty),* $(,)?
    })+) => {
        /// One instruction of a program.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Operation {
            $($(#[$doc])* $name { $($(#[$operand_doc])* $operand: $kind),* },)+
        }

        impl Operation {
            /// Every opcode with its name, in order.
            pub const OPCODES: &'static [(u8, &'static str)] = &[$(($code, $text)),+];

            /// The operands of each, in the order of [`Self::OPCODES`]: their names, and how many bytes
            /// they take. The first one begins at byte 1 of a record.
            pub const OPERANDS: &'static [&'static [(&'static str, usize)]] =
                &[$(&[$((stringify!($operand), <$kind>::BYTES)),*]),+];

            /// From a record of any bytes; `None` where its opcode has no meaning yet.
            #[inline]
            pub fn decode(record: &[u8; OPERATION_BYTES]) -> Option<Self> {
                $(const _: () = assert!(0 $(+ <$kind>::BYTES)* < OPERATION_BYTES);)+
                let mut bytes = record.as_slice();
                let opcode = match bytes.get_u8() {
                    byte if byte < CANONICAL_OPCODES => byte,
                    byte => ALIASES[usize::from(byte - CANONICAL_OPCODES) % ALIASES.len()],
                };
                match opcode {
                    $($code => Some(Self::$name { $($operand: Operand::decode(&mut bytes)),* }),)+
                    _ => None,
                }
            }

            /// The canonical record.
            pub fn encode(&self) -> [u8; OPERATION_BYTES] {
                let mut record = [0; OPERATION_BYTES];
                let mut out = record.as_mut_slice();
                match *self {
                    $(Self::$name { $($operand),* } => {
                        out.put_u8($code);
                        $(Operand::encode($operand, &mut out);)*
                        let _ = out;
                    })+
                }
                record
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => $text),+ }
            }

            pub(super) fn parse(name: &str, mut operands: TextOperands) -> Result<Self, TextError> {
                let operation = match name {
                    $($text => Self::$name { $($operand: operands.take(stringify!($operand))?),* },)+
                    _ => return Err(TextError::UnknownName(name.to_string())),
                };
                operands.finish()?;
                Ok(operation)
            }
        }

        impl fmt::Display for Operation {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())?;
                match *self {
                    $(Self::$name { $($operand),* } => {
                        $(print_operand(f, stringify!($operand), $operand)?;)*
                    })+
                }
                Ok(())
            }
        }
    };
}

/// An operand in the record of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is called.
    pub name: &'static str,
    /// Where it is in the record.
    pub bytes: Range<usize>,
}

impl Operation {
    /// Where its operands are in its record.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let which = Self::OPCODES.iter().position(|(_, name)| *name == self.name());
        let operands = which.map_or(&[][..], |which| Self::OPERANDS[which]);
        let mut from = 1;
        operands.iter().map(move |(name, count)| {
            let bytes = from..from + count;
            from += count;
            Place { name, bytes }
        })
    }

    /// Whether it is done to what was built; only where the target has attacks.
    pub fn is_attack(&self) -> bool {
        matches!(
            self,
            Self::Patch { .. } | Self::Trap { .. } | Self::FailRead { .. } | Self::Truncate { .. }
        )
    }
}

operations! {
    /// Writes whole clusters.
    0 "write" Write {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
    }
    /// Writes whole clusters compressed.
    1 "compress" Compress {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
        /// What they hold.
        shape: Shape,
        /// Where the payloads go.
        skew: Skew,
    }
    /// Makes whole clusters read as zeros.
    2 "zero" Zero {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
        /// Whether their allocation is kept.
        keep: Keep,
    }
    /// Makes whole clusters unallocated.
    3 "discard" Discard {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
    }
    /// Changes subclusters of one cluster, under extended L2.
    4 "subclusters" Subclusters {
        /// The cluster.
        at: At,
        /// What becomes of them.
        change: Change,
        /// The first.
        first: Number<0, 31>,
        /// How many.
        count: Number<1, 32>,
        /// The distance from one to the next.
        stride: Number<1, 8>,
    }
    /// Decides where host clusters go from now on.
    5 "place" Place {
        /// Where.
        policy: Policy,
    }
    /// Leaves a gap at the end of the file.
    6 "reserve" Reserve {
        /// How many clusters.
        gap: Gap,
    }
    /// Takes a snapshot.
    7 "snapshot" Snapshot {}
    /// Deletes a snapshot.
    8 "delete_snapshot" DeleteSnapshot {
        /// Which of those that there are.
        index: Number<0, 15>,
    }
    /// Changes the size of the disk.
    9 "resize" Resize {
        /// The new size.
        size: Size,
    }
    /// Asks for the extents of a window.
    10 "walk" Walk {
        /// The cluster in which it begins.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// How many bytes.
        length: Magnitude,
    }
    /// Asks for the mapping of one byte.
    11 "lookup" Lookup {
        /// The cluster.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
    }
    /// Asks for data.
    12 "read" Read {
        /// The cluster in which they begin.
        at: At,
        /// The byte in that cluster.
        inside: Inside,
        /// How many bytes.
        length: Length,
    }
    /// Builds and verifies what there is so far.
    13 "checkpoint" Checkpoint {}
    /// Lays an empty image on top of what there is, which becomes its backing file. From now on
    /// everything is about the new one.
    14 "overlay" Overlay {
        /// The version of the format.
        version: Version,
        /// The cluster size.
        cluster_bits: Number<9, 21>,
        /// The refcount width.
        refcount_order: Number<0, 6>,
        /// Features.
        features: Features,
        /// Where its data lie.
        data_in: DataIn,
        /// The size of the disk.
        size: Relative,
    }
    /// Decides how the header is written.
    15 "header" Header {
        /// How long its fixed part is.
        length: HeaderLength,
        /// The number of a permutation of the extensions.
        order: u8,
        /// How many extensions nobody knows.
        unknown: Number<0, 7>,
        /// How long the first of them is.
        bytes: u8,
        /// Everything that is there or not.
        flags: HeaderFlags,
    }
    /// Adds a persistent dirty bitmap.
    16 "bitmap" Bitmap {
        /// log2 of how many guest bytes one bit stands for.
        granularity: Number<9, 31>,
        /// Whether it is in use, and automatic.
        flags: BitmapFlags,
        /// The length of its name.
        name: NameLength,
    }
    /// Changes entries of a bitmap's table.
    17 "fill_bitmap" FillBitmap {
        /// Which of the bitmaps that there are.
        index: Number<0, 15>,
        /// The first entry, counted round the table.
        entry: u16,
        /// How many.
        entries: Number<1, 32>,
        /// What becomes of them.
        fill: Fill,
    }
    /// Deletes a bitmap, or all of them with something left.
    18 "delete_bitmap" DeleteBitmap {
        /// Which of the bitmaps that there are.
        index: Number<0, 15>,
        /// What is left.
        leaving: Leaving,
    }
    /// Makes the disk what it was when a snapshot was taken.
    19 "apply_snapshot" ApplySnapshot {
        /// Which of those that there are.
        index: Number<0, 15>,
    }
    /// Takes a snapshot that says and holds more.
    20 "snapshot_with" SnapshotWith {
        /// How many bytes of extra data.
        extra: Extra,
        /// How many clusters of VM state.
        vm: Number<0, 15>,
        /// log2 of the distance from one of them to the next.
        spread: Number<0, 31>,
        /// How long the id is.
        id: Number<0, 254>,
        /// How long the name is.
        name: Length,
    }
    /// Writes a whole cluster compressed, in a coding of its own.
    21 "compress_as" CompressAs {
        /// The cluster.
        at: At,
        /// What it holds.
        shape: AnyShape,
        /// How it is coded.
        coding: Coding,
        /// Where the payload goes.
        skew: Skew,
    }
    /// Decides how the file ends.
    22 "end_file" EndFile {
        /// Where.
        end: FileEnd,
        /// How many bytes lie behind its last cluster, where there are any.
        tail: Gap,
    }
    /// Makes tables longer than they must be.
    23 "spare" Spare {
        /// How many clusters more the refcount table has.
        table: Number<0, 15>,
        /// How many entries more the L1 table has.
        l1: Gap,
    }
    /// Allocates whole clusters without writing to them.
    25 "preallocate" Preallocate {
        /// The first.
        at: At,
        /// How many.
        clusters: Count,
    }
    /// Puts whole clusters past the end of the disk.
    26 "beyond" Beyond {
        /// In which L2 table: the last that the disk needs, or one behind it.
        table: Number<0, 15>,
        /// How far from the start of its part past the end.
        distance: u16,
        /// How many clusters.
        clusters: Count,
        /// What is put there.
        kind: Hidden,
    }
    /// Changes a field or an entry of what was built.
    27 "patch" Patch {
        /// What it belongs to.
        part: Part,
        /// How many layers down.
        depth: Number<0, 3>,
        /// Which element of the part.
        nth: u16,
        /// How it is changed.
        transform: Transform,
        /// With what.
        value: u16,
    }
    /// Changes a field or an entry when it has been read.
    28 "trap" Trap {
        /// What it belongs to.
        part: Part,
        /// How many layers down.
        depth: Number<0, 3>,
        /// Which element of the part.
        nth: u16,
        /// How it is changed.
        transform: Transform,
        /// With what.
        value: u8,
        /// How many reads see it as it was.
        reads: u8,
    }
    /// Makes a read of a part fail.
    29 "fail_read" FailRead {
        /// Which part.
        part: Part,
        /// How many layers down.
        depth: Number<0, 3>,
        /// How many reads of it go well before.
        reads: u8,
    }
    /// Cuts bytes off the end of the file.
    30 "truncate" Truncate {
        /// How many layers down.
        depth: Number<0, 3>,
        /// How many.
        cut: Gap,
    }
}
