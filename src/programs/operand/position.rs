//! Operands for positions: a cluster of the disk, a byte inside it, and a number of clusters.

use std::fmt;

use bytes::{Buf, BufMut};

use super::encoding::Operand;
use super::kind::OperandKind;

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

impl Operand for Count {
    const BYTES: usize = 1;
    const EXPECTED: &'static str = "1 to 16";
    const KIND: OperandKind = OperandKind::Count;

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

impl Operand for Inside {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = "0 to 65535";
    const KIND: OperandKind = OperandKind::Other;

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
