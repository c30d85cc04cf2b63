//! Moves a range of operations to another place.

use crate::programs::Program;
use crate::programs::framing::gap_from;

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let count = program.operations.len();
    if count < 2 {
        return false;
    }
    let before = program.operations.clone();
    let range = context.range(count, 8.min(count - 1));
    // Data move with their operation.
    let [start, end] = [range.start, range.end].map(|at| gap_from(&program.operations, at));
    let moved: Vec<_> = program.operations.drain(start..end).collect();
    let at = gap_from(&program.operations, context.index(program.operations.len() + 1));
    program.operations.splice(at..at, moved);
    program.operations != before
}
