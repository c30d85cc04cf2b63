//! Replaces the end of a program by new operations.

use crate::programs::Program;

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let kept = context.index(program.operations.len() + 1);
    program.operations.truncate(kept);
    let count = (1 + context.index(12)).min(context.room(program));
    for _ in 0..count {
        let operation = context.operation(program);
        program.operations.push(operation);
    }
    true
}
