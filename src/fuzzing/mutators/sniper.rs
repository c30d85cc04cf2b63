//! Changes one or two entries that the walker reads. The mutation runs the program to find these entries. If the target
//! has attacks, it appends an attack that patches such an entry; otherwise it changes an operand of the operation that
//! wrote the entry. It runs only programs that were run before without a finding, so no mutation ends the process or
//! hangs.

use std::cell::RefCell;

use crate::findings::watch::{Watch, Watched};
use crate::images::damage::Transform;
use crate::programs::operand::Number;
use crate::programs::{Operation, Program};

use super::context::MutationContext;
use super::{operand, refused};

/// In a target with attacks, one mutation of this many appends an attack of known meaning. It needs no run.
const REFUSED_ONE_IN: u64 = 4;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let has_attacks = context.limits.attacks > 0;
    if has_attacks && context.entropy.one_in(REFUSED_ONE_IN) {
        return refused::change(program, context);
    }
    if !context.sound {
        return false;
    }
    thread_local! {
        static WATCH: RefCell<Watch> = RefCell::default();
    }
    WATCH.with_borrow_mut(|watch| {
        let watched = watch.run(program, context.limits);
        let count = 1 + context.index(2);
        let mut changed = false;
        for _ in 0..count {
            let Some(target) = aim(watched, context) else { break };
            changed |= match has_attacks {
                true => patch(program, &target, context),
                false => rewrite(program, &target, context),
            };
        }
        changed
    })
}

/// Chooses an entry. Each part of the image is equally likely, however many of its entries the walker reads.
fn aim(watched: &[Watched], context: &mut MutationContext) -> Option<Watched> {
    let parts: Vec<&[Watched]> = watched.chunk_by(|one, next| one.part == next.part).collect();
    if parts.is_empty() {
        return None;
    }
    let part = parts[context.index(parts.len())];
    Some(part[context.index(part.len())])
}

fn patch(program: &mut Program, target: &Watched, context: &mut MutationContext) -> bool {
    if context.room(program) == 0 {
        return false;
    }
    let transform = Transform::ALL[context.index(Transform::ALL.len())];
    let value = match context.entropy.one_in(2) {
        true => context.entropy.below(24) as u16,
        false => context.entropy.next_u64() as u16,
    };
    // An odd number keeps the checksum right.
    let nth = target.nth | u16::from(target.is_sealed && context.entropy.one_in(2));
    let (part, depth) = (target.part, Number::LOWEST);
    program.operations.push(Operation::Patch { part, depth, nth, transform, value });
    true
}

fn rewrite(program: &mut Program, target: &Watched, context: &mut MutationContext) -> bool {
    match target.operation {
        Some(at) if at < program.operations.len() => operand::change_at(program, at, context),
        _ => false,
    }
}
