//! Mutations of whole operations: they add, remove, repeat and reorder operations, or take those of another program.

use crate::base::limits::MAX_OPERATIONS;
use crate::images::content::entropy::Entropy;
use crate::programs::generate::with_data;
use crate::programs::operation::{Class, OPERATION_BYTES};
use crate::programs::program::framing::{gap_from, reframe};
use crate::programs::prologue::PROLOGUE_BYTES;
use crate::programs::{Operation, Program};

use super::context::MutationContext;

/// Inserts new operations.
pub(super) fn insert(program: &mut Program, context: &mut MutationContext) -> bool {
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

/// Deletes operations.
pub(super) fn delete(program: &mut Program, context: &mut MutationContext) -> bool {
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

/// Repeats operations: inserts copies directly behind the originals.
pub(super) fn repeat(program: &mut Program, context: &mut MutationContext) -> bool {
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

/// Swaps two operations.
pub(super) fn swap(program: &mut Program, context: &mut MutationContext) -> bool {
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

/// Moves a range of operations to another place.
pub(super) fn splice(program: &mut Program, context: &mut MutationContext) -> bool {
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

/// Replaces the end of a program by new operations.
pub(super) fn tail(program: &mut Program, context: &mut MutationContext) -> bool {
    let kept = context.index(program.operations.len() + 1);
    program.operations.truncate(kept);
    let count = (1 + context.index(12)).min(context.room(program));
    for _ in 0..count {
        let operation = context.operation(program);
        let room = context.room(program);
        program.operations.extend(with_data(operation, &mut context.entropy).take(room));
    }
    true
}

/// Joins operations of the other program to this one.
pub(super) fn from_other(program: &mut Program, context: &mut MutationContext) -> bool {
    let Some(other) = context.other else { return false };
    let before = program.operations.clone();
    mix(program, other, context.most, &mut context.entropy);
    program.operations != before
}

/// Writes a program with operations of both programs into `out` and returns its length. Returns 0 half of the time, and
/// if `out` is too small; then libFuzzer mutates instead.
pub fn crossover(one: &[u8], other: &[u8], out: &mut [u8], rng_seed: u32) -> usize {
    let mut entropy = Entropy::new(u64::from(rng_seed));
    if out.len() < PROLOGUE_BYTES || entropy.one_in(2) {
        return 0;
    }
    let (mut program, other) = (Program::decode(one), Program::decode(other));
    let most = ((out.len() - PROLOGUE_BYTES) / OPERATION_BYTES).min(MAX_OPERATIONS);
    mix(&mut program, &other, most, &mut entropy);
    let encoded = program.encode();
    out[..encoded.len()].copy_from_slice(&encoded);
    encoded.len()
}

/// Joins the first operations of `program` to operations of `other`, or replaces operations in the middle of `program`
/// by operations of `other`.
fn mix(program: &mut Program, other: &Program, most: usize, entropy: &mut Entropy) {
    let mut place = |all: &[Operation]| gap_from(all, entropy.below(all.len() as u64 + 1) as usize);
    let (first, end) = (place(&program.operations), place(&program.operations));
    let (from, until) = (place(&other.operations), place(&other.operations));
    let taken = &other.operations[from.min(until)..from.max(until)];
    let replaced = match entropy.below(2) {
        0 => first..program.operations.len(),
        _ => first..first.max(gap_from(&program.operations, end.min(first + taken.len()))),
    };
    program.operations.splice(replaced, taken.iter().copied());
    program.operations.truncate(most);
    reframe(&mut program.operations);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::generate::{GenerateSettings, generate};

    #[test]
    fn children_have_operations_of_both_parents() {
        let wanted = GenerateSettings { operations: 20, compressed: true };
        let (one, other) = (generate(1, wanted), generate(2, wanted));
        let mut out = [0; 400];
        let (mut declined, mut mixed) = (0, 0);
        for rng_seed in 0..400 {
            let length = crossover(&one.encode(), &other.encode(), &mut out, rng_seed);
            let child = Program::decode(&out[..length]);
            let of = |parent: &Program| {
                child.operations.iter().any(|operation| parent.operations.contains(operation))
            };
            declined += u32::from(length == 0);
            mixed += u32::from(length > 0 && of(&one) && of(&other));
            assert!(length == 0 || child.prologue == one.prologue);
        }
        assert!((120..280).contains(&declined) && mixed > 100, "{declined} {mixed}");
        assert_eq!(crossover(&one.encode(), &other.encode(), &mut [0; 10], 1), 0);
    }
}
