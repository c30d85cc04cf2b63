//! Operands that are numbers: plain ones, and positions on the disk.

use std::fmt;
use std::marker::PhantomData;

use bytes::{Buf, BufMut};

use crate::formats::qcow2::constants::MAX_BITMAP_NAME_BYTES;

use super::encoding::{Operand, OperandKind, operand};

// Any byte.
operand!(
    u8,
    u8,
    OperandKind::Other,
    "0 to 255",
    |number| number,
    |it| it,
    |it, f| write!(f, "{it}"),
    |text| text.parse().ok(),
);

/// The meaning of the numbers of a [`Number`].
pub trait Meaning: Copy + PartialEq + fmt::Debug {
    /// The kind of the operand.
    const KIND: OperandKind;
}

/// Declares meanings of numbers.
macro_rules! meanings {
    ($($(#[$doc:meta])* $name:ident = $kind:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl Meaning for $name {
            const KIND: OperandKind = $kind;
        }
    )+};
}

meanings! {
    /// No particular meaning.
    Any = OperandKind::Other;
    /// A small count or index.
    OfFew = OperandKind::Few;
    /// log2 of the cluster size.
    OfClusterSizes = OperandKind::Ranked(&canonical(ClusterBits::PLAINEST_FIRST));
    /// log2 of the refcount width.
    OfRefcountWidths = OperandKind::Ranked(&canonical(RefcountOrder::PLAINEST_FIRST));
}

/// A number from `LOW` to `HIGH`, both included, in one byte.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Number<const LOW: u8, const HIGH: u8, M = Any>(u8, PhantomData<M>);

/// A small count or index, for subclusters, snapshots and bitmaps.
pub type Few<const LOW: u8, const HIGH: u8> = Number<LOW, HIGH, OfFew>;
/// log2 of the cluster size.
pub type ClusterBits = Number<9, 21, OfClusterSizes>;
/// log2 of the refcount width.
pub type RefcountOrder = Number<0, 6, OfRefcountWidths>;

impl ClusterBits {
    /// All values, the plainest first: QEMU's default, easily read sizes, the rest.
    pub const PLAINEST_FIRST: [Self; 13] =
        numbers([16, 12, 9, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21]);
}

impl RefcountOrder {
    /// All values, the plainest first, which is QEMU's default.
    pub const PLAINEST_FIRST: [Self; 7] = numbers([4, 3, 5, 6, 2, 1, 0]);
}

impl<const LOW: u8, const HIGH: u8, M> fmt::Debug for Number<LOW, HIGH, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Number").field(&self.0).finish()
    }
}

const fn numbers<const LOW: u8, const HIGH: u8, M: Meaning, const N: usize>(
    values: [u8; N],
) -> [Number<LOW, HIGH, M>; N] {
    let mut numbers = [Number::LOWEST; N];
    let mut at = 0;
    while at < N {
        assert!(values[at] >= LOW && values[at] <= HIGH);
        numbers[at] = Number(values[at], PhantomData);
        at += 1;
    }
    numbers
}

/// The text of a range of bytes, which the compiler makes for each range.
struct RangeText {
    bytes: [u8; 10],
    length: usize,
}

impl RangeText {
    const fn of(low: u8, high: u8) -> Self {
        Self { bytes: [0; 10], length: 0 }.and_number(low).and(*b" to ").and_number(high)
    }

    const fn and<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        let mut at = 0;
        while at < N {
            self.bytes[self.length] = bytes[at];
            self.length += 1;
            at += 1;
        }
        self
    }

    const fn and_number(self, number: u8) -> Self {
        let digits = [b'0' + number / 100, b'0' + number / 10 % 10, b'0' + number % 10];
        match number {
            0..10 => self.and([digits[2]]),
            10..100 => self.and([digits[1], digits[2]]),
            100.. => self.and(digits),
        }
    }

    const fn as_str(&self) -> &str {
        match str::from_utf8(self.bytes.split_at(self.length).0) {
            Ok(text) => text,
            Err(_) => "a number",
        }
    }
}

/// Returns the canonical byte of each number.
const fn canonical<const LOW: u8, const HIGH: u8, M: Meaning, const N: usize>(
    numbers: [Number<LOW, HIGH, M>; N],
) -> [u8; N] {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        bytes[at] = numbers[at].0 - LOW;
        at += 1;
    }
    bytes
}

impl<const LOW: u8, const HIGH: u8, M> Number<LOW, HIGH, M> {
    /// The range in words, such as `9 to 21`.
    const RANGE_TEXT: RangeText = RangeText::of(LOW, HIGH);
    /// The smallest value.
    pub const LOWEST: Self = Self(LOW, PhantomData);

    /// Returns the number for `value`, or `None` if it is out of range.
    pub const fn new(value: u8) -> Option<Self> {
        if value < LOW || value > HIGH { None } else { Some(Self(value, PhantomData)) }
    }

    /// Returns the value.
    pub const fn get(&self) -> u8 {
        self.0
    }
}

operand!(
    [const LOW: u8, const HIGH: u8, M: Meaning] Number<LOW, HIGH, M>,
    u8,
    M::KIND,
    Self::RANGE_TEXT.as_str(),
    |number| Self(LOW + number % (HIGH - LOW + 1), PhantomData),
    |it| it.0 - LOW,
    |it, f| write!(f, "{}", it.0),
    |text| Self::new(text.parse().ok()?),
);

// A plain 16-bit number.
operand!(
    u16,
    u16,
    OperandKind::Other,
    "0 to 65535",
    |number| number,
    |it| it,
    |it, f| write!(f, "{it}"),
    |text| text.parse().ok(),
);

/// Defines a 16-bit number from 0 to a highest value, which is included. Decoding folds larger numbers into the range.
macro_rules! up_to {
    ($(#[$doc:meta])* $name:ident, $highest:expr, $expected:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name(u16);

        impl $name {
            /// The highest value.
            pub const HIGHEST: Self = Self($highest);

            /// Returns the number for `value`, or the highest one if it is larger.
            pub const fn at_most(value: usize) -> Self {
                if value < $highest as usize { Self(value as u16) } else { Self::HIGHEST }
            }

            /// Returns the value.
            pub const fn get(self) -> u16 {
                self.0
            }
        }

        operand!(
            $name,
            u16,
            OperandKind::Other,
            $expected,
            |number| Self(number % ($highest + 1)),
            |it| it.0,
            |it, f| write!(f, "{}", it.0),
            |text| text.parse().ok().filter(|value| *value <= $highest).map(Self),
        );
    };
}

up_to!(
    /// A length in bytes: 0 to 4,095.
    Length,
    4095,
    "0 to 4095"
);
up_to!(
    /// The length of a bitmap's name in bytes: at most the length that QEMU accepts.
    NameLength,
    MAX_BITMAP_NAME_BYTES,
    "0 to 1023"
);
up_to!(
    /// The length of a snapshot's extra data in bytes: at most the length that QEMU accepts.
    Extra,
    1024,
    "0 to 1024"
);

/// The number of clusters of an operation: 1 to 16. Most bytes decode to 1 or 2, so that random programs are cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(u8);

impl Count {
    /// One cluster.
    pub const ONE: Self = Self(1);

    /// The highest number of clusters of one operation.
    pub const MAX: u8 = 16;

    /// Returns the count, or `None` outside 1 to 16.
    pub const fn new(clusters: u8) -> Option<Self> {
        if clusters == 0 || clusters > Self::MAX { None } else { Some(Self(clusters)) }
    }

    /// Returns the number of clusters.
    pub fn get(self) -> u64 {
        u64::from(self.0)
    }
}

operand!(
    Count,
    u8,
    OperandKind::Count,
    "1 to 16",
    |number| match number {
        byte if byte < Self::MAX => Self(byte + 1),
        byte => Self(1 + byte % 2),
    },
    |it| it.0 - 1,
    |it, f| write!(f, "{}", it.0),
    |text| Self::new(text.parse().ok()?),
);

/// The point from which a position is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anchor {
    /// Clusters from the start of the disk.
    #[default]
    Start,
    /// Clusters back from the last one.
    End,
    /// Clusters from the end of the last operation, as a signed number.
    Last,
    /// A cluster around the start of an L2 table. The upper 11 bits of the steps are the number of the table, modulo
    /// the disk's tables; the lower 5 bits are the signed distance from the table's first cluster.
    Table,
    /// A fraction of the disk, in 65,536ths.
    Part,
    /// Clusters past the end of the disk; building operations wrap it around into the disk.
    Past,
}

/// A cluster of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// The point from which the position is counted.
    pub anchor: Anchor,
    /// The distance from the anchor, in the anchor's unit.
    pub steps: u16,
}

impl At {
    const ANCHORS: [Anchor; 6] =
        [Anchor::Start, Anchor::End, Anchor::Last, Anchor::Table, Anchor::Part, Anchor::Past];

    /// Returns the number of the L2 table, and the signed distance from its start in clusters.
    pub fn table(self) -> (u64, i64) {
        (u64::from(self.steps >> 5), i64::from(self.steps & 31) - 16)
    }
}

impl Operand for At {
    const BYTES: usize = 3;
    const EXPECTED: &'static str =
        "start+N, end-N, last+N, last-N, tableN+N, tableN-N, part+N or past+N";
    const KIND: OperandKind = OperandKind::Position;

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

/// A byte inside a cluster. Each step is a 65,536th of the cluster; the lowest nine bits of the number are added, so
/// that odd bytes are reached at every cluster size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside(pub u16);

impl Inside {
    /// Returns the offset of the byte in a cluster of `cluster_bytes`, a power of two.
    pub fn bytes(self, cluster_bytes: u64) -> u64 {
        let scaled = (u64::from(self.0) * cluster_bytes) >> 16;
        (scaled + u64::from(self.0 & 511)) & (cluster_bytes - 1)
    }
}

operand!(
    Inside,
    u16,
    OperandKind::Other,
    "0 to 65535",
    Self,
    |it| it.0,
    |it, f| write!(f, "{}", it.0),
    |text| Some(Self(text.parse().ok()?)),
);
