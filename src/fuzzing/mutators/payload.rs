//! Changes the contents of data but not their places: shapes, codings, fills, the state of subclusters, given bytes.

use crate::programs::operand::{OperandKind, OperandPlace};
use crate::programs::{Operation, Program};

use super::context::MutationContext;
use super::operand;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    // A record of data has no operands: all of it is content.
    let data = |operation: &Operation| matches!(operation, Operation::Data(_)).then_some(None);
    let contents = |operation: &Operation| {
        let places = operation.places().iter();
        places.filter(|place| place.kind == OperandKind::Content).map(Some).chain(data(operation))
    };
    let all: Vec<(usize, Option<&OperandPlace>)> = program
        .operations
        .iter()
        .enumerate()
        .flat_map(|(at, operation)| contents(operation).map(move |place| (at, place)))
        .collect();
    if all.is_empty() {
        return false;
    }
    let (at, place) = all[context.index(all.len())];
    let Some(place) = place else { return operand::change_at(program, at, context) };
    let before = program.operations[at];
    let mut record = before.encode();
    record[place.bytes()].fill_with(|| context.entropy.next_u64() as u8);
    program.operations[at] = Operation::decode(&record).unwrap_or(before);
    program.operations[at] != before
}
