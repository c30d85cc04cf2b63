//! Swaps two operations.

use crate::programs::{Operation, Program};

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let count = program.operations.len();
    if count < 2 {
        return false;
    }
    let one = context.index(count);
    // Half of the time the second is a neighbour, because order matters most between neighbours.
    let other = match context.entropy.one_in(2) {
        true => (one + 1) % count,
        false => context.index(count),
    };
    let is_framed = |at: usize| match program.operations[at] {
        Operation::Data(_) => (true, false),
        Operation::Bytes { .. } => (false, true),
        _ => (false, false),
    };
    // Data are swapped only with data, and an operation with data behind it with nothing.
    if is_framed(one) != is_framed(other) || is_framed(one).1 {
        return false;
    }
    program.operations.swap(one, other);
    program.operations[one] != program.operations[other]
}
