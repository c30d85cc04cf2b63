//! Appends an attack of known meaning: damage for which QEMU refuses an image that is sound otherwise. Random attacks
//! rarely produce these values. If the image lacks the field, the attack changes nothing.

use crate::disk::image_format::ImageFormat;
use crate::images::damage::FieldChange;
use crate::images::format::list::drawer;
use crate::programs::operand::Number;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

/// Returns the attacks on the image at the top.
fn attacks(program: &Program) -> &'static [&'static [FieldChange]] {
    let is_overlay = |operation: &Operation| matches!(operation, Operation::Overlay { .. });
    if program.operations.iter().any(is_overlay) {
        return drawer(ImageFormat::Qcow2).attacks();
    }
    let drawer = drawer(program.prologue.base.format());
    let mut on_extents = program.operations.iter().filter_map(|operation| match operation {
        Operation::Extent { kind, .. } => drawer.attacks_on_extent(*kind),
        _ => None,
    });
    on_extents.next().unwrap_or_else(|| drawer.attacks())
}

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let attacks = attacks(program);
    let attack = attacks[context.index(attacks.len())];
    if context.room(program) < attack.len() {
        return false;
    }
    program.operations.extend(attack.iter().map(patch));
    true
}

fn patch(change: &FieldChange) -> Operation {
    let (part, nth, transform, value) = *change;
    Operation::Patch { part, depth: Number::LOWEST, nth, transform, value }
}
