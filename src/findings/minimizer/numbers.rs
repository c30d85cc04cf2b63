//! The numbers that operands consist of, and the cost of each.

use std::ops::Range;

use smallvec::SmallVec;

use crate::programs::operand::{Anchor, At, Operand, OperandKind};

/// A number of one or two bytes in an operand, little-endian.
#[derive(Clone, Debug)]
pub(super) struct Scalar {
    /// The place of the number among the bytes of the operand.
    pub(super) bytes: Range<usize>,
    /// True if the number has a sign.
    pub(super) signed: bool,
}

/// Returns the numbers of an operand, from its canonical bytes.
pub(super) fn scalars(kind: OperandKind, operand: &[u8]) -> SmallVec<[Scalar; 3]> {
    let scalar = |bytes, signed| Scalar { bytes, signed };
    match kind {
        OperandKind::Position => {
            // The distance from the last operation may be negative.
            let signed = At::decode(&mut &*operand).anchor == Anchor::Last;
            SmallVec::from_iter([scalar(0..1, false), scalar(1..3, signed)])
        }
        OperandKind::Size => {
            SmallVec::from_iter([scalar(0..1, false), scalar(1..3, false), scalar(3..5, true)])
        }
        OperandKind::FarGap => SmallVec::from_iter([scalar(0..1, false), scalar(1..2, false)]),
        OperandKind::Gap
        | OperandKind::Count
        | OperandKind::Few
        | OperandKind::Ranked(_)
        | OperandKind::Content
        | OperandKind::Other => SmallVec::from_iter([scalar(0..operand.len(), false)]),
    }
}

impl Scalar {
    /// Returns the value of the number in an operand.
    pub(super) fn value(&self, operand: &[u8]) -> u16 {
        match operand.get(self.bytes.clone()).unwrap_or_default() {
            [byte] => u16::from(*byte),
            [low, high] => u16::from_le_bytes([*low, *high]),
            _ => 0,
        }
    }

    /// Returns the cost of the number in an operand.
    pub(super) fn cost(&self, operand: &[u8]) -> u64 {
        scalar_cost(self.value(operand), self.signed)
    }

    /// Returns values that are plainer than the one in an operand, the plainest first.
    pub(super) fn plainer(&self, operand: &[u8]) -> Vec<u16> {
        plainer(self.value(operand), self.signed)
    }
}

/// Returns the cost of a number: the number of its significant bits plus the number of bits that are set. Small and
/// aligned numbers cost least. The cost of a negative number is that of its magnitude, plus 1.
pub(super) fn scalar_cost(value: u16, signed: bool) -> u64 {
    let plain = |value: u16| u64::from(u16::BITS - value.leading_zeros() + value.count_ones());
    match signed && value.cast_signed() < 0 {
        true => 1 + plain(value.wrapping_neg()),
        false => plain(value),
    }
}

/// Returns plainer numbers, the plainest first.
pub(super) fn plainer(value: u16, signed: bool) -> Vec<u16> {
    let cost = |value: u16| scalar_cost(value, signed);
    let negative = value.wrapping_neg();
    let halves = (1..u16::BITS).flat_map(|by| [value >> by, (negative >> by).wrapping_neg()]);
    let cleared = (0..u16::BITS).map(|bit| value & !(1 << bit));
    let ones = [1, u16::MAX, value.wrapping_sub(1), value.wrapping_add(1)];
    let mut all: Vec<u16> = halves.chain(cleared).chain(ones).chain([0]).collect();
    all.retain(|other| cost(*other) < cost(value));
    all.sort_unstable_by_key(|other| (cost(*other), *other));
    all.dedup();
    all
}

pub(super) fn bytes_of(operand: impl Operand) -> Vec<u8> {
    let mut bytes = Vec::new();
    operand.encode(&mut bytes);
    bytes
}
