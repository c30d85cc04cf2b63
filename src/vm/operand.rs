//! Operands: how each is decoded from any bytes, encoded, printed and parsed. Every operand folds all
//! values of its bytes into its range; the folds are frozen, because corpus files mean what they
//! mean through them.

use std::fmt;

use bytes::{Buf, BufMut};

use crate::build::placement::Policy;
use crate::content::Shape;

/// A field of a record.
pub trait Operand: Copy + PartialEq + fmt::Debug {
    /// How many bytes it takes.
    const BYTES: usize;
    /// What its text looks like, for messages.
    const EXPECTED: &'static str;

    /// From the next [`Operand::BYTES`] bytes, of any value. There are that many.
    fn decode(bytes: &mut &[u8]) -> Self;
    /// To the canonical bytes.
    fn encode(self, out: &mut impl BufMut);
    /// Writes the text.
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// From the text; `None` where it is not one.
    fn parse(text: &str) -> Option<Self>;
}

/// A number from `LOW` up to and with `HIGH`, in a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<const LOW: u8, const HIGH: u8>(u8);

impl<const LOW: u8, const HIGH: u8> Number<LOW, HIGH> {
    /// The smallest.
    pub const LOWEST: Self = Self(LOW);

    /// From a value; `None` out of range.
    pub const fn new(value: u8) -> Option<Self> {
        if value < LOW || value > HIGH { None } else { Some(Self(value)) }
    }

    /// Its value.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl<const LOW: u8, const HIGH: u8> Operand for Number<LOW, HIGH> {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "a number in range";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(LOW + bytes.get_u8() % (HIGH - LOW + 1))
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0 - LOW);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
    fn parse(text: &str) -> Option<Self> {
        Self::new(text.parse().ok()?)
    }
}

/// How many clusters an operation is about: 1 to 16. Most bytes are folded to 1 or 2, so that random
/// programs are cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(u8);

impl Count {
    /// The most clusters of one operation.
    pub const MAX: u8 = 16;

    /// From a value; `None` outside 1 to 16.
    pub const fn new(clusters: u8) -> Option<Self> {
        if clusters == 0 || clusters > Self::MAX { None } else { Some(Self(clusters)) }
    }

    /// The number of clusters.
    pub fn get(self) -> u64 {
        u64::from(self.0)
    }
}

impl Operand for Count {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "1 to 16";

    fn decode(bytes: &mut &[u8]) -> Self {
        match bytes.get_u8() {
            byte if byte < Self::MAX => Self(byte + 1),
            byte => Self(1 + byte % 2),
        }
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0 - 1);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
    fn parse(text: &str) -> Option<Self> {
        Self::new(text.parse().ok()?)
    }
}

/// What a position is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    /// Clusters from the start of the disk.
    #[default]
    Start,
    /// Clusters back from the last one.
    End,
    /// Clusters on from where the last operation ended, as a signed number.
    Last,
    /// Around the start of an L2 table: the upper 11 bits are the table's number, counted over the
    /// disk's tables, the lower 5 a signed distance from its first cluster.
    Table,
    /// A part of the disk, in 65,536ths.
    Part,
    /// Clusters past the end of the disk; operations that build fold it back into the disk.
    Past,
}

/// A cluster of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// What it is counted from.
    pub anchor: Anchor,
    /// How far.
    pub steps: u16,
}

impl At {
    const ANCHORS: [Anchor; 6] =
        [Anchor::Start, Anchor::End, Anchor::Last, Anchor::Table, Anchor::Part, Anchor::Past];

    /// The number of the L2 table, and the signed distance from its start.
    pub fn table(self) -> (u64, i64) {
        (u64::from(self.steps >> 5), i64::from(self.steps & 31) - 16)
    }
}

impl Operand for At {
    const BYTES: usize = 3;
    const EXPECTED: &'static str =
        "start+N, end-N, last+N, last-N, tableN+N, tableN-N, part+N or past+N";

    fn decode(bytes: &mut &[u8]) -> Self {
        let anchor = Self::ANCHORS[usize::from(bytes.get_u8()) % Self::ANCHORS.len()];
        Self { anchor, steps: bytes.get_u16_le() }
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.anchor as u8);
        out.put_u16_le(self.steps);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.anchor {
            Anchor::Start => write!(f, "start+{}", self.steps),
            Anchor::End => write!(f, "end-{}", self.steps),
            Anchor::Last => write!(f, "last{:+}", self.steps.cast_signed()),
            Anchor::Table => {
                let (table, distance) = self.table();
                write!(f, "table{table}{distance:+}")
            }
            Anchor::Part => write!(f, "part+{}", self.steps),
            Anchor::Past => write!(f, "past+{}", self.steps),
        }
    }
    fn parse(text: &str) -> Option<Self> {
        let sign = text.find(['+', '-'])?;
        let (word, steps) = text.split_at(sign);
        let plain = |expected: &str| steps.strip_prefix(expected)?.parse::<u16>().ok();
        let (anchor, steps) = match word {
            "start" => (Anchor::Start, plain("+")?),
            "end" => (Anchor::End, plain("-")?),
            "last" => (Anchor::Last, steps.parse::<i16>().ok()?.cast_unsigned()),
            "part" => (Anchor::Part, plain("+")?),
            "past" => (Anchor::Past, plain("+")?),
            _ => {
                let table: u16 = word.strip_prefix("table")?.parse().ok()?;
                let distance: i16 = steps.parse().ok()?;
                if table >= 1 << 11 || !(-16..16).contains(&distance) {
                    return None;
                }
                (Anchor::Table, table << 5 | (distance + 16).cast_unsigned())
            }
        };
        Some(Self { anchor, steps })
    }
}

/// A byte inside a cluster: a 65,536th of it for each step, with the lowest nine bits of the number
/// added, so that odd bytes are reached at every cluster size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside(pub u16);

impl Inside {
    /// The byte, in a cluster of `cluster_bytes`, a power of two.
    pub fn bytes(self, cluster_bytes: u64) -> u64 {
        let scaled = (u64::from(self.0) * cluster_bytes) >> 16;
        (scaled + u64::from(self.0 & 511)) & (cluster_bytes - 1)
    }
}

impl Operand for Inside {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "0 to 65535";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u16_le())
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
    fn parse(text: &str) -> Option<Self> {
        Some(Self(text.parse().ok()?))
    }
}

/// How a compressed payload is placed: half of all bytes pack it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skew {
    /// Right behind the last payload.
    #[default]
    Packed,
    /// In new clusters, from a byte inside the first one on: a 32,768th of the cluster for each step,
    /// with the lowest nine bits of the number added. Below 32,768.
    Fresh(u16),
}

impl Skew {
    /// The byte inside a cluster of `cluster_bytes`, a power of two.
    pub fn bytes(steps: u16, cluster_bytes: u64) -> u64 {
        let scaled = (u64::from(steps) * cluster_bytes) >> 15;
        (scaled + u64::from(steps & 511)) & (cluster_bytes - 1)
    }
}

impl Operand for Skew {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "packed, or fresh+N, N 0 to 32767";

    fn decode(bytes: &mut &[u8]) -> Self {
        match bytes.get_u16_le() {
            value if value & 1 == 0 => Self::Packed,
            value => Self::Fresh(value >> 1),
        }
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(match self {
            Self::Packed => 0,
            Self::Fresh(steps) => steps << 1 | 1,
        });
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packed => f.write_str("packed"),
            Self::Fresh(steps) => write!(f, "fresh+{steps}"),
        }
    }
    fn parse(text: &str) -> Option<Self> {
        if text == "packed" {
            return Some(Self::Packed);
        }
        let steps = text.strip_prefix("fresh+")?.parse().ok()?;
        (steps < 1 << 15).then_some(Self::Fresh(steps))
    }
}

/// A length to read in bytes: 0 to 4,095.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length(u16);

impl Length {
    const VALUES: u16 = 4096;

    /// The number of bytes.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Operand for Length {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "0 to 4095";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u16_le() % Self::VALUES)
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
    fn parse(text: &str) -> Option<Self> {
        let length = text.parse().ok()?;
        (length < Self::VALUES).then_some(Self(length))
    }
}

/// A plain 16-bit number.
impl Operand for u16 {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "0 to 65535";

    fn decode(bytes: &mut &[u8]) -> Self {
        bytes.get_u16_le()
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// A length of any magnitude: 0 to 1,023, shifted left by 0 to 63; past 64 bits, the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Magnitude(u16);

impl Magnitude {
    /// The value.
    pub fn get(self) -> u64 {
        let (units, shift) = (u64::from(self.0 >> 6), u32::from(self.0 & 63));
        if units.leading_zeros() < shift { u64::MAX } else { units << shift }
    }
}

impl Operand for Magnitude {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "UNITS<<SHIFT, UNITS 0 to 1023, SHIFT 0 to 63";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u16_le())
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u16_le(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<<{}", self.0 >> 6, self.0 & 63)
    }
    fn parse(text: &str) -> Option<Self> {
        let (units, shift) = text.split_once("<<")?;
        let (units, shift): (u16, u16) = (units.parse().ok()?, shift.parse().ok()?);
        (units < 1024 && shift < 64).then_some(Self(units << 6 | shift))
    }
}

/// A disk size: 16 bits, shifted left by 0 to 47, and a signed tail that makes it odd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    units: u16,
    shift: u8,
    tail_bytes: i16,
}

impl Size {
    const SHIFTS: u8 = 48;

    /// `units << shift`, `tail_bytes` more; `None` where the shift is above 47.
    pub const fn new(units: u16, shift: u8, tail_bytes: i16) -> Option<Self> {
        if shift >= Self::SHIFTS { None } else { Some(Self { units, shift, tail_bytes }) }
    }

    /// The size in bytes, at most `max_bytes`; the tail is applied to what was cut.
    pub fn bytes(self, max_bytes: u64) -> u64 {
        let whole = (u64::from(self.units) << self.shift).min(max_bytes);
        whole.saturating_add_signed(i64::from(self.tail_bytes)).min(max_bytes)
    }
}

impl Operand for Size {
    const BYTES: usize = 5;
    const EXPECTED: &'static str =
        "UNITS<<SHIFT+TAIL, UNITS 0 to 65535, SHIFT 0 to 47, TAIL -32768 to 32767";

    fn decode(bytes: &mut &[u8]) -> Self {
        let shift = bytes.get_u8() % Self::SHIFTS;
        Self { shift, units: bytes.get_u16_le(), tail_bytes: bytes.get_i16_le() }
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.shift);
        out.put_u16_le(self.units);
        out.put_i16_le(self.tail_bytes);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<<{}{:+}", self.units, self.shift, self.tail_bytes)
    }
    fn parse(text: &str) -> Option<Self> {
        let (units, rest) = text.split_once("<<")?;
        let (shift, tail) = rest.split_at(rest.find(['+', '-']).unwrap_or(rest.len()));
        let tail = if tail.is_empty() { 0 } else { tail.parse().ok()? };
        Self::new(units.parse().ok()?, shift.parse().ok()?, tail)
    }
}

/// A gap in clusters: 0 to 255, shifted left by 0 to 15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    units: u8,
    shift: u8,
}

impl Gap {
    const SHIFTS: u8 = 16;

    /// The number of clusters.
    pub fn clusters(self) -> u64 {
        u64::from(self.units) << self.shift
    }
}

impl Operand for Gap {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "UNITS<<SHIFT, UNITS 0 to 255, SHIFT 0 to 15";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self { units: bytes.get_u8(), shift: bytes.get_u8() % Self::SHIFTS }
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.units);
        out.put_u8(self.shift);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<<{}", self.units, self.shift)
    }
    fn parse(text: &str) -> Option<Self> {
        let (units, shift) = text.split_once("<<")?;
        let (units, shift) = (units.parse().ok()?, shift.parse().ok()?);
        (shift < Self::SHIFTS).then_some(Self { units, shift })
    }
}

/// Defines how a plain enum is an operand of one byte: its values and their words, in the order of
/// the encoding.
macro_rules! words {
    ($kind:ty, $expected:literal, $($value:path = $word:literal),+ $(,)?) => {
        impl Operand for $kind {
            const BYTES: usize = 1;
            const EXPECTED: &'static str = $expected;

            fn decode(bytes: &mut &[u8]) -> Self {
                const VALUES: &[$kind] = &[$($value),+];
                VALUES[usize::from(bytes.get_u8()) % VALUES.len()]
            }
            fn encode(self, out: &mut impl BufMut) {
                const VALUES: &[$kind] = &[$($value),+];
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

/// Whether an allocation is kept by what is zeroed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// It is freed.
    #[default]
    No,
    /// It is kept.
    Yes,
}

/// What an operation does to subclusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change {
    /// Data are written.
    #[default]
    Write,
    /// They read as zeros.
    Zero,
    /// They become unallocated.
    Unallocate,
}

words!(Keep, "no or yes", Keep::No = "no", Keep::Yes = "yes");
words!(
    Change,
    "write, zero or unallocate",
    Change::Write = "write",
    Change::Zero = "zero",
    Change::Unallocate = "unallocate",
);
words!(
    Policy,
    "append, first, random or mixed",
    Policy::Append = "append",
    Policy::FirstHole = "first",
    Policy::RandomHole = "random",
    Policy::Mixed = "mixed",
);
words!(
    Shape,
    "zeros, text, speck, eighth, half, most, coins or mixed",
    Shape::Zeros = "zeros",
    Shape::Text = "text",
    Shape::Speck = "speck",
    Shape::Eighth = "eighth",
    Shape::Half = "half",
    Shape::Most = "most",
    Shape::Coins = "coins",
    Shape::Mixed = "mixed",
);

/// The format's version. Three quarters of all bytes are version 3, which has more to it.
impl Operand for crate::qcow2::header::Version {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "2 or 3";

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

/// Features of the image that are there or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(u8);

impl Features {
    /// L2 entries with subcluster bitmaps.
    pub const EXTENDED_L2: Self = Self(1);
    /// Compression by zstd.
    pub const ZSTD: Self = Self(2);
    /// The lazy refcounts bit.
    pub const LAZY_REFCOUNTS: Self = Self(4);
    /// The compression type field also where it says zlib.
    pub const COMPRESSION_FIELD: Self = Self(8);
    /// The feature name table.
    pub const FEATURE_NAMES: Self = Self(16);
    /// A header extension that nobody knows.
    pub const UNKNOWN_EXTENSION: Self = Self(32);
    const NAMES: [&'static str; 6] = [
        "extended_l2",
        "zstd",
        "lazy_refcounts",
        "compression_field",
        "feature_names",
        "unknown_extension",
    ];
    const ALL: u8 = 63;

    /// Whether all of `other` are there.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and `other`.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Operand for Features {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "none, or names with commas: extended_l2, zstd, lazy_refcounts, \
                                    compression_field, feature_names, unknown_extension";

    fn decode(bytes: &mut &[u8]) -> Self {
        Self(bytes.get_u8() & Self::ALL)
    }
    fn encode(self, out: &mut impl BufMut) {
        out.put_u8(self.0);
    }
    fn print(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("none");
        }
        let there = Self::NAMES.iter().enumerate().filter(|(bit, _)| self.0 & 1 << bit != 0);
        for (place, (_, name)) in there.enumerate() {
            write!(f, "{}{name}", if place == 0 { "" } else { "," })?;
        }
        Ok(())
    }
    fn parse(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self(0));
        }
        text.split(',').try_fold(Self(0), |features, name| {
            let bit = Self::NAMES.iter().position(|known| *known == name)?;
            Some(Self(features.0 | 1 << bit))
        })
    }
}
