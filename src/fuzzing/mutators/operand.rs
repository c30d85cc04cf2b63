//! Mutations of operands: of an operation, of its data, of the prologue. Most often an operand becomes a boundary value
//! of the geometry: an edge of a table or of a refcount block, an end of the disk, a power of two, a neighbour of the
//! old value.

use bytes::BufMut;

use crate::formats::qcow2::geometry::Geometry;
use crate::images::content::entropy::Entropy;
use crate::images::qcow2::Sizes;
use crate::programs::generate::{enlarge, near_size};
use crate::programs::operand::{Anchor, At, Length, Number, Operand, OperandKind, OperandPlace};
use crate::programs::operation::OPERATION_BYTES;
use crate::programs::program::framing::{fit_data, gap_from};
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Operation, Program, Prologue};

use super::context::MutationContext;

/// Changes one operand of an operation.
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

/// Returns the encoding of a gap in clusters that ends near a round host offset: 1, 3 or 255 times a power of two. The
/// power is random, 2^56 (the longest), 2^32, 2^44, or the first host offset that the descriptor of a compressed
/// cluster cannot hold.
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

/// Changes the contents of data but not their places: shapes, codings, fills, the state of subclusters, given bytes.
pub(super) fn payload(program: &mut Program, context: &mut MutationContext) -> bool {
    // A record of data has no operands: all of it is content.
    let data = |operation: &Operation| matches!(operation, Operation::Data(_)).then_some(None);
    let contents = |operation: &Operation| {
        let places = operation.places().iter();
        places.filter(|place| place.kind == OperandKind::Content).map(Some).chain(data(operation))
    };
    let all: Vec<(usize, Option<&OperandPlace>)> = program
        .operations
        .iter()
        .enumerate()
        .flat_map(|(at, operation)| contents(operation).map(move |place| (at, place)))
        .collect();
    if all.is_empty() {
        return false;
    }
    let (at, place) = all[context.index(all.len())];
    let Some(place) = place else { return change_at(program, at, context) };
    let before = program.operations[at];
    let mut record = before.encode();
    record[place.bytes()].fill_with(|| context.entropy.next_u64() as u8);
    program.operations[at] = Operation::decode(&record).unwrap_or(before);
    program.operations[at] != before
}

/// One change of the prologue in this many makes the disk a large one. It changes several fields together, because one
/// field alone does not make a large disk.
const TO_LARGE_ONE_IN: u64 = 12;
/// The usual sizes of grains and of blocks, and a size between them, as the prologue has them.
const USUAL_BITS: [u8; 3] = [16, 19, 21];

/// Changes one field of the prologue: the geometry, the placement of tables and data, the size of the disk.
pub(super) fn geometry(program: &mut Program, context: &mut MutationContext) -> bool {
    if context.entropy.one_in(TO_LARGE_ONE_IN) {
        return to_large(&mut program.prologue, context);
    }
    let mut bytes = [0; PROLOGUE_BYTES];
    bytes[1..].copy_from_slice(&program.prologue.encode());
    if context.entropy.one_in(3) {
        let size = near_size(&program.prologue.plan().geometry, &mut context.entropy);
        let place = Prologue::PLACES.iter().find(|place| place.kind == OperandKind::Size);
        place.into_iter().for_each(|place| size.encode(&mut &mut bytes[place.bytes()]));
    } else {
        let others = Prologue::PLACES.iter().filter(|place| place.kind != OperandKind::Size);
        let others: Vec<_> = others.collect();
        let place = others[context.index(others.len())];
        bytes[place.bytes()].fill_with(|| context.entropy.next_u64() as u8);
    }
    let mut rest = [0; PROLOGUE_BYTES - 1];
    rest.copy_from_slice(&bytes[1..]);
    let before = std::mem::replace(&mut program.prologue, Prologue::decode(&rest));
    program.prologue != before
}

/// Makes the lowest image one of a large disk in another format, mostly with the clusters that such images have.
fn to_large(prologue: &mut Prologue, context: &mut MutationContext) -> bool {
    let before = *prologue;
    if !context.entropy.one_in(4) {
        let usual = Number::new(USUAL_BITS[context.index(USUAL_BITS.len())]);
        prologue.cluster_bits = usual.unwrap_or(prologue.cluster_bits);
    }
    enlarge(prologue, &mut context.entropy);
    *prologue != before
}

/// Changes a few bytes anywhere, as a fuzzer does that does not know the encoding of programs. It never changes which
/// records are data.
pub(super) fn bytes(program: &mut Program, context: &mut MutationContext) -> bool {
    let mut bytes = program.encode();
    for _ in 0..1 + context.index(4) {
        // The first byte is excluded: it is the version of the encoding.
        let at = 1 + context.index(bytes.len() - 1);
        let changed = match context.entropy.below(3) {
            0 => bytes[at] ^ 1 << context.entropy.below(8),
            1 => bytes[context.index(bytes.len())],
            _ => context.entropy.next_u64() as u8,
        };
        if keeps_frames(program, at, changed) {
            bytes[at] = changed;
        }
    }
    let before = std::mem::take(program);
    program.decode_from(&bytes);
    *program != before
}

/// Reports whether all records of data stay what they are if the byte at `at` of a framed program becomes `byte`.
fn keeps_frames(program: &Program, at: usize, byte: u8) -> bool {
    let Some(behind) = at.checked_sub(PROLOGUE_BYTES) else { return true };
    let inside = behind % OPERATION_BYTES;
    match program.operations.get(behind / OPERATION_BYTES) {
        Some(Operation::Data(_)) | None => true,
        // The opcode and the length.
        Some(Operation::Bytes { .. }) => !matches!(inside, 0 | 2 | 3),
        Some(_) => inside > 0 || byte != BYTES_OPCODE,
    }
}

/// The opcode of the operation `bytes`.
const BYTES_OPCODE: u8 = 37;
