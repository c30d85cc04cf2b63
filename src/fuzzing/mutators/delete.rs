//! Deletes operations.

use crate::programs::Program;

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    if program.operations.is_empty() {
        return false;
    }
    let most = if context.entropy.one_in(4) { program.operations.len() } else { 3 };
    let range = context.range(program.operations.len(), most);
    program.operations.drain(range);
    true
}

/// Deletes operations at random places until the program has at most `context.most`.
pub(super) fn to_length(program: &mut Program, context: &mut MutationContext) {
    while program.operations.len() > context.most {
        let surplus = program.operations.len() - context.most;
        let range = context.range(program.operations.len(), surplus);
        program.operations.drain(range);
    }
}
