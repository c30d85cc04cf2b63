//! Operands that say where: a cluster of the disk, a byte inside it, how many clusters.

use std::fmt;

use bytes::{Buf, BufMut};

use super::encoding::Operand;
use super::kind::Kind;

/// How many clusters an operation is about: 1 to 16. Most bytes are folded to 1 or 2, so that random
/// programs are cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(u8);

impl Count {
    /// One.
    pub const ONE: Self = Self(1);

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
    const KIND: Kind = Kind::Count;

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
    const KIND: Kind = Kind::Position;

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
    const KIND: Kind = Kind::Other;

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
