//! The operations and the prologue: one table of opcodes, from which decoding, encoding and text
//! follow. Opcodes are append-only: a number that is taken keeps its meaning and its operands.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::build::placement::Policy;
use crate::build::refcounts::RefcountPlacement;
use crate::build::{HeaderOptions, Plan};
use crate::content::Shape;
use crate::qcow2::header::{Compression, Geometry, Version};
use crate::qcow2::units::ClusterSize;

use super::operand::{
    At, Change, Count, Extra, Features, Gap, Inside, Keep, Length, Magnitude, Number, Operand,
    Size, Skew,
};

/// How long an operation is.
pub const OPERATION_BYTES: usize = 8;
/// How long a prologue is. The last bytes are kept for fields to come.
pub const PROLOGUE_BYTES: usize = 20;

/// Opcode bytes below this are canonical: a number of its own for each operation. Those that no
/// operation has are skipped, and never emitted.
const CANONICAL_OPCODES: u8 = 40;

/// What the opcode bytes from [`CANONICAL_OPCODES`] on mean: one table, repeated, with the operations
/// that build in the majority. It is frozen: operations to come have their canonical number only.
const ALIASES: [u8; 32] = [
    0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4, 5, 5, 6, 6, 7, 8, 9, 10, 10, 11,
    12,
];

/// Why a line of text is not a record.
pub(super) enum TextError {
    UnknownName(String),
    Operand { name: &'static str, found: String, expected: &'static str },
    Missing(&'static str),
    Unexpected(String),
}

/// The operands of one line, taken out one by one.
pub(super) struct TextOperands<'a> {
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> TextOperands<'a> {
    /// From words of the form `name=value`.
    pub(super) fn new(words: impl Iterator<Item = &'a str>) -> Result<Self, TextError> {
        let split = |word: &'a str| {
            word.split_once('=').ok_or_else(|| TextError::Unexpected(word.to_string()))
        };
        Ok(Self { left: words.map(split).collect::<Result<_, _>>()? })
    }

    fn take<T: Operand>(&mut self, name: &'static str) -> Result<T, TextError> {
        let at = self.left.iter().position(|(found, _)| *found == name);
        let (_, value) = self.left.remove(at.ok_or(TextError::Missing(name))?);
        let expected = T::EXPECTED;
        T::parse(value).ok_or(TextError::Operand { name, found: value.to_string(), expected })
    }

    fn finish(self) -> Result<(), TextError> {
        match self.left.first() {
            Some((name, value)) => Err(TextError::Unexpected(format!("{name}={value}"))),
            None => Ok(()),
        }
    }
}

fn print_operand<T: Operand>(f: &mut fmt::Formatter<'_>, name: &str, value: T) -> fmt::Result {
    write!(f, " {name}=")?;
    value.print(f)
}

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
}

macro_rules! prologue {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $default:expr,)+) => {
        /// What a program fixes before its first operation.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Prologue {
            $($(#[$doc])* pub $field: $kind,)+
        }

        impl Prologue {
            /// From the bytes behind the encoding's version, of any values; missing ones are zeros.
            pub(super) fn decode(bytes: &[u8; PROLOGUE_BYTES - 1]) -> Self {
                const _: () = assert!(0 $(+ <$kind>::BYTES)+ < PROLOGUE_BYTES);
                let mut bytes = bytes.as_slice();
                Self { $($field: Operand::decode(&mut bytes)),+ }
            }

            /// The canonical bytes behind the encoding's version.
            pub(super) fn encode(&self) -> [u8; PROLOGUE_BYTES - 1] {
                let mut bytes = [0; PROLOGUE_BYTES - 1];
                let mut out = bytes.as_mut_slice();
                $(Operand::encode(self.$field, &mut out);)+
                let _ = out;
                bytes
            }

            pub(super) fn parse(mut operands: TextOperands) -> Result<Self, TextError> {
                let prologue = Self { $($field: operands.take(stringify!($field))?),+ };
                operands.finish()?;
                Ok(prologue)
            }
        }

        impl Default for Prologue {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        impl fmt::Display for Prologue {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("image")?;
                $(print_operand(f, stringify!($field), self.$field)?;)+
                Ok(())
            }
        }
    };
}

prologue! {
    /// The version of the format.
    version: Version = Version::V3,
    /// The cluster size.
    cluster_bits: Number<9, 21> = Number::LOWEST,
    /// The refcount width; a version 2 image has order 4 whatever is said here.
    refcount_order: Number<0, 6> = Number::LOWEST,
    /// Features; a version 2 image has none, and extended L2 needs 16 KiB clusters.
    features: Features = Features::default(),
    /// The size of the disk.
    size: Size = Size::default(),
    /// The seed of all placement by entropy.
    rng_seed: u16 = 0,
    /// Where refcount blocks go.
    blocks: Policy = Policy::Append,
    /// Where the refcount table goes.
    table: Policy = Policy::Append,
    /// How many free clusters the refcount table wants behind it.
    tolerance: Number<0, 3> = Number::LOWEST,
}

impl Prologue {
    /// The plan of the image, with everything that the version or the cluster size forbids left out.
    pub fn plan(&self) -> Plan {
        let v3 = self.version == Version::V3;
        let has = |feature| v3 && self.features.has(feature);
        let bits = u32::from(self.cluster_bits.get());
        // The operand's range is that of cluster sizes.
        let cluster_size = ClusterSize::from_bits(bits).unwrap_or(ClusterSize::SMALLEST);
        let zstd = has(Features::ZSTD);
        let geometry = Geometry {
            version: self.version,
            cluster_size,
            refcount_order: if v3 { u32::from(self.refcount_order.get()) } else { 4 },
            extended_l2: has(Features::EXTENDED_L2) && bits >= 14,
            compression: if zstd { Compression::Zstd } else { Compression::Deflate },
        };
        Plan {
            geometry,
            size_bytes: self.size.bytes((1 << 63) - 512),
            header: HeaderOptions {
                lazy_refcounts: has(Features::LAZY_REFCOUNTS),
                compression_field: has(Features::COMPRESSION_FIELD),
                feature_names: has(Features::FEATURE_NAMES),
                unknown_extension: has(Features::UNKNOWN_EXTENSION),
            },
            refcounts: RefcountPlacement {
                blocks: self.blocks,
                table: self.table,
                tolerance: u64::from(self.tolerance.get()),
            },
            rng_seed: u64::from(self.rng_seed),
        }
    }
}
