//! Changes the contents of data but not their places: shapes, codings, fills, the state of subclusters.

use crate::programs::operand::{OperandKind, OperandPlace};
use crate::programs::{Operation, Program};

use super::context::MutationContext;

pub(super) fn change(program: &mut Program, context: &mut MutationContext) -> bool {
    let all: Vec<(usize, &OperandPlace)> = program
        .operations
        .iter()
        .enumerate()
        .flat_map(|(at, operation)| operation.places().iter().map(move |place| (at, place)))
        .filter(|(_, place)| place.kind == OperandKind::Content)
        .collect();
    if all.is_empty() {
        return false;
    }
    let (at, place) = all[context.index(all.len())];
    let before = program.operations[at];
    let mut record = before.encode();
    record[place.bytes()].fill_with(|| context.entropy.next_u64() as u8);
    program.operations[at] = Operation::decode(&record).unwrap_or(before);
    program.operations[at] != before
}
