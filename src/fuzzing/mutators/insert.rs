//! Inserts new operations.

use crate::programs::Program;

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let count = (1 + context.index(3)).min(context.room(program));
    let at = context.index(program.operations.len() + 1);
    for _ in 0..count {
        let operation = context.operation(program);
        program.operations.insert(at, operation);
    }
    count > 0
}
