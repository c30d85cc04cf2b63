//! Repeats operations: inserts copies directly behind the originals.

use crate::programs::Program;

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    if program.operations.is_empty() {
        return false;
    }
    let range = context.range(program.operations.len(), 4);
    let copied: Vec<_> = program.operations[range.clone()].to_vec();
    let times = 1 << context.entropy.below(4);
    let added = copied.iter().copied().cycle().take(copied.len() * times);
    let added: Vec<_> = added.take(context.room(program)).collect();
    let any = !added.is_empty();
    program.operations.splice(range.end..range.end, added);
    any
}
