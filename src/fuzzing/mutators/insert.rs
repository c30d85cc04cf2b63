//! Inserts new operations.

use crate::programs::framing::gap_from;
use crate::programs::generate::with_data;
use crate::programs::operation::Class;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let count = (1 + context.index(3)).min(context.room(program));
    let at = gap_from(&program.operations, context.index(program.operations.len() + 1));
    for _ in 0..count {
        let operation = context.operation(program);
        let room = context.room(program);
        let is_request = |operation: &Operation| matches!(operation.class(), Class::Requests(_));
        // In front of them, the first request would turn all that the program builds into requests.
        let begins = is_request(&operation) && !program.operations.iter().any(is_request);
        let at = if begins { program.operations.len() } else { at };
        let made = with_data(operation, &mut context.entropy).take(room);
        program.operations.splice(at..at, made);
    }
    count > 0
}
