//! Operands for quantities: sizes, magnitudes, gaps, and the position of a payload inside a cluster.

use std::fmt;

use bytes::{Buf, BufMut};

use super::encoding::{Operand, OperandKind, operand};

/// The placement of a compressed payload. Half of all bytes decode to `Packed`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skew {
    /// Directly behind the last payload.
    #[default]
    Packed,
    /// In new clusters, from a byte inside the first one on. Each step, below 32,768, is a 32,768th of the cluster; the
    /// lowest nine bits of the number are added.
    Fresh(u16),
}

impl Skew {
    /// Returns the offset of the byte in a cluster of `cluster_bytes`, a power of two.
    pub fn bytes(steps: u16, cluster_bytes: u64) -> u64 {
        let scaled = (u64::from(steps) * cluster_bytes) >> 15;
        (scaled + u64::from(steps & 511)) & (cluster_bytes - 1)
    }
}

operand!(
    Skew,
    u16,
    OperandKind::Content,
    "packed, or fresh+N, N 0 to 32767",
    |number| match number {
        value if value & 1 == 0 => Self::Packed,
        value => Self::Fresh(value >> 1),
    },
    |it| match it {
        Self::Packed => 0,
        Self::Fresh(steps) => steps << 1 | 1,
    },
    |it, f| match it {
        Self::Packed => f.write_str("packed"),
        Self::Fresh(steps) => write!(f, "fresh+{steps}"),
    },
    |text| {
        if text == "packed" {
            return Some(Self::Packed);
        }
        let steps = text.strip_prefix("fresh+")?.parse().ok()?;
        (steps < 1 << 15).then_some(Self::Fresh(steps))
    },
);

/// A length of any magnitude: 0 to 1,023, shifted left by 0 to 63. Values of more than 64 bits become `u64::MAX`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Magnitude(u16);

impl Magnitude {
    /// Returns the value.
    pub fn get(self) -> u64 {
        let (units, shift) = (u64::from(self.0 >> 6), u32::from(self.0 & 63));
        if units.leading_zeros() < shift { u64::MAX } else { units << shift }
    }
}

operand!(
    Magnitude,
    u16,
    OperandKind::Other,
    "UNITS<<SHIFT, UNITS 0 to 1023, SHIFT 0 to 63",
    Self,
    |it| it.0,
    |it, f| write!(f, "{}<<{}", it.0 >> 6, it.0 & 63),
    |text| {
        let (units, shift) = text.split_once("<<")?;
        let (units, shift): (u16, u16) = (units.parse().ok()?, shift.parse().ok()?);
        (units < 1024 && shift < 64).then_some(Self(units << 6 | shift))
    },
);

/// A disk size: 16 bits, shifted left by 0 to 47, plus a signed tail that makes it odd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    units: u16,
    shift: u8,
    tail_bytes: i16,
}

impl Size {
    const SHIFTS: u8 = 48;

    /// Returns the size of `units << shift` plus `tail_bytes`, or `None` if the shift is above 47.
    pub const fn new(units: u16, shift: u8, tail_bytes: i16) -> Option<Self> {
        if shift >= Self::SHIFTS { None } else { Some(Self { units, shift, tail_bytes }) }
    }

    /// Returns the operand for a size of `bytes`, or `None` if no operand has this size.
    pub fn of_bytes(bytes: u64) -> Option<Self> {
        let of_shift = |shift: u8| {
            let units = u16::try_from(bytes >> shift).ok()?;
            let tail = i16::try_from(bytes - (u64::from(units) << shift)).ok()?;
            Self::new(units, shift, tail)
        };
        // Prefer the largest shift that needs no tail, else take any shift that fits.
        let whole = (0..Self::SHIFTS).rev().filter_map(of_shift).find(|size| size.tail_bytes == 0);
        whole.or_else(|| (0..Self::SHIFTS).find_map(of_shift))
    }

    /// Returns the size with `by` added to its shift; `None` if the shift leaves its range.
    pub fn scaled(self, by: i32) -> Option<Self> {
        let shift = i32::from(self.shift).checked_add(by)?;
        Self::new(self.units, u8::try_from(shift).ok()?, self.tail_bytes)
    }

    /// Returns the operand for this size without the part of the last sector that is not whole.
    pub fn whole_sectors(self) -> Self {
        const SECTOR_BITS: u8 = 9;
        if self.shift >= SECTOR_BITS {
            return Self { tail_bytes: self.tail_bytes & !511, ..self };
        }
        // Below 2^25, so that there is such an operand.
        Self::of_bytes(self.bytes(u64::MAX) & !511).unwrap_or_default()
    }

    /// Returns the size in bytes, at most `max_bytes`. The tail is added after the units are cut to `max_bytes`.
    pub fn bytes(self, max_bytes: u64) -> u64 {
        let whole = (u64::from(self.units) << self.shift).min(max_bytes);
        whole.saturating_add_signed(i64::from(self.tail_bytes)).min(max_bytes)
    }
}

impl Operand for Size {
    const BYTES: usize = 5;
    const EXPECTED: &'static str =
        "UNITS<<SHIFT+TAIL, UNITS 0 to 65535, SHIFT 0 to 47, TAIL -32768 to 32767";
    const KIND: OperandKind = OperandKind::Size;

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

/// A gap, in clusters or in the unit of its operation: 0 to 255 units, shifted left by less than `SHIFTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap<const SHIFTS: u8 = 16> {
    units: u8,
    shift: u8,
}

/// A gap in clusters, up to more than 2^56 bytes in clusters of any size.
pub type FarGap = Gap<48>;

impl<const SHIFTS: u8> Gap<SHIFTS> {
    const SHIFTS: u8 = SHIFTS;

    /// Returns the gap of `units << shift`; the shift is taken modulo the number of shifts.
    pub(crate) const fn new(units: u8, shift: u8) -> Self {
        Self { units, shift: shift % SHIFTS }
    }

    /// Returns the number of units.
    pub fn units(self) -> u64 {
        u64::from(self.units) << self.shift
    }

    /// Returns the gap divided by powers of two until it has at most `units`, which is at least 255.
    pub fn at_most(mut self, units: u64) -> Self {
        while self.units() > units && self.shift > 0 {
            self.shift -= 1;
        }
        self
    }
}

impl FarGap {
    /// Returns the nearest gap of a shorter reach.
    pub fn shortened(self) -> Gap {
        let shift = self.shift.min(<Gap>::SHIFTS - 1);
        Gap { units: self.units, shift }
    }
}

impl<const SHIFTS: u8> Operand for Gap<SHIFTS> {
    const BYTES: usize = 2;
    const EXPECTED: &'static str = match SHIFTS {
        <Gap>::SHIFTS => "UNITS<<SHIFT, UNITS 0 to 255, SHIFT 0 to 15",
        FarGap::SHIFTS => "UNITS<<SHIFT, UNITS 0 to 255, SHIFT 0 to 47",
        _ => panic!("a gap of another reach needs a text"),
    };
    const KIND: OperandKind = match SHIFTS {
        FarGap::SHIFTS => OperandKind::FarGap,
        _ => OperandKind::Gap,
    };

    fn decode(bytes: &mut &[u8]) -> Self {
        Self { units: bytes.get_u8(), shift: bytes.get_u8() % SHIFTS }
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
        (shift < SHIFTS).then_some(Self { units, shift })
    }
}

/// The size of an overlay, relative to the size of the disk below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relative {
    /// The same size.
    #[default]
    Same,
    /// Smaller by `units << shift` bytes, but at least 0. Units are below 256, the shift is below 64.
    Less(u8, u8),
    /// Larger by `units << shift` bytes.
    More(u8, u8),
    /// A fraction of the size below, in 16,384ths.
    Part(u16),
}

impl Relative {
    const PARTS: u16 = 1 << 14;

    /// Returns an operand for a similar size, which has whole sectors if the size below has.
    pub fn whole_sectors(self) -> Self {
        let whole = |units: u8, shift: u8| match shift {
            0..9 => (units >> (9 - shift).min(7), 9),
            shift => (units, shift),
        };
        match self {
            Self::Less(units, shift) => {
                let (units, shift) = whole(units, shift);
                Self::Less(units, shift)
            }
            Self::More(units, shift) => {
                let (units, shift) = whole(units, shift);
                Self::More(units, shift)
            }
            Self::Part(_) | Self::Same => Self::Same,
        }
    }

    /// Returns the size in bytes of an overlay on a disk of `bytes`.
    pub fn bytes(self, bytes: u64) -> u64 {
        let difference =
            |units: u8, shift: u8| u64::try_from(u128::from(units) << shift).unwrap_or(u64::MAX);
        match self {
            Self::Same => bytes,
            Self::Less(units, shift) => bytes.saturating_sub(difference(units, shift)),
            Self::More(units, shift) => bytes.saturating_add(difference(units, shift)),
            Self::Part(part) => ((u128::from(bytes) * u128::from(part)) >> 14) as u64,
        }
    }
}

operand!(
    Relative,
    u16,
    OperandKind::Other,
    "same, -UNITS<<SHIFT, +UNITS<<SHIFT, UNITS 0 to 255, SHIFT 0 to 63, or part+N, N 0 to 16383",
    |value| {
        let [low, _] = (value >> 2).to_le_bytes();
        let shift = (value >> 10) as u8;
        match value & 3 {
            0 => Self::Same,
            1 => Self::Less(low, shift),
            2 => Self::More(low, shift),
            _ => Self::Part(value >> 2),
        }
    },
    |it| {
        let pair = |units: u8, shift: u8| u16::from(shift) << 10 | u16::from(units) << 2;
        match it {
            Self::Same => 0,
            Self::Less(units, shift) => pair(units, shift) | 1,
            Self::More(units, shift) => pair(units, shift) | 2,
            Self::Part(part) => part << 2 | 3,
        }
    },
    |it, f| match it {
        Self::Same => f.write_str("same"),
        Self::Less(units, shift) => write!(f, "-{units}<<{shift}"),
        Self::More(units, shift) => write!(f, "+{units}<<{shift}"),
        Self::Part(part) => write!(f, "part+{part}"),
    },
    |text| {
        if text == "same" {
            return Some(Self::Same);
        }
        if let Some(part) = text.strip_prefix("part+") {
            let part = part.parse().ok()?;
            return (part < Self::PARTS).then_some(Self::Part(part));
        }
        let (units, shift) = text.get(1..)?.split_once("<<")?;
        let (units, shift): (u8, u8) = (units.parse().ok()?, shift.parse().ok()?);
        match text.chars().next()? {
            '-' if shift < 64 => Some(Self::Less(units, shift)),
            '+' if shift < 64 => Some(Self::More(units, shift)),
            _ => None,
        }
    },
);
