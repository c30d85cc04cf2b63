//! How simple a program is.

use std::ops::Range;

use crate::programs::operand::{Anchor, DataIn, Operand, Size};
use crate::programs::prologue::Prologue;
use crate::programs::{Operation, Program};

/// The measure that every step of a minimization makes smaller: the number of operations, then how plain they,
/// their operands and the geometry are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Measure {
    /// How many operations there are.
    pub operations: usize,
    /// The sum of what is not plain about them.
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

/// Cluster sizes from the plainest on: QEMU's own, then what is easy to read, then the rest.
pub(super) const CLUSTER_BITS: [u8; 13] = [16, 12, 9, 10, 11, 13, 14, 15, 17, 18, 19, 20, 21];
/// Refcount orders from the plainest on: QEMU's own first.
pub(super) const REFCOUNT_ORDERS: [u8; 7] = [4, 3, 5, 6, 2, 1, 0];
/// What each anchor of a position costs, in their order: from the start of the disk nothing has to be known.
const ANCHORS: [u64; 6] = [0, 2, 8, 10, 24, 12];
/// One operation more than its kind costs less than any kind.
const PER_OPCODE: u64 = 4;

/// More than any number of whole clusters costs.
const ODD_SIZE: u64 = 128;

fn operation_cost(operation: &Operation) -> u64 {
    let record = operation.encode();
    let operands = operation.places().map(|place| {
        let bytes = record.get(place.bytes).unwrap_or_default();
        operand_cost(place.name, bytes)
    });
    u64::from(record[0]) * PER_OPCODE + operands.sum::<u64>()
}

/// What is not plain about an operand, by its canonical bytes.
fn operand_cost(name: &str, bytes: &[u8]) -> u64 {
    match (name, bytes) {
        ("at", [anchor, steps @ ..]) => {
            let anchors = ANCHORS.get(usize::from(*anchor)).copied();
            anchors.unwrap_or(0) + scalar_cost(number(steps), is_signed(bytes, &(1..3)))
        }
        ("cluster_bits", [bits]) => place_of(&CLUSTER_BITS, bits.saturating_add(9)),
        ("refcount_order", [order]) => place_of(&REFCOUNT_ORDERS, *order),
        (_, bytes) => scalars_cost(bytes),
    }
}

fn scalars_cost(bytes: &[u8]) -> u64 {
    let cost = |range: Range<usize>| {
        let signed = is_signed(bytes, &range);
        scalar_cost(number(bytes.get(range).unwrap_or_default()), signed)
    };
    scalars(bytes.len()).map(cost).sum()
}

/// Whether the number at `range` of an operand has a sign: the distance from the last operation, and the tail of a
/// size.
pub(super) fn is_signed(operand: &[u8], range: &Range<usize>) -> bool {
    match operand {
        [anchor, _, _] => *anchor == Anchor::Last as u8 && range.start == 1,
        [_, _, _, _, _] => range.start == 3,
        _ => false,
    }
}

fn place_of(order: &[u8], value: u8) -> u64 {
    order.iter().position(|other| *other == value).unwrap_or(order.len()) as u64
}

/// Where the numbers of an operand of so many bytes are: a size and a position have a byte first, all others are
/// one number.
pub(super) fn scalars(length: usize) -> impl Iterator<Item = Range<usize>> {
    let odd = length % 2;
    (0..odd).map(|at| at..at + 1).chain((odd..length).step_by(2).map(|at| at..at + 2))
}

/// A little-endian number of one or two bytes.
pub(super) fn number(bytes: &[u8]) -> u16 {
    match bytes {
        [byte] => u16::from(*byte),
        [low, high] => u16::from_le_bytes([*low, *high]),
        _ => 0,
    }
}

/// Small numbers are plain, and so are aligned ones: how many bits there are, and how many of them are set. Of a
/// negative number, those of its magnitude.
pub(super) fn scalar_cost(value: u16, signed: bool) -> u64 {
    let plain = |value: u16| u64::from(u16::BITS - value.leading_zeros() + value.count_ones());
    match signed && value.cast_signed() < 0 {
        true => 1 + plain(value.wrapping_neg()),
        false => plain(value),
    }
}

fn prologue_cost(prologue: &Prologue) -> u64 {
    let Prologue { version, cluster_bits, refcount_order, features, size, rng_seed, .. } =
        *prologue;
    let Prologue { blocks, table, tolerance, data_in, base, .. } = *prologue;
    let default = Prologue::default();
    let odd = |is: bool| u64::from(is) * 4;
    place_of(&CLUSTER_BITS, cluster_bits.get())
        + place_of(&REFCOUNT_ORDERS, refcount_order.get())
        + odd(version != default.version)
        + bytes_of(features).iter().map(|byte| u64::from(byte.count_ones()) * 4).sum::<u64>()
        + size_cost(size, cluster_bits.get())
        + scalar_cost(rng_seed, false)
        + odd(blocks != default.blocks)
        + odd(table != default.table)
        + u64::from(tolerance.get())
        + odd(data_in != DataIn::Image)
        + odd(base != default.base)
}

/// A disk is plain where it is some whole clusters.
fn size_cost(size: Size, cluster_bits: u8) -> u64 {
    let disk_bytes = size.bytes(u64::MAX);
    let (clusters, odd) = (disk_bytes >> cluster_bits, disk_bytes & ((1 << cluster_bits) - 1));
    if odd == 0 {
        return u64::from(u64::BITS - clusters.leading_zeros() + clusters.count_ones());
    }
    ODD_SIZE + scalars_cost(&bytes_of(size))
}

pub(super) fn bytes_of(operand: impl Operand) -> Vec<u8> {
    let mut bytes = Vec::new();
    operand.encode(&mut bytes);
    bytes
}
