//! Changes what data are, and nothing of where they are: shapes, codings, fills, what becomes of
//! subclusters.

use crate::programs::operation::Place;
use crate::programs::{Operation, Program};

use super::context::Context;

/// Operands that say what there is, not where.
const NAMES: [&str; 8] = ["shape", "coding", "skew", "keep", "fill", "kind", "change", "flags"];

pub(super) fn change(program: &mut Program, context: &mut Context) -> bool {
    let all: Vec<(usize, Place)> = program
        .operations
        .iter()
        .enumerate()
        .flat_map(|(at, operation)| operation.places().map(move |place| (at, place)))
        .filter(|(_, place)| NAMES.contains(&place.name))
        .collect();
    if all.is_empty() {
        return false;
    }
    let (at, place) = &all[context.index(all.len())];
    let before = program.operations[*at];
    let mut record = before.encode();
    record[place.bytes.clone()].fill_with(|| context.entropy.next_u64() as u8);
    program.operations[*at] = Operation::decode(&record).unwrap_or(before);
    program.operations[*at] != before
}
