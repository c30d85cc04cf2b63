//! Changes one field of the prologue: the geometry, the placement of tables and data, the size of the disk.

use crate::programs::operand::OperandKind;
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Program, Prologue};

use super::context::MutationContext;
use super::operand::interesting_size;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let mut bytes = [0; PROLOGUE_BYTES];
    bytes[1..].copy_from_slice(&program.prologue.encode());
    if context.entropy.one_in(3) {
        let size = interesting_size(&program.prologue.plan().geometry, &mut context.entropy);
        let place = Prologue::PLACES.iter().find(|place| place.kind == OperandKind::Size);
        place.into_iter().for_each(|place| bytes[place.bytes()].copy_from_slice(&size));
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
