//! Mutations that add groups of requests to programs: requests in flight together, requests while file operations fail,
//! and writes again and again. They do nothing in targets without requests.

use crate::programs::generate::groups;
use crate::programs::operation::Class;
use crate::programs::program::framing::gap_from;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

/// Gives requests in flight another order, or adds some behind the first request.
pub(super) fn flight(program: &mut Program, context: &mut MutationContext) -> bool {
    let flies = |operation: &Operation| matches!(operation, Operation::InFlight { .. });
    let count = program.operations.iter().filter(|it| flies(it)).count();
    if context.limits.requests == 0 || count == 0 || context.entropy.one_in(2) {
        let made = groups::flight(&mut context.entropy, &program.operations);
        return add(program, context, made);
    }
    let nth = context.index(count);
    let chosen = program.operations.iter_mut().filter(|it| flies(it)).nth(nth);
    let Some(Operation::InFlight { order: before, .. }) = chosen else { return false };
    let after = groups::order(&mut context.entropy);
    std::mem::replace(before, after) != after
}

/// Adds requests that meet failing file operations, behind the first request.
pub(super) fn fault(program: &mut Program, context: &mut MutationContext) -> bool {
    let made = groups::failing(&mut context.entropy, &program.operations);
    add(program, context, made)
}

/// Adds writes of clusters that are freed and written again.
pub(super) fn rewrite(program: &mut Program, context: &mut MutationContext) -> bool {
    let made = groups::rewriting(&mut context.entropy, &program.operations);
    add(program, context, made)
}

/// Adds a group of requests behind the first request, if the target has requests and the program has room.
fn add(program: &mut Program, context: &mut MutationContext, made: Vec<Operation>) -> bool {
    if context.limits.requests == 0 || made.len() > context.room(program) {
        return false;
    }
    let is_request = |operation: &Operation| matches!(operation.class(), Class::Requests(_));
    let first = program.operations.iter().position(is_request).unwrap_or(program.operations.len());
    let place = first + context.index(program.operations.len() - first + 1);
    let at = gap_from(&program.operations, place);
    program.operations.splice(at..at, made);
    true
}
