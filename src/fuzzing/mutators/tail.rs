//! Replaces the end of a program by new operations.

use crate::programs::Program;
use crate::programs::generate::with_data;

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let kept = context.index(program.operations.len() + 1);
    program.operations.truncate(kept);
    let count = (1 + context.index(12)).min(context.room(program));
    for _ in 0..count {
        let operation = context.operation(program);
        let room = context.room(program);
        program.operations.extend(with_data(operation, &mut context.entropy).take(room));
    }
    true
}
