//! A measure of how simple a program is: the cost of its operations, and of the numbers that their operands consist of.

use std::ops::Range;

use smallvec::SmallVec;

use crate::images::format::file_plan::TableReach;
use crate::programs::operand::{
    Anchor, At, ClusterBits, DataIn, Operand, OperandKind, RefcountOrder, Size,
};
use crate::programs::prologue::Prologue;
use crate::programs::{Operation, Program};

/// The measure that every step of a minimization makes smaller: the number of operations, then the complexity of
/// operations, operands and geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Measure {
    /// The number of operations.
    pub operations: usize,
    /// The cost of the operations, their operands and the geometry; 0 is the plainest.
    pub cost: u64,
}

impl Measure {
    /// Measures a program.
    pub fn of(program: &Program) -> Self {
        let operations = program.operations.iter();
        let cost = operations.map(operation_cost).sum::<u64>() + prologue_cost(&program.prologue);
        Self { operations: program.operations.len(), cost }
    }
}

/// The cost of an opcode per unit of its number: later opcodes are less plain.
const PER_OPCODE: u64 = 4;

/// The cost of a byte of data by itself. It exceeds the cost of any number of 16 bits.
const PER_BYTE: u64 = 64;

/// The extra cost of a disk that does not end at a cluster boundary. It exceeds the cost of any number of whole
/// clusters.
const ODD_SIZE: u64 = 128;

fn operation_cost(operation: &Operation) -> u64 {
    let record = operation.encode();
    // A length that is a round number is no plainer than a shorter one.
    let mut length_cost = 0;
    match operation {
        Operation::Data(bytes) => {
            return bytes.iter().map(|byte| scalar_cost(u16::from(*byte), false)).sum();
        }
        Operation::Bytes { length, .. } => length_cost = u64::from(length.get()) * PER_BYTE,
        _ => {}
    }
    let operands = operation.places().iter().map(|place| {
        let bytes = record.get(place.bytes()).unwrap_or_default();
        operand_cost(place.kind, bytes)
    });
    u64::from(operation.opcode()) * PER_OPCODE + operands.sum::<u64>() + length_cost
}

/// Returns the cost of an operand, from its canonical bytes.
fn operand_cost(kind: OperandKind, bytes: &[u8]) -> u64 {
    let costs = |skipped: usize| {
        let scalars = scalars(kind, bytes);
        scalars.iter().skip(skipped).map(|scalar| scalar.cost(bytes)).sum::<u64>()
    };
    match kind {
        OperandKind::Position => anchor_cost(At::decode(&mut &*bytes).anchor) + costs(1),
        OperandKind::Ranked(values) => place_of(values, bytes.first()),
        OperandKind::Size
        | OperandKind::Gap
        | OperandKind::FarGap
        | OperandKind::Count
        | OperandKind::Few
        | OperandKind::Content
        | OperandKind::Other => costs(0),
    }
}

/// Returns the cost of an anchor of a position. The start of the disk is the cheapest: it depends on nothing else.
fn anchor_cost(anchor: Anchor) -> u64 {
    match anchor {
        Anchor::Start => 0,
        Anchor::End => 2,
        Anchor::Last => 8,
        Anchor::Table => 10,
        Anchor::Part => 24,
        Anchor::Past => 12,
    }
}

fn place_of<T: PartialEq>(order: &[T], value: Option<&T>) -> u64 {
    order.iter().position(|other| Some(other) == value).unwrap_or(order.len()) as u64
}

fn prologue_cost(prologue: &Prologue) -> u64 {
    let Prologue { version, cluster_bits, refcount_order, features, size, rng_seed, .. } =
        *prologue;
    let Prologue { blocks, table, tolerance, data_in, base, form, .. } = *prologue;
    let default = Prologue::default();
    let odd = |is: bool| u64::from(is) * 4;
    place_of(&ClusterBits::PLAINEST_FIRST, Some(&cluster_bits))
        + place_of(&RefcountOrder::PLAINEST_FIRST, Some(&refcount_order))
        + odd(version != default.version)
        + bytes_of(features).iter().map(|byte| u64::from(byte.count_ones()) * 4).sum::<u64>()
        + size_cost(size, cluster_bits.get())
        + scalar_cost(rng_seed, false)
        + odd(blocks != default.blocks)
        + odd(table != default.table)
        + u64::from(tolerance.get())
        + odd(data_in != DataIn::Image)
        + odd(base != default.base)
        + u64::from(base.reach() == TableReach::Large)
        + u64::from(form.0.count_ones())
}

/// Returns the cost of a disk size. A disk of whole clusters is plainer than any other.
fn size_cost(size: Size, cluster_bits: u8) -> u64 {
    let disk_bytes = size.bytes(u64::MAX);
    let (clusters, odd) = (disk_bytes >> cluster_bits, disk_bytes & ((1 << cluster_bits) - 1));
    if odd == 0 {
        return u64::from(u64::BITS - clusters.leading_zeros() + clusters.count_ones());
    }
    ODD_SIZE + operand_cost(OperandKind::Size, &bytes_of(size))
}

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
        | OperandKind::Other => {
            // The order of requests in flight has four bytes.
            let starts = (0..operand.len()).step_by(2);
            starts.map(|at| scalar(at..operand.len().min(at + 2), false)).collect()
        }
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
fn scalar_cost(value: u16, signed: bool) -> u64 {
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
