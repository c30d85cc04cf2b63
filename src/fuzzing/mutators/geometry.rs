//! Changes one field of the prologue: the geometry, the placement of tables and data, the size of the disk.

use crate::programs::generate::{enlarge, near_size};
use crate::programs::operand::{Number, Operand, OperandKind};
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Program, Prologue};

use super::context::MutationContext;

/// The share of changes after which the disk is a large one. Several fields must change together for it.
const TO_LARGE_ONE_IN: u64 = 12;
/// The usual sizes of VMDK grains and of VHD blocks, and a size between them, as the prologue has them.
const USUAL_BITS: [u8; 3] = [16, 19, 21];

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    if context.entropy.one_in(TO_LARGE_ONE_IN) {
        return change_to_large(&mut program.prologue, context);
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
fn change_to_large(prologue: &mut Prologue, context: &mut MutationContext) -> bool {
    let before = *prologue;
    if !context.entropy.one_in(4) {
        let usual = Number::new(USUAL_BITS[context.index(USUAL_BITS.len())]);
        prologue.cluster_bits = usual.unwrap_or(prologue.cluster_bits);
    }
    enlarge(prologue, &mut context.entropy);
    *prologue != before
}
