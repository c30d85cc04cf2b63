//! Changes one operand of an operation, most often to a boundary value of the geometry: an edge of a table or of a
//! refcount block, an end of the disk, a power of two, a neighbour of the old value.

use crate::images::qcow2::Sizes;
use bytes::BufMut;

use crate::formats::qcow2::geometry::Geometry;
use crate::images::entropy::Entropy;
use crate::programs::framing::{fit_data, gap_from};
use crate::programs::generate::near_size;
use crate::programs::operand::{Anchor, At, Length, Operand, OperandKind};
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    if program.operations.is_empty() {
        return false;
    }
    let at = context.index(program.operations.len());
    change_at(program, at, context)
}

/// Changes one operand of the operation at index `at`.
pub(super) fn change_at(program: &mut Program, at: usize, context: &mut MutationContext) -> bool {
    let before = program.operations[at];
    if let Operation::Data(mut bytes) = before {
        change_data(&mut bytes, &mut context.entropy);
        program.operations[at] = Operation::Data(bytes);
        return program.operations[at] != before;
    }
    let all = before.places();
    if all.is_empty() {
        return false;
    }
    let place = all[context.index(all.len())];
    let mut record = before.encode();
    let geometry = program.prologue.plan().geometry;
    let operand = &mut record[place.bytes()];
    match context.entropy.below(4) {
        0 => operand.fill_with(|| context.entropy.next_u64() as u8),
        1 => step(operand, &mut context.entropy),
        _ => interesting(place.kind, operand, &geometry, &mut context.entropy),
    }
    let changed = Operation::decode(&record).unwrap_or(before);
    let room = context.room(program) * OPERATION_BYTES + data_bytes(program, at);
    let changed = match changed {
        Operation::Bytes { kind, length } => {
            let length = Length::at_most(usize::from(length.get()).min(room));
            Operation::Bytes { kind, length }
        }
        changed => changed,
    };
    program.operations[at] = context.aimed(changed, program);
    fit_data(&mut program.operations, at);
    program.operations[at] != before
}

/// Returns the number of bytes in the records of data behind the operation at index `at`.
fn data_bytes(program: &Program, at: usize) -> usize {
    (gap_from(&program.operations, at + 1) - (at + 1)) * OPERATION_BYTES
}

/// Changes a few bytes of a record of data.
fn change_data(bytes: &mut [u8; OPERATION_BYTES], entropy: &mut Entropy) {
    for _ in 0..1 + entropy.below(3) {
        let at = entropy.below(OPERATION_BYTES as u64) as usize;
        bytes[at] = match entropy.below(4) {
            0 => bytes[at] ^ 1 << entropy.below(8),
            1 => bytes[at].wrapping_add(entropy.below(9) as u8).wrapping_sub(4),
            2 => [0, 1, 0x7F, 0x80, 0xFE, 0xFF][entropy.below(6) as usize],
            _ => entropy.next_u64() as u8,
        };
    }
}

/// Adds 1 to 4 to the last two bytes of an operand (or its only byte), or subtracts it. The number is little-endian and
/// wraps.
fn step(operand: &mut [u8], entropy: &mut Entropy) {
    let first = operand.len().saturating_sub(2);
    let number = &mut operand[first..];
    let mut word = [0; 2];
    word[..number.len()].copy_from_slice(number);
    let delta = 1 + entropy.below(4) as u16;
    let old = u16::from_le_bytes(word);
    let new = if entropy.one_in(2) { old.wrapping_add(delta) } else { old.wrapping_sub(delta) };
    number.copy_from_slice(&new.to_le_bytes()[..number.len()]);
}

fn interesting(kind: OperandKind, operand: &mut [u8], geometry: &Geometry, entropy: &mut Entropy) {
    let length = operand.len();
    let mut out = &mut *operand;
    match kind {
        OperandKind::Position => out.put_slice(&interesting_position(entropy)),
        OperandKind::Size => near_size(geometry, entropy).encode(&mut out),
        OperandKind::Gap => out.put_slice(&interesting_gap(geometry, entropy)),
        OperandKind::FarGap => out.put_slice(&interesting_far_gap(geometry, entropy)),
        OperandKind::Count | OperandKind::Few => {
            out.put_u8([0, 1, 2, 7, 8, 15, 31, entropy.below(16) as u8][entropy.below(8) as usize]);
        }
        OperandKind::Ranked(_) | OperandKind::Content | OperandKind::Other if length == 2 => {
            let power = 1u16 << entropy.below(16);
            out.put_u16_le([0, 1, u16::MAX, power, power - 1, 511][entropy.below(6) as usize]);
        }
        OperandKind::Ranked(_) | OperandKind::Content | OperandKind::Other => {
            operand.fill_with(|| {
                let power = 1u8 << entropy.below(8);
                [0, 1, u8::MAX, power, power - 1][entropy.below(5) as usize]
            })
        }
    }
}

/// Returns the encoding of a position near the start or the end of the disk, the last operation or the edge of a table,
/// or past the end.
fn interesting_position(entropy: &mut Entropy) -> [u8; 3] {
    let near = entropy.below(4) as u16;
    let (anchor, steps) = match entropy.below(6) {
        0 => (Anchor::Start, near),
        1 => (Anchor::End, near),
        2 => (Anchor::Last, near.wrapping_sub(2)),
        3 | 4 => (Anchor::Table, (entropy.below(4) as u16) << 5 | (14 + near)),
        _ => (Anchor::Past, near),
    };
    let mut bytes = [0; 3];
    At { anchor, steps }.encode(&mut bytes.as_mut_slice());
    bytes
}

/// Returns the encoding of a number of clusters: about as many as a refcount block or an L2 table covers.
fn interesting_gap(geometry: &Geometry, entropy: &mut Entropy) -> [u8; 2] {
    let edge = match entropy.below(3) {
        0 => geometry.refcounts_per_block().ilog2(),
        1 => geometry.l2_bits(),
        _ => geometry.cluster_size.bits(),
    };
    match entropy.below(3) {
        0 => [1, edge.min(15) as u8],
        1 => [(1u64 << edge.min(8)).saturating_sub(2 + entropy.below(4)) as u8, 0],
        _ => [255, entropy.below(16) as u8],
    }
}

/// Returns the encoding of a number of clusters that ends near a host offset with few bits: any, the longest, the first
/// past 32 or 44 bits, or the first that a descriptor of a compressed cluster cannot hold.
fn interesting_far_gap(geometry: &Geometry, entropy: &mut Entropy) -> [u8; 2] {
    let cluster_bits = geometry.cluster_size.bits();
    let offset_bits = match entropy.below(5) {
        0 => cluster_bits + entropy.below(48) as u32,
        1 => 56,
        2 => 32,
        3 => 44,
        _ => 70 - cluster_bits,
    };
    let units = [1, 1, 3, 255][entropy.below(4) as usize];
    [units, offset_bits.saturating_sub(cluster_bits).min(47) as u8]
}
