//! Aims at what the walker reads: the program is run once more, and one or two entries that were read are
//! changed. Where the target has attacks, a patch of exactly these is put into the program; elsewhere the
//! operation that wrote them gets another operand. Only a program that was run before is run here: what ends
//! the process, or never ends, must not do so in a mutation.

use std::cell::RefCell;

use crate::findings::watch::{Watch, Watched};
use crate::images::damage::Transform;
use crate::programs::operand::Number;
use crate::programs::{Operation, Program};

use super::context::Context;
use super::operand;

pub(super) fn change(program: &mut Program, context: &mut Context) -> bool {
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
            changed |= match context.limits.attacks > 0 {
                true => patch(program, &target, context),
                false => rewrite(program, &target, context),
            };
        }
        changed
    })
}

/// One of them: each part is as likely, however many entries it has.
fn aim(watched: &[Watched], context: &mut Context) -> Option<Watched> {
    let parts: Vec<&[Watched]> = watched.chunk_by(|one, next| one.part == next.part).collect();
    if parts.is_empty() {
        return None;
    }
    let part = parts[context.index(parts.len())];
    Some(part[context.index(part.len())])
}

fn patch(program: &mut Program, target: &Watched, context: &mut Context) -> bool {
    if context.room(program) == 0 {
        return false;
    }
    let transform = Transform::ALL[context.index(Transform::ALL.len())];
    let value = match context.entropy.one_in(2) {
        true => context.entropy.below(24) as u16,
        false => context.entropy.next_u64() as u16,
    };
    let (part, nth, depth) = (target.part, target.nth, Number::LOWEST);
    program.operations.push(Operation::Patch { part, depth, nth, transform, value });
    true
}

fn rewrite(program: &mut Program, target: &Watched, context: &mut Context) -> bool {
    match target.operation {
        Some(at) if at < program.operations.len() => operand::change_at(program, at, context),
        _ => false,
    }
}
