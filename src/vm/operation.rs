//! The operations and the prologue: one table of opcodes, from which decoding, encoding and text
//! follow. Opcodes are append-only: a number that is taken keeps its meaning and its operands.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::build::file::FileEnd;
use crate::build::payload::Coding;
use crate::build::placement::Policy;
use crate::build::refcounts::RefcountPlacement;
use crate::build::{
    BackingFormat, BackingPlan, DataFilePlan, Fill, HeaderFlags, HeaderLength, HeaderOptions,
    Leaving, Plan,
};
use crate::content::Shape;
use crate::qcow2::header::{Compression, Geometry, Version};
use crate::qcow2::units::ClusterSize;

use super::operand::{
    AnyShape, At, Base, BitmapFlags, Change, Count, DataIn, Extra, Features, Gap, Hidden, Inside,
    Keep, Length, Magnitude, NameLength, Number, Operand, Relative, Size, Skew,
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

    /// The same, where `default` need not be said.
    fn take_or<T: Operand>(&mut self, name: &'static str, default: T) -> Result<T, TextError> {
        match self.take(name) {
            Err(TextError::Missing(_)) => Ok(default),
            found => found,
        }
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
}

macro_rules! prologue {
    (
        $($(#[$doc:meta])* $field:ident: $kind:ty = $default:expr,)+
        ; $($(#[$more_doc:meta])* $more:ident: $more_kind:ty = $more_default:expr,)+
    ) => {
        /// What a program fixes before its first operation.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Prologue {
            $($(#[$doc])* pub $field: $kind,)+
            $($(#[$more_doc])* pub $more: $more_kind,)+
        }

        impl Prologue {
            /// From the bytes behind the encoding's version, of any values; missing ones are zeros.
            pub(super) fn decode(bytes: &[u8; PROLOGUE_BYTES - 1]) -> Self {
                const _: () =
                    assert!(0 $(+ <$kind>::BYTES)+ $(+ <$more_kind>::BYTES)+ < PROLOGUE_BYTES);
                let mut bytes = bytes.as_slice();
                Self {
                    $($field: Operand::decode(&mut bytes),)+
                    $($more: Operand::decode(&mut bytes),)+
                }
            }

            /// The canonical bytes behind the encoding's version.
            pub(super) fn encode(&self) -> [u8; PROLOGUE_BYTES - 1] {
                let mut bytes = [0; PROLOGUE_BYTES - 1];
                let mut out = bytes.as_mut_slice();
                $(Operand::encode(self.$field, &mut out);)+
                $(Operand::encode(self.$more, &mut out);)+
                let _ = out;
                bytes
            }

            pub(super) fn parse(mut operands: TextOperands) -> Result<Self, TextError> {
                let prologue = Self {
                    $($field: operands.take(stringify!($field))?,)+
                    $($more: operands.take_or(stringify!($more), $more_default)?,)+
                };
                operands.finish()?;
                Ok(prologue)
            }
        }

        impl Default for Prologue {
            fn default() -> Self {
                Self { $($field: $default,)+ $($more: $more_default,)+ }
            }
        }

        impl fmt::Display for Prologue {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("image")?;
                $(print_operand(f, stringify!($field), self.$field)?;)+
                $(if self.$more != $more_default {
                    print_operand(f, stringify!($more), self.$more)?;
                })+
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
    ;
    // What follows need not be said in the text.
    /// Where the data lie; in the image, where nothing is said and in a version 2 image.
    data_in: DataIn = DataIn::Image,
    /// What becomes of the lowest layer of a chain.
    base: Base = Base::Qcow2,
}

impl Prologue {
    /// The plan of the image, with everything that the version or the cluster size forbids left out.
    pub fn plan(&self) -> Plan {
        let geometry =
            geometry(self.version, self.cluster_bits, self.refcount_order, self.features);
        let plan = Plan {
            header: header_options(self.version, self.features),
            refcounts: RefcountPlacement {
                blocks: self.blocks,
                table: self.table,
                tolerance: u64::from(self.tolerance.get()),
                spare: 0,
            },
            rng_seed: u64::from(self.rng_seed),
            ..Plan::new(geometry, self.size.bytes((1 << 63) - 512))
        };
        with_data_in(plan, self.data_in)
    }
}

/// The plan of an overlay of the image of `below`, with refcount structures placed alike. The image
/// below becomes a file in `format`.
pub(super) fn overlay_plan(
    (below, format): (&Plan, BackingFormat),
    (version, features): (Version, Features),
    (cluster_bits, refcount_order): (Number<9, 21>, Number<0, 6>),
    (data_in, size): (DataIn, Relative),
) -> Plan {
    let geometry = geometry(version, cluster_bits, refcount_order, features);
    let size_bytes = size.bytes(below.size_bytes).min((1 << 63) - 512);
    let plan = Plan {
        header: header_options(version, features),
        backing: Some(BackingPlan { format, told: true }),
        refcounts: below.refcounts,
        rng_seed: below.rng_seed.wrapping_add(1),
        ..Plan::new(geometry, size_bytes)
    };
    with_data_in(plan, data_in)
}

fn geometry(
    version: Version,
    cluster_bits: Number<9, 21>,
    refcount_order: Number<0, 6>,
    features: Features,
) -> Geometry {
    let v3 = version == Version::V3;
    let bits = u32::from(cluster_bits.get());
    let zstd = v3 && features.has(Features::ZSTD);
    Geometry {
        version,
        // The operand's range is that of cluster sizes.
        cluster_size: ClusterSize::from_bits(bits).unwrap_or(ClusterSize::SMALLEST),
        refcount_order: if v3 { u32::from(refcount_order.get()) } else { 4 },
        extended_l2: v3 && features.has(Features::EXTENDED_L2) && bits >= 14,
        compression: if zstd { Compression::Zstd } else { Compression::Deflate },
        data_file: false,
    }
}

fn header_options(version: Version, features: Features) -> HeaderOptions {
    let has = |feature| version == Version::V3 && features.has(feature);
    HeaderOptions {
        lazy_refcounts: has(Features::LAZY_REFCOUNTS),
        compression_field: has(Features::COMPRESSION_FIELD),
        feature_names: has(Features::FEATURE_NAMES),
        unknown_extension: has(Features::UNKNOWN_EXTENSION),
    }
}

/// Moves the data out of the image, where the version allows it. A raw data file conflicts with backing
/// files (specification, "Autoclear features"): with one, the data file is not raw.
fn with_data_in(mut plan: Plan, data_in: DataIn) -> Plan {
    let raw = data_in == DataIn::RawFile && plan.backing.is_none();
    let external = data_in != DataIn::Image && plan.geometry.version == Version::V3;
    plan.data_file = external.then_some(DataFilePlan { raw });
    plan.geometry.data_file = external;
    plan
}
