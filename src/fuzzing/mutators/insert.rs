//! Inserts new operations.

use crate::programs::operation::Class;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let count = (1 + context.index(3)).min(context.room(program));
    let at = context.index(program.operations.len() + 1);
    for _ in 0..count {
        let operation = context.operation(program);
        let is_request = |operation: &Operation| matches!(operation.class(), Class::Requests(_));
        // In front of them, the first request would turn all that the program builds into requests.
        let begins = is_request(&operation) && !program.operations.iter().any(is_request);
        let at = if begins { program.operations.len() } else { at };
        program.operations.insert(at, operation);
    }
    count > 0
}
